"""Rules that blame: a slow link, ranks, a stage or its loaders, or a rank without a trace that may cost more.

`cures_in_order` lists the faults next in line: what the step takes after the cure of the answer's fault, and after each
further cure.
"""

from dataclasses import replace

import numpy as np

from tracekit.analysis.slowrank.answers.culprit_answers import (
    blame_both,
    blame_link,
    blame_lone_rank,
    blame_ranks,
    least_proven,
    leave_link_open,
    shown,
)
from tracekit.analysis.slowrank.answers.imbalance_answers import (
    beside,
    blame_data,
    blame_in_turn,
    blame_loaders,
    blame_stage,
    elsewhere,
    leave_stage_open,
)
from tracekit.analysis.slowrank.answers.open_answers import leave_rank_open, leave_unseen_open
from tracekit.analysis.slowrank.answers.slow_launch import launched_late
from tracekit.analysis.slowrank.evidence import Evidence, Faults, Kind
from tracekit.analysis.slowrank.gaps.evidence_gaps import Undecided, bounds_of, least_ns
from tracekit.analysis.slowrank.hypotheses.candidates import Hypothesis, price
from tracekit.analysis.slowrank.hypotheses.data_imbalance import data_explains
from tracekit.analysis.slowrank.hypotheses.long_stage import LongStage
from tracekit.analysis.slowrank.hypotheses.moving_stalls import beside_stalls
from tracekit.analysis.slowrank.price import everybody_ns, share_in_words
from tracekit.analysis.slowrank.suspects import Answer, cures_of, explain_rank, in_gaps, left_open
from tracekit.analysis.slowrank.wording import add_traces, slow_transfers
from tracekit.causes import NETWORK, STAGE_IMBALANCE
from tracekit.findings import Cause, Cure
from tracekit.step_graph.delays import by_delays
from tracekit.units import ms


def one_rank_alone(e: Evidence) -> Answer | None:
    """Only one rank was read, so there is nothing to compare it with."""
    ranks = e.case.ops.ranks
    if len(ranks) > 1:
        return None
    return left_open(f"only rank {ranks[0]} was read, so it cannot be compared; add the other ranks' traces")


def unseen_rank_is_dearer(e: Evidence) -> Answer | None:
    """The recorded ranks wait for a rank without a trace, and lose at least as much by it as by anything recorded."""
    dearest, unseen = max(e.prices.values()), e.unseen
    awaited = max(dearest - e.least, e.case.suspect_ns)
    if unseen.awaited < awaited or unseen.most < max(e.least, dearest):
        return None
    return leave_unseen_open(e.case, unseen, e.lone, e.peerless)


def slow_ranks_are_dearest(e: Evidence) -> Answer | None:
    """Ranks that work longer than their peers cost most, or reach the threshold beside a long stage that costs more.

    A stage is long by design, and so are all its ranks. A rank that needs longer than its peers for the same work has
    a fault, and the design must not hide that.
    """
    ranks = e.ranks
    if ranks is None or (e.dearest != Kind.RANKS and (not _by_design(e) or e.prices[Kind.RANKS] < e.least)):
        return None
    doubted = _dearer_in_doubt(e, ranks)
    answer = _slow_ranks(e, ranks) if doubted is None else leave_rank_open(e.case, doubted)
    answer = beside(e.case, answer, e.stage if e.prices[Kind.STAGE] >= e.least else None)
    return answer if answer.suspects or e.dearest == Kind.RANKS else None


def _dearer_in_doubt(e: Evidence, found: Hypothesis) -> Undecided | None:
    """The undecided ranks, where one with a larger excess than `found` costs nothing or more than that; else None.

    A cheaper rank is not blamed while a dearer one is in doubt.
    """
    if (open_ := e.undecided) is None:
        return None
    excess = np.nan_to_num(e.case.found.mean)
    larger = set(np.flatnonzero(excess > excess[list(found.rows)].max()).tolist())
    prices = (p for row, p in zip(open_.rows, open_.prices, strict=True) if row in larger)
    return open_ if any(p.low < e.least and p.high > found.gain for p in prices) else None


def slow_link_is_dearest(e: Evidence) -> Answer | None:
    """A slow link costs most, or is proven at the threshold beside a long stage that costs more.

    Where it costs most, the answer is open if its price is not proven.
    """
    link, case, dearest = e.link, e.case, e.dearest == Kind.LINK
    if link is None or not (dearest or _by_design(e)):
        return None
    if not shown(case, link):
        return leave_link_open(case, link) if dearest else None
    proven = least_proven(case, link)
    reported = dearest or proven.price.best >= e.least
    answer = _where_unseen_come_later(e, blame_link(case, proven)) if reported else None
    return beside(case, answer, _costly_stage(e)) if answer is not None else None


