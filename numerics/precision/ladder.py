"""The precision ladder: the same pair of runs in BF16, FP32 and FP64 separates rounding from a bug.

Where two runs differ by rounding alone, their distance falls with the unit roundoff: a slope. Where one of them
computes something else, the distance stays: a plateau. The ladder needs neither a replay nor an order plan. It cannot
see a wrong precision policy, which falls like rounding; `compare` with a matched replay sees that.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from numerics.columns import Columns, Names, read_columns
from numerics.comparison.joins.tensor_table import Status, by_tensor
from numerics.comparison.preconditions import why_incomparable
from numerics.formats import unit_roundoff
from numerics.order.replayer import make_replay
from numerics.schema import KINDS
from numerics.store import Capture, open_capture
from numerics.thresholds.precision import FLOOR, LEAST_RATIO, STEEP
from tracekit.errors import InputError

LADDER_SCHEMA: Final = "numerics.ladder/1"
POLICIES: Final = {"bf16": "bfloat16", "bf16_pure": "bfloat16", "fp32": "float32", "fp64": "float64"}
"""The format in which a policy computes; the ladder's rungs from coarse to fine."""

Shape = Literal["equal", "slope", "plateau", "vanishing", "unknown"]
Verdict = Literal["identical", "drift", "bug", "undecided"]


@dataclass(frozen=True)
class Rung:
    """One tensor on the ladder: its relative distance by policy (NaN: not comparable there), slope and shape.

    The shape `vanishing` marks a tensor that is zero but for rounding: its own size falls with the roundoff, so its
    distance says nothing.
    """

    step: int
    phase: str
    kind: str
    tensor: str
    order: int
    distances: tuple[float, ...]
    slope: float
    shape: Shape
    module: str = ""


@dataclass(frozen=True)
class LadderFinding:
    """The answer of `numerics ladder`; `first` is the first plateau in execution order."""

    verdict: Verdict
    reason: str
    policies: tuple[str, ...]
    rungs: tuple[Rung, ...]
    first: Rung | None
    notes: tuple[str, ...]

    def count(self, shape: Shape) -> int:
        """Return the number of tensors of a shape."""
        return sum(rung.shape == shape for rung in self.rungs)


@dataclass(frozen=True)
class _Pair:
    """One policy's pair: distance, sum of squares, order and module of tensors by (step, phase, kind, tensor)."""

    policy: str
    distances: dict[tuple[int, str, str, str], float]
    sizes: dict[tuple[int, str, str, str], float]
    orders: dict[tuple[int, str, str, str], int]
    modules: dict[tuple[int, str, str, str], str]


def policy_of(capture: Capture) -> str:
    """Return the policy a run was made with. InputError where the ladder has no rung for it."""
    config = capture.config or {}
    numerics = config.get("numerics")
    policy = config.get("dtype_policy") or (numerics.get("policy") if isinstance(numerics, dict) else None)
    if policy not in POLICIES:
        raise InputError(
            f"{capture.folder}: its policy {str(policy)[:40]!r} is not one of its rungs; "
            f"the ladder needs one of {', '.join(POLICIES)}"
        )
    return str(policy)


def ladder(pairs: Sequence[tuple[Path, Path]]) -> LadderFinding:
    """Return whether pairs (run, baseline), each of one policy, differ by rounding or by a bug.

    InputError where the runs of a pair have different policies or do not compute the same thing, where there are fewer
    than two rungs, or two pairs on one rung.
    """
    rungs = [_pair(left, right) for left, right in pairs]
    rungs.sort(key=lambda pair: -unit_roundoff(POLICIES[pair.policy]))
    units = [unit_roundoff(POLICIES[pair.policy]) for pair in rungs]
    if len(set(units)) != len(units):
        raise InputError("two pairs have the same policy; give one pair for each of BF16, FP32 and FP64")
    if len(rungs) < 2:
        raise InputError("one policy is not enough; give pairs of at least two policies, best FP32 and FP64")
    keys = sorted(
        set.intersection(*(set(pair.distances) for pair in rungs)),
        key=lambda key: (key[0], rungs[-1].orders[key]),
    )
    if not keys:
        raise InputError("the pairs share no tensor; capture them with the same names")
    found = tuple(_rung(key, rungs, units) for key in keys)
    return _judge(found, tuple(pair.policy for pair in rungs))


def climb(
    parallel: Path, baseline: Path, out: Path, progress: Callable[[str], None] | None = None
) -> LadderFinding:
    """Return the ladder's answer on a pair of runs that their trainer repeats in FP32 and FP64.

    A policy in which the pair ran already is not repeated. The repeated runs stay in `out`. InputError where the
    trainer offers no replayer or cannot run.
    """
    own = POLICIES[policy_of(open_capture(parallel))]
    pairs = [(parallel, baseline)]
    for policy in ("fp32", "fp64"):
        if POLICIES[policy] == own:
            continue
        made = []
        for run, role in ((parallel, "parallel"), (baseline, "baseline")):
            if progress is not None:
                progress(f"running {role} in {policy}")
            variant = [f"policy={policy}"]
            made.append(
                make_replay(run, out / f"{role}_{policy}", level="digest", variants=variant, baseline="again")
            )
        pairs.append((made[0], made[1]))
    return ladder(pairs)


