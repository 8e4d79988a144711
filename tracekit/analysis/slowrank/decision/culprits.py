"""Rules that blame: a slow link, ranks, a stage or its loaders.

`cures_in_order` lists the faults next in line: what the step takes after the cure of the answer's fault, and after each
further cure.
"""

from dataclasses import replace

import numpy as np

from tracekit.analysis.slowrank.answers.culprit_answers import (
    blame_link,
    blame_ranks,
    launched_late,
    leave_link_open,
    proven,
)
from tracekit.analysis.slowrank.answers.imbalance_answers import (
    beside,
    blame_data,
    blame_in_turn,
    blame_loaders,
    blame_stage,
    elsewhere,
    leave_stage_open,
    spent_ns,
)
from tracekit.analysis.slowrank.answers.open_answers import leave_rank_open, lone_suspect
from tracekit.analysis.slowrank.evidence import Evidence, Faults, Kind
from tracekit.analysis.slowrank.gaps.evidence_gaps import bounds_of, least_ns
from tracekit.analysis.slowrank.hypotheses.candidates import Hypothesis, price
from tracekit.analysis.slowrank.hypotheses.data_imbalance import data_explains
from tracekit.analysis.slowrank.hypotheses.long_stage import LongStage
from tracekit.analysis.slowrank.hypotheses.moving_stalls import beside_stalls
from tracekit.analysis.slowrank.price import beyond_error, everybody_ns, share_in_words
from tracekit.analysis.slowrank.suspects import Answer, blame, cures_of, explain_rank, in_gaps, link_ends
from tracekit.case.wording import add_traces, first_in_words, of_step, slow_transfers
from tracekit.causes import NETWORK, STAGE_IMBALANCE
from tracekit.findings import Cause, Cure
from tracekit.step_graph.delays import by_delays
from tracekit.thresholds.slowrank import MAJORITY
from tracekit.units import ms


def slow_ranks_are_dearest(e: Evidence) -> Answer | None:
    """Ranks that work longer than their peers cost most, or reach the threshold beside a long stage that costs more.

    A stage is long by design, and so are all its ranks. A rank that needs longer than its peers for the same work has
    a fault, and the design must not hide that.
    """
    ranks = e.ranks
    if ranks is None or (e.dearest != Kind.RANKS and (not _by_design(e) or e.prices[Kind.RANKS] < e.least)):
        return None
    answer = beside(e.case, _slow_ranks(e, ranks), e.stage if e.prices[Kind.STAGE] >= e.least else None)
    return answer if answer.suspects or e.dearest == Kind.RANKS else None


def slow_link_is_dearest(e: Evidence) -> Answer | None:
    """A slow link costs most, or is proven at the threshold beside a long stage that costs more.

    Where it costs most, the answer is open if its price is not proven.
    """
    link, case, dearest = e.link, e.case, e.dearest == Kind.LINK
    if link is None or not (dearest or _by_design(e)):
        return None
    if (sure := proven(case, link)) is None:
        return leave_link_open(case, link) if dearest else None
    reported = dearest or sure.price.best >= e.least
    answer = _where_unseen_come_later(e, blame_link(case, sure)) if reported else None
    return beside(case, answer, _costly_stage(e)) if answer is not None else None


def lone_rank_of_a_stage(e: Evidence) -> Answer | None:
    """A rank that is alone on its stage has a slow device or host, by the work that all stages have in common.

    The design of a stage must not hide it, whichever stage that is.
    """
    stage, found, case = e.stage, e.lone, e.case
    if found is None or found.gain < e.least or not beyond_error(case, found.gain, found.price.low):
        return None
    if found.price.low < e.least and stage is not None and found.row in stage.loaders:
        return None  # the loader of the stage has a price that is proven
    if stage is not None and found.row in stage.rows:
        others = tuple(row for row in stage.rows if row != found.row)
        stage = replace(stage, rows=others or stage.rows, price=stage.price.without(found.gain))
    costly = stage is not None and not stage.idle and stage.price.best >= e.least
    suspect = lone_suspect(case, found)
    reason = f"rank {suspect.rank} is slow compared with ranks of other stages: {found.comparison}"
    answer = blame(case, f"{reason}; {of_step(case, found.gain)}", (suspect,), found.gain)
    return beside(case, _where_unseen_come_later(e, answer), stage if costly else None)