def lone_rank_of_a_stage(e: Evidence) -> Answer | None:
    """A rank that is alone on its stage has a slow device or host, by the work that all stages have in common.

    The design of a stage must not hide it, whichever stage that is.
    """
    stage, found, case = e.stage, e.lone, e.case
    if found is None or found.gain < max(e.least, case.residual_ns):
        return None
    if found.price.low < e.least and stage is not None and found.row in stage.loaders:
        return None  # the loader of the stage has a price that is proven
    if stage is not None and found.row in stage.rows:
        others = tuple(row for row in stage.rows if row != found.row)
        stage = replace(stage, rows=others or stage.rows, price=stage.price.without(found.gain))
    costly = stage is not None and not stage.idle and stage.price.best >= e.least
    return beside(case, blame_lone_rank(case, found), stage if costly else None)


def long_stage_is_dearest(e: Evidence) -> Answer | None:
    """A long stage costs most: imbalance, unless uneven data costs more, loaders are late, or evidence is missing."""
    stage, case = _costly_stage(e), e.case
    if stage is None:
        return None
    alone, open_ = e.only_step, e.undecided
    if alone is not None and alone.most > stage.price.best:
        return leave_rank_open(case, alone)
    if open_ is not None and case.coverage.matched != 1 and open_.most > stage.price.best:
        return leave_rank_open(case, open_)  # unmatched waits: this rank alone may make the stage long
    if e.data > stage.price.best:
        return blame_data(case, e.data, stage)
    if not shown(case, stage):
        return leave_stage_open(case, stage)
    return _long_stage(e, least_proven(case, stage))


def faults_hide_each_other(e: Evidence) -> Answer | None:
    """Slow ranks and a slow link each cost the threshold once the other is cured, although neither does alone."""
    link, found, case = e.any_link, e.behind_link, e.case
    if link is None or found is None:
        return None
    faults = Faults(case, found.rows, link)
    ranks, transfers = faults.price(Kind.RANKS, [Kind.LINK]), faults.price(Kind.LINK, [Kind.RANKS])
    least = min(ranks.low, transfers.low)
    if least < e.least:
        return None
    answer = _slow_ranks(e, found)
    if answer.verdict != "slow_rank":
        return None
    alone = faults.price(Kind.RANKS), faults.price(Kind.LINK)
    both = blame_both(case, answer, link, replace(transfers, low=alone[1].low), alone)
    return replace(both, least=least)


def _by_design(e: Evidence) -> bool:
    """Whether a role, or a long stage without late loaders, costs most: a design, which must not hide a fault."""
    stage = _costly_stage(e)
    return e.dearest == Kind.ROLE or (stage is not None and not stage.loaders)


def _costly_stage(e: Evidence) -> LongStage | None:
    """The long stage where it costs more than ranks and links; None otherwise."""
    return e.stage if e.dearest == Kind.STAGE else None


def _long_stage(e: Evidence, stage: LongStage) -> Answer:
    """The answer that blames a stage of proven price, or its loaders.

    Open if only one of its ranks has a trace.
    """
    case = e.case
    if stage.loaders:
        return blame_loaders(case, stage)
    mesh, mine = case.mesh, case.mesh.stage(case.steps.ranks[stage.rows[0]])
    unseen = [r for r in case.missing if r in mesh.coordinates and mesh.stage(r) == mine]
    if len(stage.rows) == 1 and unseen:
        why = "no other rank of the stage was read: the traces cannot separate a slow rank from a long stage"
        return leave_stage_open(case, stage, why, add_traces(unseen))
    besides = "" if e.accident else elsewhere(case, stage, e.slow)
    shares = share_in_words(
        case, "typical work on that stage", stage.price.best, {"even micro-batches": e.data}
    )
    answer = blame_stage(case, stage, shares + besides + _beside_link(e))
    return replace(answer, gain=everybody_ns(case, answer.gain))


def _beside_link(e: Evidence) -> str:
    """The words on an unproven link that may cost the threshold beside a stage; empty without one."""
    link = e.link
    if link is None or shown(e.case, link):
        return ""
    return (
        f"; {slow_transfers(link.ranks, link.ratio)}, which may cost up to {ms(link.price.high):.1f} ms beside that"
        + (f", but {link.layout}" if link.layout else "")
    )


