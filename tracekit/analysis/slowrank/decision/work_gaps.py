"""Gaps of work: it varies between ranks or steps, and nothing that was recorded explains why.

In any job noise makes one of many ranks the longest. Chance lengthens single operations, and averages out over a part
of a step. Where whole parts are longer, on changing ranks, there is a cause, although none was found.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.evidence import Evidence, Gap
from tracekit.analysis.slowrank.gaps.evidence_gaps import REPEAT, more_steps, what_would_decide, why_open
from tracekit.analysis.slowrank.hypotheses.data_imbalance import dealt_price, dispersion
from tracekit.analysis.slowrank.hypotheses.lone_rank import lone_ranks, varies_ns
from tracekit.analysis.slowrank.hypotheses.uneven_work import like_quick, shorter_ns
from tracekit.analysis.slowrank.suspects import up_to
from tracekit.case.case import Case
from tracekit.case.wording import of_step, ranks_in_words
from tracekit.step_graph.delays import exponential_odds
from tracekit.step_graph.micro_batches import unexplained_ns
from tracekit.step_graph.rank_timeline import Cuts, RankTimeline
from tracekit.step_graph.statistics import spread
from tracekit.steps.features import most_loading_ns, within_spans_ns
from tracekit.steps.host_work import FOR_OTHERS
from tracekit.steps.medians import sampled
from tracekit.thresholds.slowrank import CLEAR_SHARE, MINOR, RANKS_SAMPLED, UNEVEN_RATIO, Z_LIMIT
from tracekit.timing.measured import Rows
from tracekit.units import ms


def table_is_unexplained(e: Evidence) -> Iterator[Gap]:
    """The operations of a table vary, and no rank, link or micro-batch explains why."""
    case, table = e.case, e.case.table
    lost = unexplained_ns(case, table) if table is not None else 0.0
    if table is None or lost < CLEAR_SHARE * table.recorded_ns:
        return
    what = (
        f"typical work of every operation would save {ms(lost):.1f} ms of {ms(case.step_ns):.1f} ms: work varies, and "
        "no rank, link or micro-batch explains it"
    )
    yield Gap(
        what, lost, f"{more_steps(case)}, and run tracekit whatif for each type of operation (--fix op=...)"
    )


def work_varies(e: Evidence) -> Iterator[Gap]:
    """Work varies between ranks by more than chance, or costs far more, and nothing that was recorded explains it."""
    case, lost = e.case, varied_ns(e.case)
    why = "more than chance explains: whole parts of steps are longer"
    if not lost and (lost := _beyond_noise_ns(e)):
        why = "which is more than noise usually costs: parts of steps are longer"
    what = (
        f"typical work on all ranks would save {of_step(case, lost)}, {why}, on a "
        "different rank each time, and the recording does not show the cause"
    )
    decide = (
        f"{more_steps(case)}, with all ranks that work on the same data: uneven data makes all of them slower "
        "together, an intermittently slow device makes only one slower"
    )
    if lost > 0:
        yield Gap(what, lost, decide)


def data_may_cost(e: Evidence) -> Iterator[Gap]:
    """Uneven data costs time, and not all waits were matched."""
    case, dealt = e.case, dealt_price(e.case)
    what = (
        "work is distributed unevenly, because kernels vary together on all ranks that work on the same data; the cost "
        f"is between {ms(dealt.low):.1f} and {of_step(case, dealt.high)} and is not "
        f"known more exactly: {why_open(case)}"
    )
    if dealt.high > 0 and case.coverage.matched != 1:
        yield Gap(what, dealt.high, what_would_decide(case))


def hosts_meet(e: Evidence) -> Iterator[Gap]:
    """Devices are idle while hosts wait for other hosts outside the kernels: the last host, if all were read, least."""
    case, ranks, read = e.case, e.case.steps.ranks, (e.case.run, e.case.ops, e.case.steps)
    idle = [r for n, r in enumerate(ranks) if case.on_gpu(n) and most_loading_ns(*read[1:], r) >= e.least]
    waits = [within_spans_ns(*read, r, FOR_OTHERS) for r in sampled(idle, RANKS_SAMPLED)] or [0.0]
    usual = float(np.median(waits))
    if usual >= e.least:
        late = {row: usual - wait for row, wait in enumerate(waits) if usual - wait >= e.least}
        what = f"devices are idle for {of_step(case, usual)} while their hosts wait for other hosts outside the kernels"
        yield Gap(what, usual, _STACKS, up_to(case, late if len(waits) == len(ranks) else {}))


_STACKS: Final = (
    "record with_stack=True: the rank that waits least comes last, and its stacks show what it does before"
)


def lone_ranks_vary(e: Evidence) -> Iterator[Gap]:
    """Ranks without a peer work longer in some steps than in their quickest one.

    Uneven data and an intermittently slow device look alike there; steps that take equally long hide neither.
    """
    case, rows = e.case, lone_ranks(e.case)
    lost = varies_ns(case, rows) if len(rows) else 0.0
    if lost < e.least:
        return
    why = "if every step were as quick as the quickest one: uneven data and a device slow at times would look alike"
    if len(np.intersect1d(rows, case.alone_in_program)):
        why = "at most: no other rank runs their program and shows what it takes on a sound device"
    ranks = ranks_in_words(case.ranks_of(rows))
    what = f"no other rank does the work of {ranks}: a step would save {of_step(case, lost)} {why}"
    yield Gap(what, lost, REPEAT, up_to(case, {int(r): varies_ns(case, np.array([r])) for r in rows}))


def few_ranks_are_quick(e: Evidence) -> Iterator[Gap]:
    """Few ranks work shorter than all their peers: by less work, or all others are slow. Known work leaves no doubt."""
    case, quick = e.case, [one for one in e.case.met.peers.quick if one.work == "unknown"]
    saved = like_quick(case, quick).high if quick else 0.0
    for one in quick:
        shorter = f"{ms(shorter_ns(case, one)):.1f} ms a step shorter than the {len(one.others)} others of the stage"
        what = f"{ranks_in_words(case.ranks_of(one.rows))} work {shorter}: less to do, or all the others are slow"
        yield Gap(what, saved, _SIZES, up_to(case, dict.fromkeys(one.others.tolist(), saved)))


_SIZES: Final = (
    "record all kernels with their grids, or the shapes of operators (record_shapes=True): they show whether the work "
    f"is equal; or {REPEAT}"
)


def _beyond_noise_ns(e: Evidence) -> float:
    """What a step saves if ranks take their peers' median time in each part of each step, ns; 0 if noise costs as much.

    Noise costs less than a minor share; less than a clear one where single delays fit better than noise, although that
    is not proven. The one slow step of a rank is an accident.
    """
    case = e.case
    if case.timeline is None or not case.on_gpus:
        return 0.0
    lost = case.model.recorded_ns - case.model.levelled_ns(case.met.peers.groups) - case.residual_ns
    lost -= e.once.gain if e.once is not None else 0.0
    delays = max(exponential_odds(case.steps.own, case.stages)) > 0
    return lost if lost >= (CLEAR_SHARE if delays else MINOR) * case.step_ns else 0.0


def varied_ns(case: Case) -> float:
    """The time that a step saves if only chance varies between ranks that do the same work, ns; 0 if only it does.

    The model's error is subtracted, and single outlying parts are left out as accidents. Returns 0 for ranks on CPUs,
    because their threads get unequal shares of a processor.
    """
    model = case.timeline
    if model is None or not case.on_gpus:
        return 0.0
    ratio = dispersion(case).ratio
    if ratio <= UNEVEN_RATIO:
        return 0.0
    cuts: dict[tuple[int, int], Cuts] = {}
    for n, (_, lines) in enumerate(model.runs):
        cuts |= {(n, row): found for row, found in _by_chance(lines, case.stages, ratio).items()}
    return max(model.recorded_ns - model.rescaled_ns(cuts) - case.residual_ns, 0.0)


def _by_chance(lines: tuple[RankTimeline, ...], stages: Rows, ratio: float) -> dict[int, Cuts]:
    """Row → (cuts of own time, a factor for each part) after which parts vary only as much as chance explains.

    Chance makes up 1 / `ratio` of the variance of whole parts.
    """
    by_row = {line.row: line for line in lines}
    found: dict[int, Cuts] = {}
    for stage in stages:
        rows = [row for row in stage.tolist() if row in by_row]
        if len(rows) < 2:
            continue
        took = np.stack([np.diff(by_row[row].blocks) for row in rows])
        usual = np.median(took, axis=0)
        lasting = (took - usual).sum(axis=1, keepdims=True) / max(float(usual.sum()), 1.0)
        off = took - usual * (1.0 + lasting)
        whim = np.abs(off) > Z_LIMIT * spread(off)
        wanted = took - np.where(whim, 0.0, off) * (1.0 - np.sqrt(1.0 / ratio))
        factor = np.maximum(wanted, 0.0) / np.maximum(took, 1.0)
        found |= {row: (by_row[row].blocks, f) for row, f in zip(rows, factor, strict=True)}
    return found
