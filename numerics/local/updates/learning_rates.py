"""The learning rates that a run recorded, by parameter group: against a given schedule, else against one another."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from numerics.local.forced_pass import Check
from numerics.local.judgement import Judged, Standing
from numerics.local.local_check import Doubt, LocalCheck
from numerics.local.records.recorded import RecordedRun
from numerics.local.updates.optimizer_step import COUNT
from numerics.schema import LEARNING_RATE
from numerics.thresholds.local import LEAST_LAGGING, MOST_SCHEDULED, RATE_TOLERANCE, RATES_TOLD
from numerics.thresholds.reading import MAX_EXTENT
from tracekit.text import whole_number

Schedule = torch.optim.lr_scheduler.LRScheduler
"""Sets the rates of an optimiser's groups; stepped once after each step of the optimiser."""

Rates = Mapping[int, float]
"""Learning rates of one group by step."""

Groups = Mapping[int, Rates]
"""Learning rates by number of the parameter group."""

_SETTLED: Final = (
    "if that is intended, let the function given by --model return the scheduler too (model, optimiser, scheduler): "
    "recorded rates are then compared with it, group by group"
)


@dataclass
class RateChecks:
    """What was found of the rates: checks against a schedule, doubts, and in words what they were."""

    checks: list[LocalCheck] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    unseen: set[str] = field(default_factory=set)


def rates_of_step(recorded: RecordedRun, step: int, rank: int | None = None) -> dict[int, float]:
    """Return a step's recorded learning rates by number of the parameter group, of the first rank or of `rank`."""
    found: dict[int, float] = {}
    for name in recorded.names(step, "step", "scalar"):
        group = whole_number(name.removeprefix(LEARNING_RATE), MAX_EXTENT)
        if not name.startswith(LEARNING_RATE) or group is None:
            continue
        rows = recorded.rows(step, "step", "scalar", name)
        own = [row for row in rows if rank is None or int(recorded.run["rank"][row]) == rank]
        value = recorded.local(own[0]) if own else None
        if value is not None:
            found[group] = float(value)
    return found


def check_rates(recorded: RecordedRun, schedule: Schedule | None) -> RateChecks:
    """Return what the recorded learning rates say, each rank's groups by themselves.

    Where a schedule is given, each group's rate must be the one that the schedule gives at that step.
    """
    found, tables = RateChecks(), _tables(recorded)
    counts = _counts(recorded)
    counted = any(_own_count(recorded, step) is not None for step in recorded.steps)
    most = max((max(own) for own in counts.values()), default=0) + 1
    due, failed = due_rates(schedule, most) if schedule is not None and most <= MOST_SCHEDULED else ([], "")
    for groups, ranks in tables:
        found.remarks.append(
            "; ".join(f"group {n}: {_in_words(list(rates.values()))}" for n, rates in groups.items())
        )
        if schedule is None:
            found.doubts += [Doubt(text, _SETTLED) for text in unlike_schedules(groups)]
            continue
        fits = bool(due) and max(groups) < len(due[0])
        checks = _against(due, groups, counts, ranks) if fits else []
        why = _unfit(checks, failed, fits=fits, counted=counted)
        found.unseen |= {f"learning rates: {why}"} if why else set()
        found.checks += [] if why else checks
    if not tables:
        found.unseen.add("learning rates: none was recorded, and the optimiser's given by --model were taken")
    elif schedule is None:
        found.unseen.add("learning rates: they were taken as recorded, for --model gave no scheduler")
    return found


def _tables(recorded: RecordedRun) -> list[tuple[Groups, tuple[int, ...]]]:
    """Return the recorded rates by group and step, with the ranks that recorded these."""
    tables: list[tuple[Groups, tuple[int, ...]]] = []
    for rank in sorted(set(recorded.run["rank"].tolist())):
        groups: dict[int, dict[int, float]] = {}
        for step in recorded.steps:
            for number, rate in sorted(rates_of_step(recorded, step, rank).items()):
                groups.setdefault(number, {})[step] = rate
        same = next((at for at, (held, _) in enumerate(tables) if held == groups), None)
        if same is not None:
            tables[same] = (groups, (*tables[same][1], rank))
        elif groups:
            tables.append((groups, (rank,)))
    return tables


def unlike_schedules(groups: Groups) -> list[str]:
    """Return in words which groups keep their rate while another's changes, or change steps later.

    Rates may differ between groups, and each may follow a schedule of its own; these two are what a trainer does that
    forgets a group, or sets it from an old value.
    """
    said = []
    moving = [n for n in sorted(groups) if not _constant(list(groups[n].values()))]
    for number in sorted(groups):
        shared = [n for n in moving if n != number and groups[n].keys() == groups[number].keys()]
        own = list(groups[number].values())
        if any(own) and not any(_follows(own, list(groups[n].values())) for n in shared):
            said += [text for n in shared if (text := _left_behind(number, groups[number], n, groups[n]))][:1]
    return said


def _left_behind(number: int, own: Rates, other: int, lead: Rates) -> str:
    """Return in words that a group's rates do not change, or change later than another's; else ""."""
    mine, theirs = _in_words(list(own.values())), _in_words(list(lead.values()))
    if _constant(list(own.values())):
        return (
            f"the learning rate of parameter group {number} does not change ({mine}) while that of group {other} "
            f"changes ({theirs})"
        )
    late = _late_by(own, lead)
    if not late:
        return ""
    steps = f"{late} step{'s' * (late > 1)}"
    late_one = f"the learning rate of parameter group {number} ({mine})"
    return f"{late_one} comes {steps} later than that of group {other} ({theirs})"


