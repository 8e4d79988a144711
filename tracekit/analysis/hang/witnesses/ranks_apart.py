"""Ranks apart from their peers, in their stacks or in the models that they built. Part of `judge`.

Stacks beside the calls: the odd one out is the suspect, outside a collective while the others wait in one. A rank in
`synchronize` waits for its own device, which waits for others: it is not the odd one.

DistributedDataParallel compares models at its start: the number of parameters over all ranks, so that each of them
raises, and each shape with rank 0 alone, so that the ranks unlike rank 0 raise. A rank that raises is therefore not at
fault; the fewest ranks are. Where the exchange fails, a rank reads 0 or anything of a peer: only what ranks say of
themselves is believed.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from tracekit.analysis.hang.witnesses.case import Case, Named, accuse, leave_open, note
from tracekit.evidence.stack_places import RankStack, python_frames
from tracekit.findings.hang import HangFinding
from tracekit.text import rank_names
from tracekit.thresholds.evidence import MAX_ODD_STACKS, MIN_STACKS, WAITING_SHARE

K = TypeVar("K", bound=Hashable)
"""How a process is known: by its rank, or by its file and number."""
_INSIDE: Final = "its stack is inside a collective: it did not return from the call, or waits in another one"
_TWICE: Final = "take stacks of all ranks twice, some seconds apart"
_RANKS: Final = (
    "put the rank of each process into the name of its file (rank_3.txt), or a line `rank 3` before its stack"
)
_PLACES: Final = {
    "collective": "in a collective",
    "device": "in a wait for the device",
    "waiting": "in another wait",
    "elsewhere": "elsewhere",
    "unknown": "where no function bears a name",
}
_NATIVE: Final = "take stacks with the frames of Python: py-spy dump, pystack remote, or py-bt in gdb"


def decide_by_stacks(case: Case, finding: HangFinding) -> HangFinding:
    """Return the answer with what the stacks of the ranks add to it."""
    if finding.verdict == "none" or not case.bundle.stacks:
        return finding
    stacks = _by_rank(case.bundle.stacks)
    finding = _with_stacks(finding, stacks)
    odd = odd_ranks(stacks)
    if finding.culprits:
        return _beside_calls(finding, stacks, odd)
    allowed = odd & set(finding.candidates) if finding.candidates else odd
    sure = case.scene.graph.stuck or all(
        _seen_again(stacks[rank]) for rank in allowed
    )  # one may be of a live job
    unreadable = {rank for rank in odd if any(s.activity == "unknown" for s in stacks[rank])}
    if len(allowed) == 1 and allowed == odd and sure and not unreadable and not _undecidable(case, finding):
        (rank,) = allowed
        how = "is outside any collective, by its stack, while the others wait in one"
        return accuse(case, finding, Named("host_stalled", {rank: how}, {rank: stacks[rank][-1].frames}))
    if odd and not finding.candidates and unreadable:
        reason = f"the stacks of {rank_names(unreadable)} show no names, and most others wait in a collective"
        return leave_open(finding, reason, odd, _NATIVE)
    if odd and not finding.candidates:
        reason = f"{rank_names(odd)}: outside a collective, by the stacks, while the others wait in one"
        return leave_open(finding, reason, odd, _TWICE)
    if case.composed.dumps.dumps or finding.candidates:
        return finding
    return replace(finding, reason=_in_words(stacks)) if stacks else _of_unknown_ranks(case, finding)


def _in_words(stacks: Mapping[int, Sequence[RankStack]]) -> str:
    """Return where ranks are by their stacks, where these do not show which one the others wait for."""
    places: dict[str, set[int]] = defaultdict(set)
    for rank, samples in stacks.items():
        places[samples[-1].activity].add(rank)
    listed = "; ".join(
        f"{rank_names(places[key])} {words}" for key, words in _PLACES.items() if key in places
    )
    return f"the stacks do not show which rank the others wait for: {listed}"


def _beside_calls(
    finding: HangFinding, stacks: Mapping[int, Sequence[RankStack]], odd: set[int]
) -> HangFinding:
    """Return the answer of the calls beside stacks: with a note, or open where the two name different ranks."""
    named = {culprit.rank for culprit in finding.culprits}
    stalled = {culprit.rank for culprit in finding.culprits if culprit.kind == "host_stalled"}
    inside = {rank for rank in stalled if _waits(stacks.get(rank, []))}
    if (apart := odd - named) and inside:
        reason = (
            f"calls speak for {rank_names(named)}, stacks for {rank_names(apart)}, outside any collective while the "
            "others wait in one"
        )
        return leave_open(finding, reason, named | apart, _TWICE)
    return note(finding, *(f"rank {rank}: {_INSIDE}" for rank in sorted(inside))) if inside else finding


def _of_unknown_ranks(case: Case, finding: HangFinding) -> HangFinding:
    """Return the answer where no stack bears a rank: it shows the process outside a collective, and names no rank."""
    processes: dict[Hashable, list[RankStack]] = defaultdict(list)
    for stack in case.bundle.stacks:
        processes[stack.process].append(stack)
    odd = odd_ranks(processes)
    listed = "; ".join(_shown(processes[key][-1]) for key in processes if key in odd)
    reason = f"the stacks of {len(processes)} process{'es'[: 2 * (len(processes) > 1)]} show no ranks"
    if odd:
        reason += f"; outside a collective while the others wait in one: {listed}"
    return leave_open(finding, reason, (), _RANKS)


def _shown(stack: RankStack) -> str:
    """Return the process of a stack, and its innermost frame of Python."""
    place = next(iter(stack.place), "")
    names = (f"process {stack.pid}" if stack.pid else "", stack.writer)
    where = " ".join(name for name in names if name) or stack.path
    return f"{where} at {place}"


def _undecidable(case: Case, finding: HangFinding) -> bool:
    """Return whether the calls show something that no stack decides: versions of one call, or ranks without stacks."""
    seen = {stack.rank for stack in case.bundle.stacks}
    silent = case.world - seen - case.ranks
    return bool(finding.open_calls) or bool(silent) or None in seen


def odd_ranks(stacks: Mapping[K, Sequence[RankStack]]) -> set[K]:
    """Return the processes outside a collective where most others wait in one; none where too few or too many are."""
    waiting = {rank for rank, samples in stacks.items() if _waits(samples)}
    still = {rank for rank, samples in stacks.items() if rank not in waiting and _moves_not(samples)}
    odd = {rank for rank in still if all(s.activity in {"elsewhere", "unknown"} for s in stacks[rank])}
    enough = len(stacks) >= MIN_STACKS and len(waiting) > WAITING_SHARE * len(stacks)
    few = len(stacks) - len(waiting) <= max(1, int(MAX_ODD_STACKS * len(stacks)))
    return odd if enough and few else set()


def _waits(samples: Iterable[RankStack]) -> bool:
    return any(s.activity == "collective" for s in samples)


def _form(stack: RankStack) -> tuple[str, bool]:
    """Return what two stacks of one place share: their program, and whether they show frames of Python."""
    return stack.kind, bool(python_frames(stack.frames))


def _moves_not(samples: Sequence[RankStack]) -> bool:
    """Return whether the samples of a process show one place, as far as they compare; true of a single one."""
    return len({(_form(s), s.place) for s in samples}) <= len({_form(s) for s in samples})


def _seen_again(samples: Sequence[RankStack]) -> bool:
    """Return whether a process was sampled at two moments: two programs may have printed one moment."""
    return max(Counter(_form(s) for s in samples).values(), default=0) > 1


def _by_rank(stacks: Iterable[RankStack]) -> dict[int, list[RankStack]]:
    """Return the samples of each rank; samples that show nothing are left out beside others."""
    found: dict[int, list[RankStack]] = defaultdict(list)
    for stack in stacks:
        if stack.rank is not None:
            found[stack.rank].append(stack)
    return {rank: [s for s in own if s.activity != "unknown"] or own for rank, own in found.items()}


def _with_stacks(finding: HangFinding, stacks: Mapping[int, Sequence[RankStack]]) -> HangFinding:
    """Return the finding whose culprits bear the stacks of their processes where the dumps hold none."""
    culprits = tuple(
        replace(c, stack=stacks[c.rank][-1].frames) if c.rank in stacks and not c.stack else c
        for c in finding.culprits
    )
    return replace(finding, culprits=culprits)


_NUMBERS: Final = re.compile(
    r"Rank (\d{1,7}) has (\d{1,12}) params, while rank (\d{1,7}) has inconsistent (\d{1,12})"
)
_SHAPE: Final = re.compile(
    r"\[(\d{1,7})\]: (params\[\d{1,9}\] in this process with .{1,200}?) appears not to match"
)

_SIZE: Final = "give --mesh, or the logs of all ranks"
_EXCHANGE: Final = (
    "the exchange itself failed: look for the first error of the other ranks, for a rank that is not at this place of "
    "the program, and run nccl-tests between these devices"
)
_COMPARE: Final = "compare how each rank builds its model: its configuration, its checkpoint"


def unlike_models(case: Case, finding: HangFinding) -> HangFinding | None:
    """Return the answer where ranks report that their models differ; None where none does."""
    own, claimed = _numbers(case)
    if (
        own
        and not finding.culprits
        and any(own.get(rank, count or None) != count for rank, count in claimed.items())
    ):
        said = ", ".join(f"{count} of rank {rank}" for rank, count in sorted(claimed.items()))
        reason = f"ranks that compared their models read numbers of parameters that cannot be true ({said})"
        return leave_open(finding, reason, claimed.keys() - own.keys(), _EXCHANGE)
    versions = _versions(claimed | own) or _shapes(case)
    if len(versions) < 2 or finding.culprits:
        return None
    built = "; ".join(f"{rank_names(ranks)}: {version}" for version, ranks in versions.items())
    fewest, *_, most = sorted(versions.values(), key=len)
    world = case.bundle.world
    if len(versions) == 2 and len(fewest) < len(most):
        if world is not None and 2 * len(most) > world and not fewest & claimed.keys() - own.keys():
            how = f"built another model than its peers ({built})"
            return accuse(case, finding, Named("died", dict.fromkeys(fewest, how)))
        return leave_open(
            finding, f"ranks built unlike models ({built}), and others may be unseen", fewest, _SIZE
        )
    reason = f"ranks built unlike models ({built}), and no version is that of most ranks"
    return leave_open(finding, reason, set().union(*versions.values()), _COMPARE)


def _numbers(case: Case) -> tuple[dict[int, int], dict[int, int]]:
    """Return each rank's number of parameters by its own report, and by the reports of its peers."""
    own: dict[int, int] = {}
    claimed: dict[int, int] = {}
    for rank, text in _reports(case):
        if (said := _NUMBERS.search(text)) is not None and int(said[1]) == rank:
            own[rank] = int(said[2])
            claimed[int(said[3])] = int(said[4])
    return own, claimed


def _versions(counts: dict[int, int]) -> dict[str, set[int]]:
    """Return the ranks by their number of parameters."""
    found: dict[str, set[int]] = defaultdict(set)
    for rank, count in sorted(counts.items()):
        found[f"{count} parameters"].add(rank)
    return found


def _shapes(case: Case) -> dict[str, set[int]]:
    """Return the ranks unlike rank 0 by what they report, and with rank 0 all that report nothing."""
    found: dict[str, set[int]] = defaultdict(set)
    for rank, text in _reports(case):
        if (said := _SHAPE.search(text)) is not None and int(said[1]) == rank:
            found[said[2].replace(" in this process", "")].add(rank)
    others = (case.world | case.ranks | {0}) - set().union(*found.values())
    return found | {"as rank 0": others} if found else {}


def _reports(case: Case) -> list[tuple[int, str]]:
    """Return the exceptions that follow from a peer's model, with the rank that wrote each."""
    deaths = (death for log in case.bundle.logs for death in log.deaths)
    return [(death.rank, death.text) for death in deaths if death.rank is not None and death.consequence]