def _slow_ranks(e: Evidence, found: Hypothesis) -> Answer:
    """The answer that blames slow ranks, unless the model errs by more, or data or stalls explain their excess."""
    case = e.case
    proven = least_ns(case, np.array(found.rows))
    if found.gain < case.residual_ns and proven < max(e.least, case.pinned_residual_ns):
        why = (
            f"the model of the step puts the cost at {ms(found.gain):.1f} ms, but differs from the recorded steps by "
            f"{ms(case.residual_ns):.1f} ms"
        )
        return leave_rank_open(case, bounds_of(case, np.array(found.rows), why))
    if data_explains(case, e.data, found.rows, found.gain) and not in_gaps(case, found.rows):
        return blame_data(case, e.data)
    for stalls, hosts in ((e.stalls, True), (e.moving, False)):
        rest = found if stalls is None else beside_stalls(case, stalls, found)
        if stalls is not None and (rest is None or price(case, rest) < e.least):
            return blame_in_turn(case, stalls, hosts=hosts)
        found = rest or found
    answer = launched_late(case, blame_ranks(case, found))
    own, groups = case.steps.own - case.met.explained, case.met.peers.groups
    idle = answer.verdict == "slow_rank" and in_gaps(case, found.rows)
    if idle and by_delays(own, groups, found.rows[0]):
        why = "steps vary rather by a delay of each rank than by noise, and these may be longest on one rank by chance"
        return leave_rank_open(case, bounds_of(case, np.array(found.rows), why))
    return _where_unseen_come_later(e, answer)


def _where_unseen_come_later(e: Evidence, answer: Answer) -> Answer:
    """The answer with lowest prices that hold although ranks without a trace may come later than its suspects."""
    later = ms(e.unseen.awaited)
    named = (
        replace(s, lost_ms_low=s.lost_ms_low and max(s.lost_ms_low - later, 0.0)) for s in answer.suspects
    )
    return replace(answer, suspects=tuple(named)) if later else answer


def cures_in_order(e: Evidence, answer: Answer) -> tuple[Cure, ...]:
    """Return the cure of the answer's fault and those of faults of other kinds that then cost the threshold.

    The dearest comes first; each is priced after those before it. Empty where no other kind of fault is proven.
    """
    first = _kind_of(answer)
    if first is None:
        return ()
    faults = _faults(e, answer, first)
    if first not in faults.kinds:
        return ()
    done, made = [first], [(first, faults.price(first))]
    while rest := [kind for kind in faults.kinds if kind not in done]:
        prices = {kind: faults.price(kind, done) for kind in rest}
        kind = max(prices, key=lambda k: prices[k].best)
        if prices[kind].low < e.least:
            break
        done.append(kind)
        made.append((kind, prices[kind]))
    if len(made) < 2:
        return ()
    return cures_of(e.case, [(*_named(e, faults, kind), saved) for kind, saved in made])


def _kind_of(answer: Answer) -> Kind | None:
    """The kind of the fault that the answer names; None where it names none that the model can cure."""
    if not answer.suspects:
        return None
    if answer.blames_stage:
        return Kind.STAGE
    return {"slow_rank": Kind.RANKS, "slow_link": Kind.LINK}.get(answer.verdict)


def _faults(e: Evidence, answer: Answer, first: Kind) -> Faults:
    """The proven faults of the case: ranks of the answer, or ranks that another fault hides."""
    case, stage = e.case, e.stage
    costly = stage if stage is not None and not stage.idle and not stage.loaders else None
    link = e.any_link if e.any_link is not None and not e.any_link.doubted else None
    rows = case.significant(case.threshold_ns)
    if first == Kind.RANKS:
        named = [case.steps.row(s.rank) for s in answer.suspects if s.cause != NETWORK]
        rows = np.intersect1d(named, case.significant(0.0))
    elif e.accident:
        rows = rows[:0]
    elif first == Kind.LINK:
        found = e.behind_link
        proven = found is not None and _slow_ranks(e, found).verdict == "slow_rank"
        rows = np.array(found.rows if found is not None and proven else (), np.int64)
    return Faults(case, tuple(rows.tolist()), link, costly)


def _named(e: Evidence, faults: Faults, kind: Kind) -> tuple[Cause, tuple[int, ...]]:
    """The cause of a kind of fault, and its ranks."""
    ranks = e.case.steps.ranks
    if kind == Kind.LINK and faults.link is not None:
        return NETWORK, faults.link.ranks
    if kind == Kind.STAGE and faults.stage is not None:
        return STAGE_IMBALANCE, tuple(ranks[row] for row in faults.stage.rows)
    cause = explain_rank(e.case, faults.rows[0], faults.rows).named
    return cause, tuple(ranks[row] for row in faults.rows)
