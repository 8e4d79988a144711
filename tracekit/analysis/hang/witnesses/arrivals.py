"""Ranks that never reached a rendezvous, a store, a barrier or a communicator in which the others wait.

Only where lines name ranks is one named; "3 of 8 clients joined" names none. Part of `judge`.
"""

from collections.abc import Iterable, Sequence

from tracekit.analysis.hang.witnesses.case import Case, Named, accuse, leave_open
from tracekit.evidence.log_waits import StoreBarrier, Waits
from tracekit.findings.hang import HangFinding
from tracekit.text import rank_names
from tracekit.thresholds.evidence import FEWEST_WITNESSES, WAITING_SHARE

_PLACES = "look at the processes of that communicator (host and process id before its lines), or give --mesh and dumps"
_GROUP = "give the logs of all ranks: the first rank of that group died, or has not reached its first call"
_MEMBERS = "give the logs of all ranks, and look which ranks that new_group call lists"
_PORT = "look for processes of an earlier start, and give each job a port of its own"
_FIRST = "give the log of that rank (rank 0 in the job's group): it names the ranks that did not come, or it stopped"
_ALL_LOGS = "give the logs of all ranks, or py-spy dumps, twice, some seconds apart"
_OF_GROUP = "give the log of the rank that wrote this, with the calls of its groups, or flight-recorder dumps"
_STARTED = "look whether the processes of the candidates started, and for the first error in their logs"


def name_absent(case: Case, finding: HangFinding) -> HangFinding | None:
    """Return the answer of a job that waits for ranks to join; None where nothing shows it."""
    waits = [log.waits for log in case.bundle.logs]
    for ask in (_barrier, _communicator, _first_rank, _store, _unreached, _clients, _awaited, _lost_store):
        if (answer := ask(case, finding, waits)) is not None:
            return answer
    return None


def _barrier(case: Case, finding: HangFinding, waits: Iterable[Waits]) -> HangFinding | None:
    """Answer where a monitored barrier names the ranks that did not come, or where only its first rank can."""
    listed = list(waits)
    tasks = set().union(*(w.absent_tasks for w in listed))
    failed, reached = absent_ranks(listed, len(case.world)), set().union(*(w.reached_barrier for w in listed))
    waiting = set().union(*(w.in_gloo for w in listed), case.scene.graph.stuck)
    own = (failed | tasks) - waiting - reached
    if finding.culprits and not own & {c.rank for c in finding.culprits}:
        return None
    if not own and not finding.culprits and not case.scene.graph.stuck:
        return _unnamed_absent(finding, listed, reached, waiting)
    if not own:
        return None
    kind = "a barrier of JAX's coordinator" if own <= tasks else "a monitored barrier"
    if len(own) > 1 and len(own) > WAITING_SHARE * max(len(case.world), max(own) + 1):
        reason = f"{rank_names(own)} did not reach {kind}: they are most ranks"
        return leave_open(finding, reason, own, "take py-spy dumps of the candidates")
    return _name(case, finding, own, f"did not reach {kind} in which the others wait")


def absent_ranks(waits: Sequence[Waits], world: int) -> set[int]:
    """Return the ranks that monitored barriers show to have stayed away.

    Its first member numbers the others within its group. In torch's DETAIL mode any group may be meant, so that only
    places are ranks up to which another member's place is its rank. Where it gives up at the first rank that is
    absent, most ranks must be known to have come: those before it have.
    """
    if any(w.in_group for w in waits):
        return set()
    found = set().union(*(w.failed_barrier for w in waits))
    came = set().union(*(w.reached_barrier for w in waits))
    for first in set().union(*(w.failed_first for w in waits)):
        known = came | set(range(first))
        if len(known) > WAITING_SHARE * max(world, *known, first + 1):
            found.add(first)
    if any(w.wrapped for w in waits):
        found = {place for place in found if place < max(w.identical for w in waits)}
    return found


