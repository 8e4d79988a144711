"""A host that launches more slowly than its peers' hosts, named with its price although its device works no longer.

Its device computes while late operations are missing, so its own time equals its peers'. The price is what a step model
saves in which the rank issues its operations when a peer does; the pace of its launches shows that its host is the
reason.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tracekit import findings
from tracekit.analysis.slowrank.answers.culprit_answers import blame_ranks
from tracekit.analysis.slowrank.answers.late_hosts import waited_for
from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.hypotheses.candidates import those_that_cost
from tracekit.analysis.slowrank.hypotheses.suspect_work import pace_beside
from tracekit.analysis.slowrank.price import Price, rank_doubt_ns
from tracekit.analysis.slowrank.suspects import Answer, blame, cures_of, explain_rank, suspect_of
from tracekit.case.case import Case
from tracekit.case.cures import with_hosts
from tracekit.case.wording import of_step
from tracekit.causes import CAUSES, CPU_LAUNCH
from tracekit.findings import Cause, Cure
from tracekit.step_graph.replay import StepModel
from tracekit.thresholds.slowrank import KIND_RATIO, MINOR, NO_ACCIDENT, PEERS_SAMPLED, STAGE_TELLING_PEERS
from tracekit.units import F64, I64, NS_PER_US


@dataclass(frozen=True)
class SlowLaunch:
    """The rank with the slow host (row of Steps), and the saving of a step if it issues as its peers do; ns."""

    row: int
    price: Price
    pace: tuple[float, float]  # between two launches: of its own host, of its peers' hosts


@dataclass(frozen=True)
class Places:
    """The place of each operation, shared with other ranks: the same call, with the same ordinal in its step."""

    place: I64
    count: int  # of places

    def rows_of(self, where: slice) -> I64:
        """The operation at each place of the rank with operations `where`; -1 where it has none."""
        rows = np.full(self.count, -1, np.int64)
        rows[self.place[where]] = np.arange(where.start, where.stop)
        return rows


def slow_launch(case: Case) -> SlowLaunch | None:
    """The rank that costs the threshold or more because its host launches too slowly; None where none is proven.

    The others wait for it in every step, its host needs longer between launches than its peers' hosts, and a step is
    shorter if it issues as any of its peers does, by more than the model's error.
    """
    if case.timeline is None or len(case.steps.numbers) < NO_ACCIDENT or case.coverage.matched != 1:
        return None
    waited = waited_for(case)
    least = max(case.threshold_ns, case.residual_ns)
    for row in np.argsort(-waited.mean(axis=1), kind="stable")[:PEERS_SAMPLED].tolist():
        recurs = waited[row].min() >= MINOR * waited[row].mean() > 0
        pace = pace_beside(case, row) if recurs else None
        if pace is None or pace[0] <= KIND_RATIO * pace[1]:
            continue
        saved = saved_as_peers(case, row)
        if len(saved) >= STAGE_TELLING_PEERS and saved.min() >= least:
            price = Price(*np.quantile(saved, (0.0, 0.5, 1.0)).tolist())
            return SlowLaunch(row, price.widened(rank_doubt_ns(case, np.array([row]))), pace)
    return None


def host_launches_slowly(e: Evidence) -> Answer | None:
    """A host launches more slowly than its peers' hosts at a proven price, although its device works no longer."""
    found = slow_launch(e.case)
    return None if found is None else _blame_host(e.case, found)


def launched_late(case: Case, answer: Answer) -> Answer:
    """`answer`; if it names one rank for its gaps, the answer with a higher price that its host launches too slowly.

    Gaps in its own time are one part of what a slow host costs; waits of the others on other streams are the rest.
    """
    by_gaps = [CAUSES[s.cause].by_shape for s in answer.suspects] == [True]
    found = slow_launch(case) if by_gaps else None
    if found is None or found.price.best <= answer.gain:
        return answer
    return _blame_host(case, found) if case.steps.ranks[found.row] == answer.suspects[0].rank else answer


def _blame_host(case: Case, found: SlowLaunch) -> Answer:
    """The answer that names the rank of `found`."""
    rank = case.steps.ranks[found.row]
    (row,) = CAUSES[CPU_LAUNCH].signs[-1].rows
    evidence = explain_rank(case, found.row, (found.row,)).evidence
    mine, theirs = (pace / NS_PER_US for pace in found.pace)
    shown = (*evidence, findings.Evidence(row.what, mine, theirs, "µs"))
    suspect = suspect_of(case, found.row, found.price, np.inf, CPU_LAUNCH, shown, every=True)
    reason = (
        f"the host of rank {rank} launches more slowly than its peers' hosts, and the other ranks wait for it: "
        f"launching as fast as they do would save {of_step(case, found.price.best)}"
    )
    return replace(blame(case, reason, (suspect,), found.price.best), cures=_cures(case, found))


