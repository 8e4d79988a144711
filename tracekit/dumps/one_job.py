"""The dumps of one job and one moment among those of an input; the others are rejected with the reason, or refused.

Ranks of a hung job stop within moments of each other, and no rank completes a call that a member of the group never
issued. A call that several ranks made is of one moment. Dumps that break this are of other jobs, of an earlier attempt,
or of other moments. Part of `load`.
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
CallTimes = dict[tuple[tuple[int, ...], str, int], int]
"""When calls were issued, ns since 1970, by members and name of their group, and number."""


def of_one_job(
    dumps: Sequence[RankDump], runs: Mapping[str, str], wanted: int | None
) -> tuple[list[RankDump], list[Rejected], int | None]:
    """Return the dumps of one job, the others, and the job's number; None where there is only one.

    runs: folder of the recorded run by path. wanted and errors are those of `refused`.
    """
    parts = _parts(dumps)
    moments = _moments(parts)
    witnesses = [_witness(d, runs.get(d.path, ""), moments.get(d.path)) for d in dumps]
    reasons, number = refused(witnesses, wanted)
    reasons |= _of_other_moments(parts) if not moments and not reasons else {}
    rejected = [Rejected(path, reason) for path, reason in sorted(reasons.items())]
    return [d for d in dumps if d.path not in reasons], rejected, number


def _witness(dump: RankDump, run: str, moment: str | None) -> Witness:
    """Return what a dump shows of its job."""
    rank = _rank(dump)
    windows = (
        (Window(rank, dump.last_created, dump.last_created, host=dump.host),) if rank is not None else ()
    )
    problem = [(g.desc, g.ranks) for g in dump.groups if g.ranks and rank in g.ranks]
    count = Counter(desc for desc, _ in problem)
    names: GroupNames = tuple(
        sorted((d, ranks) for d, ranks in problem if count[d] == 1 and len(hinted_dims([d])) == 1)
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


def _parts(dumps: Sequence[RankDump]) -> list[list[RankDump]]:
    """Return the dumps by the moments at which their ranks issued their last calls; those without a time in none."""
    timed = sorted((d for d in dumps if d.last_created > 0), key=lambda d: (d.last_created, d.path))
    parts: list[list[RankDump]] = []
    for dump in timed:
        if not parts or dump.last_created - parts[-1][-1].last_created > MOMENTS_APART_NS:
            parts.append([])
        parts[-1].append(dump)
    return parts


def _strays(parts: Sequence[Sequence[RankDump]]) -> tuple[int, bool]:
    """Return how many dumps are not of the moment of most, and whether these are a few."""
    count = sum(map(len, parts))
    strays = count - max(map(len, parts), default=0)
    return strays, strays <= max(1, int(OLD_DUMPS_SHARE * count))


def _moments(parts: Sequence[Sequence[RankDump]]) -> dict[str, str]:
    """By path the moment (UTC) at which a dump's rank issued its last call; none where all but a few have one.

    Many moments may be those of many clocks: only calls that one side lacks part them.
    """
    if len(parts) < 2 or _strays(parts)[1]:
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


def _of_other_moments(parts: Sequence[Sequence[RankDump]]) -> dict[str, str]:
    """Return why a few dumps are left out that are of another moment than most, by path.

    A rank that stopped long before the others issued its calls when they did; one of an earlier attempt did not.
    """
    strays, few = _strays(parts)
    if not strays or not few:
        return {}
    main = max(parts, key=len)
    reasons = {}
    for dump in (dump for part in parts if part is not main for dump in part):
        if _other_moment([dump], main):
            apart = dump.last_created - max(d.last_created for d in main)
            word = "before" if apart < 0 else "after"
            reasons[dump.path] = (
                f"its last call was issued {abs(apart) // NS_PER_S} s {word} the others' and does not fit theirs: it "
                "is of another attempt or moment, and its rank counts as one without a dump"
            )
    return reasons


def _other_moment(one: Sequence[RankDump], other: Sequence[RankDump]) -> bool:
    """Return whether dumps cannot be of one moment: by calls that one side lacks, or by when both issued a call."""
    if _apart(_frontiers(one), _frontiers(other)):
        return True
    times, others = _call_times(one), _call_times(other)
    common = times.keys() & others.keys()
    return bool(common) and all(abs(times[key] - others[key]) > MOMENTS_APART_NS for key in common)


def _call_times(dumps: Sequence[RankDump]) -> CallTimes:
    """Return when the collectives of these dumps were issued."""
    return {
        (group.ranks, group.name, seq): at
        for dump in dumps
        for group in dump.groups
        if group.ranks
        for seq, at in zip(group.seq.tolist(), group.created.tolist(), strict=True)
        if at > 0
    }


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