def _unnamed_absent(
    finding: HangFinding, waits: Sequence[Waits], reached: set[int], waiting: set[int]
) -> HangFinding | None:
    """Answer where ranks wait in a monitored barrier, and no line names the ranks that did not come."""
    places = set().union(*(w.failed_barrier | w.failed_first for w in waits)) - waiting - reached
    if places and any(w.in_group or w.wrapped for w in waits):
        reason = (
            f"members at {_listed(places)} of a group that no line names did not reach a monitored barrier"
        )
        return leave_open(finding, reason, (), _OF_GROUP)
    if places:
        reason = (
            f"{rank_names(places)} did not reach a monitored barrier; it does not show which other ranks came"
        )
        return leave_open(finding, reason, places, _ALL_LOGS)
    if any(w.ran_out for w in waits):
        reason = "the first rank of a monitored barrier ran out of time before it had asked all ranks"
        return leave_open(finding, reason, (), _ALL_LOGS)
    if reached:
        reason = (
            f"{rank_names(reached)} came to a monitored barrier and heard nothing more from its first rank"
        )
        return leave_open(finding, reason, {0} - reached - waiting, _FIRST)
    return None


def _listed(places: set[int]) -> str:
    return f"place{'s'[: len(places) > 1]} {', '.join(map(str, sorted(places)))}"


def _communicator(case: Case, finding: HangFinding, waits: Iterable[Waits]) -> HangFinding | None:
    """Answer where some ranks began to set up an NCCL communicator that not all began."""
    started: dict[str, set[int]] = {}
    joined: dict[str, set[int]] = {}
    sizes: dict[str, int] = {}
    for one in waits:
        for target, given in ((started, one.started), (joined, one.joined)):
            for name, ranks in given.items():
                target.setdefault(name, set()).update(ranks)
        sizes.update(one.sizes)
    several = _sizes_of_several(waits)
    for name, ranks in started.items():
        size, done = sizes[name], joined.get(name, set())
        lacking = set(range(size)) - ranks
        world = len(case.world) <= size and size not in several
        if done or finding.culprits or len(ranks) > size:
            continue
        if not lacking:
            reason = f"all {size} ranks began to set up communicator {name} and none has: a network or a host is stuck"
            return leave_open(
                finding, reason, (), "set NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET on all ranks"
            )
        if size in several:
            reason = f"{len(lacking)} ranks of one of several communicators of {size} ranks never began to set it up"
            return leave_open(finding, reason, (), _PLACES)
        if world and len(ranks) > WAITING_SHARE * size:
            return _name(
                case, finding, lacking, "never began to set up the communicator in which the others wait"
            )
    return None


def _sizes_of_several(waits: Iterable[Waits]) -> set[int]:
    """Return the sizes of communicators that two processes hold at one place: their places are no global ranks."""
    places: dict[tuple[int, int], bytes] = {}
    found: set[int] = set()
    for one in waits:
        found |= one.several
        found |= {
            size
            for (size, at), process in one.places.items()
            if places.setdefault((size, at), process) != process
        }
    return found


def _first_rank(case: Case, finding: HangFinding, waits: Iterable[Waits]) -> HangFinding | None:
    """Answer where ranks wait for the id that the first rank of their group makes."""
    waiting = set().union(*(w.for_first for w in waits))
    grouped = set().union(*(w.in_groups for w in waits))
    if finding.culprits or case.scene.graph.stuck or not waiting | grouped:
        return None
    if grouped:
        reason = f"{rank_names(grouped)} wait for the first rank of their group to set up a communicator"
        return leave_open(finding, reason, (), _GROUP)
    others = case.world - {0}
    if 0 not in waiting and others and waiting >= others and len(waiting) > 1:
        return _name(case, finding, {0}, "never made the communicator id that the others wait for")
    reason = f"{len(waiting)} ranks wait for the first rank of their group to set up a communicator"
    decide = "give the logs of all ranks: the first rank of the group died, or has not reached its first call"
    return leave_open(finding, reason, {0} if 0 not in waiting else (), decide)