def _cures(case: Case, found: SlowLaunch) -> tuple[Cure, ...]:
    """Return the cure of the host and then of ranks that it hides, which cost the threshold then; empty without any."""
    rows = np.setdiff1d(case.significant(case.suspect_ns), [found.row])
    quick = next(_as_peers(case, found.row), None)
    behind = those_that_cost(case, rows, quick) if quick is not None and len(rows) else None
    answer = blame_ranks(case, behind) if behind is not None else None
    if behind is None or answer is None or answer.verdict != "slow_rank":
        return ()
    gain = Price.exactly(behind.gain).widened(rank_doubt_ns(case, np.array(behind.rows)))
    hidden = sorted(suspect.rank for suspect in answer.suspects)
    named: tuple[Cause, Cause] = CPU_LAUNCH, answer.suspects[0].cause
    made = (named[0], case.ranks_of([found.row]), found.price), (named[1], hidden, gain)
    return cures_of(case, made) if gain.low >= case.threshold_ns else ()


def saved_as_peers(case: Case, row: int) -> F64:
    """The saving of a step if the rank in `row` issues as a peer does, ns, for each of up to STAGE_TELLING_PEERS peers.

    Takes the first peers that run the same operations, and stops after a peer that saves less than the threshold.
    """
    saved: list[float] = []
    for quick in _as_peers(case, row):
        saved.append(case.model.recorded_ns - quick.recorded_ns)
        if len(saved) == STAGE_TELLING_PEERS or saved[-1] < case.threshold_ns:
            break
    return np.array(saved)


def _as_peers(case: Case, row: int) -> Iterator[StepModel]:
    """Yield for each peer with the same operations the model of the step in which `row` issues as the peer does."""
    places, stage = places_of(case), case.stage_of(row)
    model = None if case.timeline is None else with_hosts(case, case.timeline, [row])
    peers = np.roll(stage, -int(np.flatnonzero(stage == row)[0]))[1:].tolist()
    made = (_as_peer(case, model, places, (row, mate)) for mate in peers if model is not None)
    yield from (quick for quick in made if quick is not None)


def _as_peer(case: Case, model: StepModel, places: Places, pair: tuple[int, int]) -> StepModel | None:
    """`model` with the first row of `pair` issuing as the second does; None where they run different operations."""
    row, mate = pair
    mine, theirs = (places.rows_of(case.ops.of(case.steps.ranks[r])) for r in pair)
    if not np.array_equal(mine >= 0, theirs >= 0):
        return None
    own = np.full(len(case.ops.rank), -1, np.int64)
    own[theirs[theirs >= 0]] = mine[mine >= 0]
    runs = []
    for columns, lines in model.runs:
        by_row = {line.row: line for line in lines}
        if row not in by_row or mate not in by_row:
            return None
        other = by_row[mate]
        taken = replace(other, row=row, events=own[other.events].astype(np.int32), start=by_row[row].start)
        runs.append((columns, tuple(taken if line.row == row else line for line in lines)))
    return replace(model, runs=tuple(runs))


def places_of(case: Case) -> Places:
    """The places of all operations of `case`: the shape of the group, the operation, the step and the ordinal in it."""
    ops = case.ops
    kinds: dict[object, int] = {}
    sides = np.array([_sides(case, number, kinds) for number in range(len(ops.channels))], np.int64)
    sides = np.append(sides.reshape(-1, 2), [[-1, -1]], axis=0)  # channel -1 takes the last one
    first = np.array([c.members[0] for c in ops.channels] + [-1], np.int64)
    side = sides[ops.channel, (first[ops.channel] != ops.rank).astype(np.int64)]
    _, op = ops.kinds
    order = np.lexsort((ops.start, ops.step, op, side, ops.rank))
    columns = np.stack([side, op, ops.step, ops.rank])[:, order]
    new = np.append(True, (np.diff(columns, axis=1) != 0).any(axis=0))[: len(order)]
    begins = np.flatnonzero(new)
    turn = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    _, code = np.unique(np.stack([*columns[:3], turn]), axis=1, return_inverse=True)
    place = np.empty(len(order), np.int64)
    place[order] = code.reshape(-1)
    return Places(place, int(place.max(initial=-1)) + 1)


def _sides(case: Case, number: int, kinds: dict[object, int]) -> tuple[int, int]:
    """The kind of the channel `number` for its first member and for any other member; `kinds` numbers the kinds."""
    channel = case.ops.channels[number]
    if not channel.p2p:
        same = ("group", case.shape_of(channel) or len(channel.members))
        at = kinds.setdefault(same, len(kinds))
        return at, at
    source, to = (case.mesh.coordinates.get(m) for m in channel.members)
    apart = tuple(b - a for a, b in zip(source, to, strict=True)) if source and to else ("unknown",)
    return kinds.setdefault(("from", apart), len(kinds)), kinds.setdefault(("to", apart), len(kinds))
