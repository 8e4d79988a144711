"""Ranks that built another model than their peers, as DistributedDataParallel compares it at its start.

It compares the number of parameters over all ranks, so that each of them raises, and each shape with rank 0 alone, so
that the ranks unlike rank 0 raise. A rank that raises is therefore not at fault; the fewest ranks are. Where the
exchange fails, a rank reads 0 or anything of a peer: only what ranks say of themselves is believed. Part of `judge`.
"""

import re
from collections import defaultdict
from typing import Final

from tracekit.analysis.hang.witnesses.case import Case, Named, accuse, leave_open
from tracekit.findings.hang import HangFinding
from tracekit.text import rank_names

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
    told = "; ".join(f"{rank_names(ranks)}: {version}" for version, ranks in versions.items())
    fewest, *_, most = sorted(versions.values(), key=len)
    world = case.bundle.world
    if len(versions) == 2 and len(fewest) < len(most):
        if world is not None and 2 * len(most) > world and not fewest & claimed.keys() - own.keys():
            how = f"built another model than its peers ({told})"
            return accuse(case, finding, Named("died", dict.fromkeys(fewest, how)))
        return leave_open(
            finding, f"ranks built unlike models ({told}), and others may be unseen", fewest, _SIZE
        )
    reason = f"ranks built unlike models ({told}), and no version is that of most ranks"
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
