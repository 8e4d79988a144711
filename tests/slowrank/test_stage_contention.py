"""Communication makes kernels of a stage longer: that is no more work, and more work is found beside it."""

from dataclasses import replace

import numpy as np
import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import grid, prepared
from tracekit.analysis.slowrank.decision.culprits import long_stage_is_dearest
from tracekit.analysis.slowrank.decision.decide import concluded
from tracekit.analysis.slowrank.evidence import Evidence, Kind
from tracekit.analysis.slowrank.hypotheses.long_stage import LongStage
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.unrecorded.unrecorded import Unseen
from tracekit.expected.contention import stage_contention

MESH = grid(tp=4, pp=3)
STEPS, LAYERS, TRANSFER, WORLD = 4, 6, 50.0, 3
SHARED, LONGER = 1200.0, 300.0


def trained(folder, beside, more, added=LONGER, others=1.0):
    """Stage `beside` computes beside a collective in two layers of three; `more` is the factor of stages' work.

    added: by how much the products beside the collective are longer, µs; others: the factor of those in other layers.
    """
    stages = [[r for r in sorted(MESH.coordinates) if MESH.coords(r)["pp"] == p] for p in range(3)]
    lines = [Timeline(rank) for rank in sorted(MESH.coordinates)]
    for step in range(STEPS):
        begins = [line.at for line in lines]
        for layer in range(LAYERS):
            for line in lines:
                stage = MESH.coords(line.rank)["pp"]
                factor = more.get(stage, 1.0) * (1 + 0.002 * ((line.rank * 5 + layer + step) % 3))
                line.compute(700 * factor, "attention")
                busy = stage == beside and layer % 3
                if busy:
                    line.beside(stage, SHARED, step * LAYERS + layer)
                product = 1500 * factor * (1.0 if layer % 3 else others)
                line.compute(product + (added if busy else 0.0), "mlp")
            handles = {line.rank: line.post(WORLD) for line in lines}
            last = max(at for at, *_ in handles.values())
            for line in lines:
                line.finish(handles[line.rank], last + TRANSFER)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    groups = {p: tuple(ranks) for p, ranks in enumerate(stages)} | {WORLD: tuple(range(12))}
    names = {WORLD: "world", **dict.fromkeys(range(3), "side")}
    return prepared(write_run(folder, lines, groups, names, 12), MESH)


def test_the_stretch_of_a_stage_is_measured(tmp_path):
    case = trained(tmp_path, beside=0, more={})
    stages = [rows for rows in case.stages if len(rows)]
    added = stage_contention(case, stages)
    assert added[0] == pytest.approx(LAYERS * 2 / 3 * LONGER * 1e3, rel=0.05)
    assert not added[1:].any()


def test_other_products_of_one_name_are_not_compared(tmp_path):
    """Products beside communication that take four times as long as others: communication adds less, so they differ."""
    case = trained(tmp_path, beside=0, more={}, added=4500.0)
    assert not stage_contention(case, [rows for rows in case.stages if len(rows)]).any()


def test_products_of_two_lengths_are_kept_apart(tmp_path):
    """On its own stage only the longer ones, as of a backward, run without communication; others show the shorter."""
    case = trained(tmp_path, beside=0, more={}, others=2.0)
    added = stage_contention(case, [rows for rows in case.stages if len(rows)])
    assert added[0] == pytest.approx(LAYERS * 2 / 3 * LONGER * 1e3, rel=0.05)
    assert not added[1:].any()


@pytest.mark.quick(1)
@pytest.mark.parametrize("beside", [0, 1])
def test_a_stage_beside_communication_is_not_long(tmp_path, beside):
    answer = concluded(trained(tmp_path, beside=beside, more={}))[1]
    assert (answer.verdict, answer.suspects) == ("healthy", ())


def test_more_work_is_found_beside_contention(tmp_path):
    """Stage 0 is longer by contention, stage 2 by work: without contention the one with more work stands out."""
    answer = concluded(trained(tmp_path, beside=0, more={2: 1.2}))[1]
    assert answer.cause == "stage_imbalance"
    assert {s.coords["pp"] for s in answer.suspects} == {2}


@pytest.mark.parametrize("unseen", [False, True], ids=["recorded", "unrecorded"])
def test_contention_with_unrecorded_ranks_makes_no_other_stage_long(tmp_path, unseen):
    """Stage 2 works shorter than stage 0, whose communication may wait for a rank that left no trace."""
    case = trained(tmp_path, beside=0, more={1: 1.1, 2: 1.02})
    rows = tuple(case.stages[2].tolist())
    over = 0.04 * case.step_ns
    evidence = Evidence(case)
    vars(evidence).update(
        stage=LongStage(rows, 50.0, over, Price.exactly(over)), dearest=Kind.STAGE,
        unseen=Unseen(case.step_ns if unseen else 0.0, 0.0, ()),
    )  # fmt: skip
    answer = long_stage_is_dearest(evidence)
    assert (answer is None) is unseen
    assert unseen or "ms more at the pace of the others" in answer.reason


def test_a_rank_without_a_whole_step_is_not_read(tmp_path):
    case = trained(tmp_path, beside=0, more={})
    stages = [rows for rows in case.stages if len(rows)]
    own = case.steps.own.copy()
    own[stages[0][0]] = np.nan
    own[stages[2]] = np.nan
    added = stage_contention(replace(case, steps=replace(case.steps, own=own)), stages)
    assert added[0] == pytest.approx(LAYERS * 2 / 3 * LONGER * 1e3, rel=0.05)
    assert not added[2].any()