def _store(case: Case, finding: HangFinding, waits: Iterable[Waits]) -> HangFinding | None:
    """Answer where ranks wait in the store's barrier."""
    barriers: dict[str, StoreBarrier] = {}
    for one in waits:
        for key, given in one.barriers.items():
            barriers[key] = barriers.get(key, StoreBarrier()).with_lines_of(given)
    open_ones = [(key, one) for key, one in barriers.items() if one.size and one.reached and not one.over]
    if not open_ones or finding.culprits or case.scene.graph.stuck:
        return None
    key, barrier = open_ones[0]
    size, reached = barrier.size or 0, barrier.reached
    if max(barrier.joined, len(reached), *(rank + 1 for rank in reached if key.isdigit())) > size:
        reason = f"more processes came to the store's barrier than its {size} ranks: another job uses the same store"
        return leave_open(finding, reason, (), _PORT)
    if not key.isdigit():
        reason = f"{rank_names(reached)} wait in the store for a group of {size} ranks, which the lines do not name"
        return leave_open(finding, reason, case.world - reached, _MEMBERS)
    lacking = set(range(size)) - reached
    if lacking and len(reached) > WAITING_SHARE * size and size - barrier.joined >= len(lacking):
        return _name(case, finding, lacking, "never reached the store's barrier in which the others wait")
    reason = f"{len(reached)} of {size} ranks are known to wait in the store's barrier at the start"
    return leave_open(finding, reason, lacking, _STARTED)


def _unreached(case: Case, finding: HangFinding, waits: Iterable[Waits]) -> HangFinding | None:
    """Answer where ranks cannot reach the store's address."""
    listed = list(waits)
    addresses = sorted({address for w in listed for address in w.unreached})
    by = set().union(*(w.unreached_by for w in listed))
    if not addresses or finding.culprits or case.scene.graph.stuck:
        return None
    reason = f"the address {addresses[0]} did not answer" + (f" {rank_names(by)}" if by else "")
    decide = (
        "look whether rank 0 started and listens there, and whether these hosts reach it (nc -vz HOST PORT)"
    )
    return leave_open(finding, reason, (), decide)


def _clients(_case: Case, finding: HangFinding, waits: Iterable[Waits]) -> HangFinding | None:
    """Answer where the store counts fewer clients than ranks."""
    counts = [w.joined_store for w in waits if w.joined_store is not None]
    short = [(joined, of) for joined, of in counts if joined < of]
    if not short or finding.culprits:
        return None
    joined, of = max(short)
    reason = f"{joined} of {of} ranks reached the store in time; the log does not name them"
    decide = "give the logs of all hosts: the ranks that never came left an error there, or no line at all"
    return leave_open(finding, reason, (), decide)


def _awaited(case: Case, finding: HangFinding, waits: Iterable[Waits]) -> HangFinding | None:
    """Answer where a controller says which ranks it still waits for: they may be late."""
    late = set().union(*(w.awaited for w in waits))
    if not late or finding.culprits or case.scene.graph.stuck:
        return None
    reason = f"{rank_names(late)} had not come to a barrier of the controller when it wrote its last line"
    return leave_open(finding, reason, late, "take py-spy dumps of the candidates, twice, some seconds apart")


def _lost_store(case: Case, finding: HangFinding, waits: Iterable[Waits]) -> HangFinding | None:
    """Answer where ranks lost the store, which the process of rank 0 or its agent holds."""
    lost = set().union(*(w.lost_store for w in waits))
    if len(lost) < FEWEST_WITNESSES or finding.culprits or case.scene.graph.stuck:
        return None
    reason = (
        f"{rank_names(lost)} lost the store, which the process of rank 0 holds, or the agent that started it"
    )
    decide = "give the log of rank 0 and that of its launcher: the process that held the store ended before these ranks"
    return leave_open(finding, reason, {0} - lost, decide)


def _name(case: Case, finding: HangFinding, ranks: set[int], how: str) -> HangFinding:
    return accuse(case, finding, Named("never_joined", dict.fromkeys(ranks, how)))
