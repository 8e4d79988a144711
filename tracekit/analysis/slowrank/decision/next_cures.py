"""Faults next in line: what the step takes after the cure of the answer's fault, and after each further cure."""

import numpy as np

from tracekit.analysis.slowrank.decision.culprits import slow_ranks_of
from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.hypotheses.candidates import significant_rows
from tracekit.analysis.slowrank.hypotheses.cures import Faults, Kind
from tracekit.analysis.slowrank.hypotheses.slow_link import SlowLink
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer, explain_rank
from tracekit.causes import NETWORK, STAGE_IMBALANCE
from tracekit.findings import Cause, Cure
from tracekit.thresholds.slowrank import MIN_LOST_SHARE
from tracekit.units import ms


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
    return _listed(e, faults, made) if len(made) > 1 else ()


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
    link = e.any_link if _is_proven(e.any_link) else None
    rows = significant_rows(case, MIN_LOST_SHARE)
    if first == Kind.RANKS:
        named = [case.steps.row(s.rank) for s in answer.suspects if s.cause != NETWORK]
        rows = np.intersect1d(named, significant_rows(case, 0.0))
    elif e.accident:
        rows = rows[:0]
    elif first == Kind.LINK:
        found = e.behind_link
        proven = found is not None and slow_ranks_of(e, found).verdict == "slow_rank"
        rows = np.array(found.rows if found is not None and proven else (), np.int64)
    return Faults(case, tuple(rows.tolist()), link, costly)


def _is_proven(link: SlowLink | None) -> bool:
    """Whether transfers are slower than their peers' for certain."""
    return link is not None and not link.guessed and not link.layout


def _listed(e: Evidence, faults: Faults, made: list[tuple[Kind, Price]]) -> tuple[Cure, ...]:
    """The cures of kinds with their prices, and the step after each."""
    left, cures = e.case.step_ns, []
    for kind, price in made:
        left -= price.best
        cause, ranks = _named(e, faults, kind)
        cures.append(Cure(cause, ranks, ms(price.best), ms(price.low), ms(price.high), ms(left)))
    return tuple(cures)


def _named(e: Evidence, faults: Faults, kind: Kind) -> tuple[Cause, tuple[int, ...]]:
    """The cause of a kind of fault, and its ranks."""
    ranks = e.case.steps.ranks
    if kind == Kind.LINK and faults.link is not None:
        return NETWORK, faults.link.ranks
    if kind == Kind.STAGE and faults.stage is not None:
        return STAGE_IMBALANCE, tuple(ranks[row] for row in faults.stage.rows)
    cause, _ = explain_rank(e.case, faults.rows[0], faults.rows)
    return cause, tuple(ranks[row] for row in faults.rows)