def due_rates(schedule: Schedule, steps: int) -> tuple[list[list[float]], str]:
    """Return the groups' rates of the first `steps` steps of a schedule, and "": the schedule is left as it was.

    No rates, and why, where it cannot be stepped without its trainer, as one that asks for a loss.
    """
    groups, found, failed = schedule.optimizer.param_groups, [], ""
    before = copy.deepcopy(schedule.state_dict())
    held = [{key: value for key, value in group.items() if key != "params"} for group in groups]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of a schedule that is stepped without its optimiser
            for number in range(steps):
                if number:
                    schedule.step()
                found.append([float(group["lr"]) for group in groups])
    except Exception as error:  # noqa: BLE001 - the user's schedule may raise anything; the answer tells what
        found, failed = [], f"{type(error).__name__}: {error}"
    schedule.load_state_dict(before)
    for group, values in zip(groups, held, strict=True):
        group.update(values)
    return found, failed


def _against(
    due: Sequence[Sequence[float]], groups: Groups, counts: Mapping[int, range], ranks: tuple[int, ...]
) -> list[LocalCheck]:
    """Return checks of each group's recorded rates against those due at any of the counts that a step may have."""
    made = []
    for number, rates in sorted(groups.items()):
        for step, rate in rates.items():
            right = [due[count][number] for count in counts[step]]
            judged = Judged(Standing.EQUAL, elements=1)
            if not any(_equal(rate, one) for one in right):
                wrong = f"parameter group {number} is stepped by {rate:.6g}, and the scheduler gives {right[0]:.6g}"
                judged = Judged(Standing.BEYOND, relation=wrong)
            check = Check(f"{LEARNING_RATE}{number}", "", "step", judged)
            made.append(LocalCheck(step, None, check, ranks=ranks))
    return made


def _unfit(checks: Sequence[LocalCheck], failed: str, *, fits: bool, counted: bool) -> str:
    """Return why a scheduler cannot be held against a run, in words; else "". `failed`: what it raised."""
    if failed:
        return f"the scheduler could not be stepped without its trainer ({failed})"
    if not fits:
        return "the scheduler has fewer parameter groups than the run, or the run has too many steps"
    if not counted and all(one.check.judged.standing == Standing.BEYOND for one in checks):
        return "none of them is the scheduler's, and the optimiser does not count: the run goes on from elsewhere"
    return ""


def _counts(recorded: RecordedRun) -> dict[int, range]:
    """Return by step how many steps a scheduler may have made before it.

    It is the optimiser's count of its steps, else the number of the step. An update that was skipped may count in the
    schedule or not.
    """
    counted = {step: count for step in recorded.steps if (count := _own_count(recorded, step)) is not None}
    found = {}
    for step in recorded.steps:
        likely = {counted[step]} if step in counted else set()
        earlier = [at for at in counted if at <= step]
        if earlier:
            likely |= {counted[earlier[0]] + step - at for at in (earlier[0], recorded.steps[0])}
        likely = likely or {step}
        found[step] = range(min(likely), max(likely) + 1)
    return found


def _own_count(recorded: RecordedRun, step: int) -> int | None:
    """Return how many steps the optimiser had made before a step, by its own count; None where it keeps none."""
    for name in recorded.names(step, "step", "optimizer"):
        if name.endswith(f".{COUNT}"):
            value = recorded.local(recorded.rows(step, "step", "optimizer", name)[0])
            counted = value is not None and value.numel() == 1 and bool(value.isfinite())
            return max(round(float(value)) - 1, 0) if value is not None and counted else None
    return None


def _equal(a: float, b: float) -> bool:
    return abs(a - b) <= RATE_TOLERANCE * max(abs(a), abs(b))


def _constant(rates: Sequence[float]) -> bool:
    return all(_equal(rate, rates[0]) for rate in rates)


def _follows(rates: Sequence[float], lead: Sequence[float]) -> bool:
    """Return whether rates are a multiple of another group's at every step."""
    top, high = max(rates), max(lead)
    return all(
        abs(a * high - b * top) <= RATE_TOLERANCE * top * high for a, b in zip(rates, lead, strict=True)
    )


def _late_by(rates: Rates, lead: Rates) -> int:
    """Return the delay of rates, in steps, behind a multiple of another group's; 0 without a delay."""
    for late in range(1, max(rates) - min(rates)):
        pairs = [(rate, lead[step - late]) for step, rate in rates.items() if step - late in lead]
        own, then = [a for a, _ in pairs], [b for _, b in pairs]
        if len(pairs) >= LEAST_LAGGING and not _constant(then) and _follows(own, then):
            return late
    return 0


def _in_words(rates: Sequence[float]) -> str:
    """Return rates by step in words, not all of many."""
    if _constant(rates):
        return f"{rates[0]:.6g} in every step" if len(rates) > 1 else f"{rates[0]:.6g}"
    shown = [f"{rate:.6g}" for rate in rates]
    if len(shown) > RATES_TOLD:
        shown = [*shown[: RATES_TOLD - 1], "…", shown[-1]]
    return ", ".join(shown)
