"""The dumps of one job among those of an input; the others are rejected with the reason, or the input is refused.

Ranks of a hung job stop within moments of each other, and no rank completes a call that a member of the group never
issued. Dumps that break both are of other jobs, or of other moments; if they are few, a rank that died may have left an
old dump, and the rules of `hang` judge it as one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from tracekit.dumps.assign import rank_in_name
from tracekit.dumps.rank_dump import RankDump
from tracekit.files.job_choice import refused
from tracekit.files.witness import GroupNames, Window, Witness
from tracekit.findings import Rejected
from tracekit.mesh.group_descriptions import hinted_dims
from tracekit.thresholds.dumps import MAX_RANK, MOMENTS_APART_NS, OLD_DUMPS_SHARE
from tracekit.units import NS_PER_S

Frontiers = dict[tuple[tuple[int, ...], str], tuple[int, int]]
"""The greatest numbers of calls that were issued and completed, by members and name of their group."""


def of_one_job(
    dumps: Sequence[RankDump], runs: Mapping[str, str], wanted: int | None
) -> tuple[list[RankDump], list[Rejected], int | None]:
    """Return the dumps of one job, the others, and the job's number; None where there is only one.

    runs: folder of the recorded run by path. wanted and errors are those of `refused`.
    """
    moments = _moments(dumps)
    witnesses = [_witness(d, runs.get(d.path, ""), moments.get(d.path)) for d in dumps]
    reasons, number = refused(witnesses, wanted)
    rejected = [Rejected(path, reason) for path, reason in sorted(reasons.items())]
    return [d for d in dumps if d.path not in reasons], rejected, number


def _witness(dump: RankDump, run: str, moment: str | None) -> Witness:
    """Return what a dump shows of its job."""
    rank = _rank(dump)
    windows = (
        (Window(rank, dump.last_created, dump.last_created, host=dump.host),) if rank is not None else ()
    )
    told = [(g.desc, g.ranks) for g in dump.groups if g.ranks and rank in g.ranks]
    count = Counter(desc for desc, _ in told)
    names: GroupNames = tuple(
        sorted((d, ranks) for d, ranks in told if count[d] == 1 and len(hinted_dims([d])) == 1)
    )
    worlds = [len(g.ranks) for g in dump.groups if g.desc == "default_pg" and g.ranks]
    world = worlds[0] if len(worlds) == 1 else None
    return Witness(dump.path, dump.sha256, windows, run, world, "", names, alone=True, moment=moment)


def _rank(dump: RankDump) -> int | None:
    """The rank that a dump seems to be of, without a look at the others."""
    if dump.claimed is not None and 0 <= dump.claimed < MAX_RANK:
        return dump.claimed
    if dump.candidates is not None and len(dump.candidates) == 1:
        return dump.candidates[0]
    return rank_in_name(dump.path, dump.candidates)


def _moments(dumps: Sequence[RankDump]) -> dict[str, str]:
    """By path the moment (UTC) at which a dump's rank issued its last call; none where there is only one."""
    timed = sorted((d for d in dumps if d.last_created > 0), key=lambda d: (d.last_created, d.path))
    parts: list[list[RankDump]] = []
    for dump in timed:
        if not parts or dump.last_created - parts[-1][-1].last_created > MOMENTS_APART_NS:
            parts.append([])
        parts[-1].append(dump)
    few = max(1, int(OLD_DUMPS_SHARE * len(timed)))
    if len(parts) < 2 or len(timed) - max(map(len, parts)) <= few:
        return {}
    moments: list[list[RankDump]] = []
    for part in parts:
        near = next((m for m in moments if not _apart(_frontiers(m), _frontiers(part))), None)
        if near is None:
            moments.append(list(part))
        else:
            near.extend(part)
    if len(moments) < 2:
        return {}
    return {d.path: _utc(max(d.last_created for d in part)) for part in moments for d in part}


def _utc(time: int) -> str:
    return datetime.fromtimestamp(time // NS_PER_S, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _frontiers(dumps: Sequence[RankDump]) -> Frontiers:
    found: Frontiers = {}
    for group in (g for d in dumps for g in d.groups if g.ranks and not g.has_p2p):
        enqueued = max(group.status_enqueued, group.entry_enqueued)
        completed = max(group.status_completed, group.entry_completed if group.entry_seen_done else -1)
        known = found.get((group.ranks, group.name), (-1, -1))
        found[group.ranks, group.name] = max(known[0], enqueued), max(known[1], completed)
    return found


def _apart(one: Frontiers, other: Frontiers) -> bool:
    """Return whether one side completed a call of a common group that no rank of the other side had issued."""
    return any(
        one[key][1] > other[key][0] >= 0 or other[key][1] > one[key][0] >= 0
        for key in one.keys() & other.keys()
    )