def long_stage_is_dearest(e: Evidence) -> Answer | None:
    """A long stage costs most: imbalance, unless uneven data costs more, loaders are late, or evidence is missing."""
    stage, case = _costly_stage(e), e.case
    if stage is None:
        return None
    mine, others = spent_ns(case, stage)
    if mine < others and e.unseen.most >= e.least:
        return None  # others compute as long beside communication, which may wait for unrecorded ranks
    if e.data > stage.price.best:
        return blame_data(case, e.data, stage)
    sure = proven(case, stage)
    return leave_stage_open(case, stage) if sure is None else _long_stage(e, sure)


def faults_hide_each_other(e: Evidence) -> Answer | None:
    """Slow ranks and a slow link each cost the threshold once the other is cured, although neither does alone."""
    case, link, found = e.case, e.any_link, e.behind_link
    if link is None or found is None:
        return None
    faults = Faults(case, found.rows, link)
    transfers = faults.price(Kind.LINK, [Kind.RANKS])
    least = min(faults.price(Kind.RANKS, [Kind.LINK]).low, transfers.low)
    if least < e.least:
        return None
    answer = _slow_ranks(e, found)
    if answer.verdict != "slow_rank":
        return None
    ranks, alone = faults.price(Kind.RANKS), faults.price(Kind.LINK)
    gain = ranks.best + transfers.best
    reason = (
        f"{first_in_words([s.rank for s in answer.suspects])} worked longer than its peers, and "
        f"{slow_transfers(link.ranks, link.ratio)}; each hides the other: both cures save {of_step(case, gain)}, and "
        f"either alone {ms(max(ranks.best, alone.best)):.1f} ms or less"
    )
    hidden = (replace(s, lost_ms_low=min(ms(ranks.low), s.lost_ms_per_step)) for s in answer.suspects)
    ends = link_ends(case, link.ranks, replace(transfers, low=alone.low), link.z)
    return replace(answer, reason=reason, suspects=(*hidden, *ends), gain=gain, least=least)


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
    if link is None or proven(e.case, link) is not None:
        return ""
    return (
        f"; {slow_transfers(link.ranks, link.ratio)}, which may cost up to {ms(link.price.high):.1f} ms beside that"
        + (f", but {link.layout}" if link.layout else "")
    )


def _slow_ranks(e: Evidence, found: Hypothesis) -> Answer:
    """The answer that blames slow ranks, unless the model errs by more, or data or stalls explain their excess."""
    case = e.case
    if not beyond_error(case, found.gain, least_ns(case, np.array(found.rows))):
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
            if stalls.of_work and price(case, found) > MAJORITY * stalls.gain:
                why = "several ranks work longer in turn, and may do so most on one by chance"
                return leave_rank_open(case, bounds_of(case, np.array(found.rows), why))
            return blame_in_turn(case, stalls, hosts=hosts)
        found = rest or found
    answer = launched_late(case, blame_ranks(case, found))
    work = case.computed if case.on_gpus else case.met.explained  # no delay of a host
    late = answer.verdict == "slow_rank" and in_gaps(case, found.rows)
    if late and by_delays(case.steps.own - work, case.met.peers.groups, found.rows[0]):
        why = "steps vary rather by a delay of each rank than by noise, and these may be longest on one rank by chance"
        return leave_rank_open(case, bounds_of(case, np.array(found.rows), why))
    return _where_unseen_come_later(e, answer)


def _where_unseen_come_later(e: Evidence, answer: Answer) -> Answer:
    """The answer with lowest prices that hold although ranks without a trace may come later than its suspects."""
    late = ms(e.unseen.awaited)
    each = (replace(s, lost_ms_low=s.lost_ms_low and max(s.lost_ms_low - late, 0.0)) for s in answer.suspects)
    return replace(answer, suspects=tuple(each)) if late else answer


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
    made = {first: faults.price(first)}
    while rest := [kind for kind in faults.kinds if kind not in made]:
        prices = {kind: faults.price(kind, made) for kind in rest}
        kind = max(prices, key=lambda k: prices[k].best)
        if prices[kind].low < e.least:
            break
        made[kind] = prices[kind]
    if len(made) < 2:
        return ()
    return cures_of(e.case, [(*_named(e, faults, kind), saved) for kind, saved in made.items()])


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
        sure = found is not None and _slow_ranks(e, found).verdict == "slow_rank"
        rows = np.array(found.rows if found is not None and sure else (), np.int64)
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