def _pair(left: Path, right: Path) -> _Pair:
    """Join the two runs of one policy. InputError where they cannot be compared."""
    captures = open_capture(left), open_capture(right)
    policies = [policy_of(capture) for capture in captures]
    if policies[0] != policies[1]:
        raise InputError(f"{left} ran with {policies[0]}, {right} with {policies[1]}: a pair has one policy")
    reason = why_incomparable(*captures)
    if reason:
        raise InputError(f"{left} and {right} cannot be compared: {reason}")
    names = Names()
    a, b = read_columns(captures[0], names), read_columns(captures[1], names)
    table = by_tensor(a, b)
    pair = _Pair(policies[0], {}, _sizes(b), {}, {})
    for entry in range(len(table.status)):
        row, other = int(table.left[entry]), int(table.right[entry])
        if row < 0 or other < 0 or table.shapes_differ[entry] or table.status[entry] == Status.UNMATCHED:
            continue
        if a.name("kind", row) not in KINDS or a.name("dtype", row).startswith(("int", "bool")):
            continue
        key = _key(a, row)
        pair.modules.setdefault(key, a.name("module", row))
        equal = table.status[entry] in {Status.EQUAL, Status.SIGNED_ZERO}
        distance = 0.0 if equal else float(table.relative[entry])
        pair.distances[key] = float(np.maximum(distance, pair.distances.get(key, 0.0)))  # keeps NaN
        # of the baseline: the parallel run's stages number their rows each for itself
        pair.orders[key] = min(int(b["order"][other]), pair.orders.get(key, 1 << 62))
    return pair


def _key(of: Columns, row: int) -> tuple[int, str, str, str]:
    return int(of["step"][row]), of.name("phase", row), of.name("kind", row), of.name("tensor", row)


def _sizes(of: Columns) -> dict[tuple[int, str, str, str], float]:
    """Return the sum of squares of every tensor, over its parts without copies."""
    counts = of["replica"] == 0
    columns = np.stack([of[name][counts] for name in ("step", "phase", "kind", "tensor")])
    _, first, inverse = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    totals = np.bincount(inverse.reshape(-1), weights=of.reals["sum_squares"][counts], minlength=len(first))
    rows = np.flatnonzero(counts)[first]
    return {_key(of, int(row)): float(total) for row, total in zip(rows, totals, strict=True)}


def _slope(coarse: float, fine: float, units: tuple[float, float]) -> float:
    """Return the power of the unit roundoff with which a distance falls; infinite where it falls to 0."""
    if math.isnan(coarse) or math.isnan(fine):
        return math.nan
    if fine == 0:
        return math.inf
    return (
        math.log(max(coarse, fine * LEAST_RATIO) / fine) / math.log(units[0] / units[1])
        if coarse
        else -math.inf
    )


def _rung(key: tuple[int, str, str, str], pairs: Sequence[_Pair], units: Sequence[float]) -> Rung:
    """Return one tensor's slope and shape, from the two finest rungs."""
    distances = tuple(pair.distances[key] for pair in pairs)
    steps = units[-2], units[-1]
    slope = _slope(distances[-2], distances[-1], steps)
    sizes = [math.sqrt(pair.sizes.get(key, math.nan)) for pair in pairs]
    shape: Shape
    if math.isnan(slope):
        shape = "unknown"
    elif max(distances) == 0:
        shape = "equal"
    elif slope >= STEEP or distances[-1] <= FLOOR * units[-1]:
        shape = "slope"
    elif _slope(sizes[-2], sizes[-1], steps) >= STEEP:
        shape = "vanishing"
    else:
        shape = "plateau"
    step, phase, kind, tensor = key
    order, module = pairs[-1].orders[key], pairs[-1].modules[key]
    return Rung(step, phase, kind, tensor, order, distances, slope, shape, module)


def _judge(rungs: tuple[Rung, ...], policies: tuple[str, ...]) -> LadderFinding:
    """Return the verdict: a plateau of a computed value is a bug, slopes alone are drift."""
    notes = tuple(_notes(rungs, policies))
    plateaus = [r for r in rungs if r.kind != "metric" and r.shape == "plateau"]
    if plateaus:
        first = plateaus[0]
        stay = "1 tensor stays" if len(plateaus) == 1 else f"{len(plateaus)} tensors stay"
        reason = (
            f"{stay} apart however fine the format: {first.tensor} ({first.phase}, step "
            f"{first.step}) first, at {first.distances[-1]:.1e} in {policies[-1]}"
        )
        return LadderFinding("bug", reason, policies, rungs, first, notes)
    if all(r.shape == "unknown" for r in rungs):
        reason = "no tensor can be compared on two rungs"
        return LadderFinding("undecided", reason, policies, rungs, None, notes)
    slopes = [r for r in rungs if r.shape in {"slope", "vanishing"}]
    if not slopes:
        reason = "all tensors are equal on every rung"
        return LadderFinding("identical", reason, policies, rungs, None, notes)
    worst = max(slopes, key=lambda r: r.distances[-1])
    reason = (
        f"every distance falls with the format: at most {worst.distances[0]:.1e} in {policies[0]} and "
        f"{worst.distances[-1]:.1e} in {policies[-1]} ({worst.tensor}); that is rounding"
    )
    return LadderFinding("drift", reason, policies, rungs, None, notes)


def _notes(rungs: Sequence[Rung], policies: Sequence[str]) -> Iterator[str]:
    """Yield the limits of the verdict."""
    yield "a wrong precision policy falls like rounding: the ladder cannot see it, a matched replay can"
    if POLICIES[policies[-1]] != "float64":
        yield "without FP64 a bug smaller than FP32's rounding is not seen"
    unknown = sum(r.shape == "unknown" for r in rungs)
    if unknown:
        yield f"{unknown} tensors hold values that are no numbers, or no common part, on one of the rungs"
    plateaus = [r for r in rungs if r.shape == "plateau"]
    if plateaus and all(r.kind == "metric" for r in plateaus):
        yield f"reported values stay apart ({plateaus[0].tensor}), and nothing that is computed with"
