"""Ranks that built another model than their peers, as DistributedDataParallel compares it at its start.

It compares the number of parameters over all ranks, so that each of them raises, and each shape with rank 0 alone, so
that the ranks unlike rank 0 raise. A rank that raises is therefore not at fault; the fewest ranks are. Part of `judge`.
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
_COMPARE: Final = "compare how each rank builds its model: its configuration, its checkpoint"


def unlike_models(case: Case, finding: HangFinding) -> HangFinding | None:
    """Return the answer where ranks report that their models differ; None where none does."""
    versions = _numbers(case) or _shapes(case)
    if len(versions) < 2 or finding.culprits:
        return None
    told = "; ".join(f"{rank_names(own)}: {version}" for version, own in versions.items())
    fewest, *_, most = sorted(versions.values(), key=len)
    world = case.bundle.world
    if len(versions) == 2 and len(fewest) < len(most):
        if world is not None and 2 * len(most) > world:
            how = f"built another model than its peers ({told})"
            return accuse(case, finding, Named("died", dict.fromkeys(fewest, how)))
        return leave_open(
            finding, f"ranks built unlike models ({told}), and others may be unseen", fewest, _SIZE
        )
    reason = f"ranks built unlike models ({told}), and no version is that of most ranks"
    return leave_open(finding, reason, set().union(*versions.values()), _COMPARE)


def _numbers(case: Case) -> dict[str, set[int]]:
    """Return the ranks by the number of parameters that they report of themselves and of one other."""
    found: dict[str, set[int]] = defaultdict(set)
    for rank, text in _reports(case):
        if (said := _NUMBERS.search(text)) is not None and int(said[1]) == rank:
            found[f"{said[2]} parameters"].add(rank)
            found[f"{said[4]} parameters"].add(int(said[3]))
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
