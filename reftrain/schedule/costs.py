"""Times of single actions, as exact fractions of any unit of time.

`timing.time_schedule` takes one `Costs`; the command reads it from `--cost f=1,b=2,p2p=0`.
"""

from dataclasses import dataclass, fields
from fractions import Fraction

from reftrain.errors import ScheduleError
from reftrain.schedule.actions import ENCODES, Action, Kind
from reftrain.thresholds import LARGEST_COST, LONGEST_COST

Time = Fraction
PerStage = Fraction | tuple[Fraction, ...]


@dataclass(frozen=True)
class Costs:
    """Times of one micro-batch on one virtual stage; a tuple gives every virtual stage its own.

    `f` is a forward; `b` a backward without recomputation; `i` and `w` its parts for input and weights, each half
    of `b` where left out; `c` recomputation, as long as `f` where left out (so that a recomputed backward
    of b = 2f takes 3f, Chimera section 3.4); `p2p` a message between two ranks; `sync` the sum of a stage's
    gradients over its replicas, beside the computation; `step` an optimiser step.
    `e` encodes the images of a micro-batch, and takes twice as long
    backward.
    """

    f: PerStage = Fraction(1)
    b: PerStage = Fraction(2)
    i: PerStage | None = None
    w: PerStage | None = None
    c: PerStage | None = None
    p2p: Fraction = Fraction(0)
    sync: Fraction = Fraction(0)
    step: Fraction = Fraction(0)
    e: Fraction = Fraction(1)

    def of(self, action: Action) -> Fraction:
        """Return the time for which an action occupies its rank."""
        kind, stage = action.kind, action.stage
        if kind is Kind.FORWARD:
            return _at(self.f, stage)
        if kind is Kind.BACKWARD:
            return _at(self.b, stage)
        if kind is Kind.BACKWARD_INPUT:
            return self._input_part(stage)
        if kind is Kind.BACKWARD_WEIGHT:
            whole = _at(self.b, stage)
            return whole - self._input_part(stage) if self.w is None else _at(self.w, stage)
        if kind in ENCODES:
            return self.e if kind is Kind.ENCODE else 2 * self.e
        if kind is Kind.RECOMPUTE:
            return _at(self.f if self.c is None else self.c, stage)
        return self.step if kind is Kind.OPTIMIZER_STEP else Fraction(0)

    def _input_part(self, stage: int) -> Fraction:
        if self.i is not None:
            return _at(self.i, stage)
        whole = _at(self.b, stage)
        return whole / 2 if self.w is None else whole - _at(self.w, stage)


def _at(cost: PerStage, stage: int) -> Fraction:
    return cost[stage] if isinstance(cost, tuple) else cost


NAMES = tuple(f.name for f in fields(Costs))


def parse_costs(text: str) -> Costs:
    """Read `f=1,b=2,p2p=0`; values are decimals or fractions, `f=1:1:2` gives one a virtual stage.

    Raises `ScheduleError` for an unknown name, or a value that is not a number or negative.
    """
    values: dict[str, PerStage] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = (x.strip() for x in part.partition("="))
        if not equals or name not in NAMES or name in values:
            problem = f"{part[:60]!r} is not a cost, or given twice"
            raise ScheduleError("--cost", problem, f"write name=number with names among {', '.join(NAMES)}")
        numbers = tuple(_number(name, v) for v in value.split(":"))
        if len(numbers) > 1 and name in {"p2p", "sync", "step", "e"}:
            raise ScheduleError("--cost", f"{name} has one value, not one a stage", f"give {name}=number")
        values[name] = numbers if len(numbers) > 1 else numbers[0]
    return Costs(**values)  # type: ignore[arg-type]


def check_costs(costs: Costs, stages: int) -> None:
    """Raise `ScheduleError` when costs do not fit a table of so many virtual stages."""
    for name in ("f", "b", "i", "w", "c"):
        value = getattr(costs, name)
        if isinstance(value, tuple) and len(value) != stages:
            problem = f"{name} has {len(value)} values for {stages} virtual stages"
            raise ScheduleError("--cost", problem, f"give {stages} values, or one")
    for stage in range(stages):
        for kind in (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT):
            if costs.of(Action(kind, stage, 0)) < 0:
                problem = f"a part of the backward of stage {stage} is longer than b"
                raise ScheduleError("--cost", problem, "give both i and w, or a larger b")


def _number(name: str, text: str) -> Fraction:
    try:
        number = Fraction(text if len(text) <= LONGEST_COST and "e" not in text.lower() else "")
    except (ValueError, ZeroDivisionError):
        problem = f"{name}={text[:LONGEST_COST]!r} is not a number"
        raise ScheduleError("--cost", problem, "write for example f=1,b=2,p2p=0.1 or b=3/2") from None
    if not 0 <= number <= LARGEST_COST:
        raise ScheduleError("--cost", f"{name}={text} is out of bounds", f"give 0 to {LARGEST_COST}")
    return number
