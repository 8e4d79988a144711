"""Projected against executed: which cases are run, what is projected of them, what the table says of the choice."""

import pytest

from reftrain.cost.calibrate import LinkFit, Speed
from reftrain.cost.job import cost_model_of, job_of_run
from studies.executed import (
    LAYERS,
    Case,
    Compared,
    configure,
    emulated_hardware,
    grid,
    projected,
    real_hardware,
    report,
    speed,
)

FREE = LinkFit(0.0, 0.0, {})


def test_every_pipeline_that_the_layers_allow_is_run():
    cases = grid(16, 16)
    assert {(c.p, c.d, c.m) for c in cases} == {(2, 8, 2), (4, 4, 4), (8, 2, 8)}
    assert {c.schedule for c in cases} == {"chimera", "1f1b", "gpipe"}
    assert not any(c.schedule == "chimera" for c in grid(2, 3))  # an odd number of micro-batches


@pytest.mark.parametrize(
    ("schedule", "p", "m", "rounds"), [("1f1b", 2, 8, 9), ("gpipe", 4, 4, 7), ("chimera", 2, 8, 8)]
)
def test_a_projection_of_sleep_alone_is_closed_form(schedule, p, m, rounds):
    """(m + p - 1) times a stage's forward and backward, and m times for Chimera on two ranks.

    The last stage has the head besides, so that the step lies between the first stage's rounds and the last's.
    """
    gflops = speed(0.5)
    hardware = emulated_hardware(gflops, FREE, 0.0)
    case = Case(schedule, p, 1, m)
    job = job_of_run(configure(case, gflops, "run", 1))
    costs = cost_model_of(job, hardware)
    least, most = (
        rounds * (costs.stage_seconds(shape, "forward") + costs.stage_seconds(shape, "backward"))
        for shape in (job.stages[0], job.stages[-1])
    )
    assert least < projected(case, gflops, hardware) < most
    assert most < 1.25 * least  # two layers a stage at p = 4, and the head is two fifths of one
    assert least == pytest.approx(rounds * 3 * 0.5 * LAYERS / p, rel=0.06)


def test_links_and_replica_sums_add_time():
    gflops = speed(0.5)
    case = Case("chimera", 2, 1, 2)
    slow = LinkFit(1e-3, 1e-6, {})  # 1 ms a step, 1 us a byte
    free = projected(case, gflops, emulated_hardware(gflops, FREE, 0.0))
    assert projected(case, gflops, emulated_hardware(gflops, slow, 0.0)) > free + 0.1


def test_a_faster_process_takes_less():
    measured = Speed(1e10, 1e10, 1e10, 1e10, 1e-6)
    case = Case("1f1b", 1, 2, 2)
    slow, fast = (projected(case, 0.0, real_hardware(measured, FREE, share)) for share in (0.5, 1.0))
    assert slow == pytest.approx(2 * fast, rel=0.01)


def test_the_table_names_the_choice_and_what_it_costs():
    rows = [
        Compared(Case("chimera", 2, 2, 2), 1.0, 1.1),
        Compared(Case("chimera", 4, 1, 4), 1.2, 1.0),
        Compared(Case("gpipe", 4, 1, 4), 0.5, 0.5),
    ]
    text = report(rows)
    assert "| chimera | 2 | 2 | 2 | 1.000 | 1.100 | -9.1 % |" in text
    assert "the projection picks p 2, d 2, executed 10.0 % slower than the fastest" in text
