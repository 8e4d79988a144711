"""An excess that is hardly chance, and no proof either: it leaves the answer open, for it is no sign of health."""

import numpy as np

from tracekit.analysis.slowrank.answers.faint_node import faint_node_answer
from tracekit.analysis.slowrank.answers.open_answers import (
    candidates_of,
)
from tracekit.analysis.slowrank.answers.stage_answers import (
    of_stage,
    stage_of,
)
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.gaps.evidence_gaps import bounds_of, most_ns
from tracekit.analysis.slowrank.hypotheses.long_stage import faint_stage
from tracekit.analysis.slowrank.suspects import Answer, left_open
from tracekit.step_graph.statistics import confidence
from tracekit.thresholds.slowrank import FAINT_CONFIDENCE, MIN_LOST_SHARE, PROVING_STEPS, Z_LIMIT
from tracekit.units import ms


def faint_answer(case: Case) -> Answer | None:
    """Return the answer about ranks, a stage or a node whose excess chance hardly explains; None without any."""
    return faint_rank_answer(case) or faint_stage_answer(case) or faint_node_answer(case)


def faint_rank_answer(case: Case) -> Answer | None:
    """Return the answer that names ranks whose excess chance hardly explains; None where there are none."""
    z = np.nan_to_num(case.found.z, nan=0.0)
    sure = np.array([confidence(v, len(z)) for v in z.tolist()])
    hardly = (sure > FAINT_CONFIDENCE) & (z <= case.found.limit)
    longer = np.nan_to_num(case.found.mean, nan=0.0) > MIN_LOST_SHARE * case.step_ns
    rows = np.flatnonzero(hardly & longer)
    if len(case.steps.numbers) == 1 or not len(rows) or most_ns(case, rows) < MIN_LOST_SHARE * case.step_ns:
        return None
    found = bounds_of(case, rows)
    first, wanted = found.rows[0], PROVING_STEPS
    reason = (
        f"rank {case.steps.ranks[first]} works {ms(float(case.found.mean[first])):.1f} ms of "
        f"{ms(case.step_ns):.1f} ms a step longer than its peers; with the noise of {len(case.steps.numbers)} steps "
        f"that is hardly chance (z {z[first]:.1f}), and no proof (z {case.found.limit:.1f})"
    )
    decide = f"record {wanted} steps or more on every rank"
    return left_open(reason, decide, candidates_of(case, found))


def faint_stage_answer(case: Case) -> Answer | None:
    """Return the answer that leaves it open whether a stage is too long; None where chance explains the longest."""
    stage = faint_stage(case)
    if stage is None:
        return None
    reason = (
        f"pipeline stage {stage_of(case, stage)} works {ms(stage.over):.1f} ms of "
        f"{ms(case.step_ns):.1f} ms a step longer than the others, which costs {ms(stage.gain):.1f} ms; with the noise "
        f"of {len(case.steps.numbers)} steps that is hardly chance (z {stage.z:.1f}), and no proof (z {Z_LIMIT:.1f})"
    )
    decide = f"record {PROVING_STEPS} steps or more on every rank"
    candidates = of_stage(case, stage, "stage_imbalance")
    return left_open(reason, decide, candidates)
