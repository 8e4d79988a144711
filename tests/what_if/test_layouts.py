"""The step of another mesh of the same job: a model worked out on paper, refusals, and a simulated job."""

from types import SimpleNamespace

import pytest

import tracekit
from reftrain.simulate.runner import simulate
from reftrain.simulate.summary import summarise
from tests.simulate.case import setup_of, written
from tracekit.analysis.questions.answer import answer
from tracekit.analysis.questions.layout_costs import Costs, Stage, _stage
from tracekit.analysis.questions.layouts import LIKELY, check, parse_layout, restaged, step_ns
from tracekit.errors import UsageError
from tracekit.findings.breakdown import ExposedTime

RECORDED = {"tp": 2, "cp": 1, "pp": 2, "dp": 2}
SENT = {"tp": 8.0, "dp": 6.0}
COSTS = Costs(RECORDED, 4, 10.0, (Stage(80.0, 0.0, 4.0, SENT, {}), Stage(100.0, 0.0, 4.0, SENT, {})), {})


def step_on(text):
    return step_ns(COSTS, parse_layout(text).sizes, LIKELY)


def test_the_recorded_mesh_keeps_its_step():
    # (80 + 4 + 8) / 4 = 23 and 28 a micro-batch; 10 + 23 + 28 + 3 * 28 + 6
    assert step_on("tp=2,pp=2,dp=2") == pytest.approx(151)


def test_replicas_divide_the_micro_batches():
    # two micro-batches; two replicas more: 6 * (0.5 * 3 + 0.5 * 3 * 2 / 4)
    assert step_on("tp=2,pp=2,dp=4") == pytest.approx(10 + 23 + 28 + 28 + 6 * (1.5 + 0.75))


def test_tensor_ranks_divide_compute_and_keep_gaps():
    stage = [(compute / 2 + 4 + 8 * (1.5 + 0.75)) / 4 for compute in (80, 100)]
    assert step_on("tp=4,pp=2,dp=2") == pytest.approx(10 + sum(stage) + 3 * stage[1] + 6 * (0.5 + 0.25))


@pytest.mark.parametrize(("text", "summed"), [("tp=2,cp=4", 12.0), ("tp=4,cp=2", 6.0), ("tp=2,cp=1", 12.0)])
def test_sums_of_gradients_follow_parameters(text, summed):
    sizes, more = parse_layout(text).sizes, Stage(64.0, 12.0, 0.0, {}, {})
    costs = Costs({"tp": 2, "cp": 2, "pp": 1, "dp": 1}, 0, 0.0, (more,), {})
    assert step_ns(costs, sizes, LIKELY) == pytest.approx(64 * 4 / (sizes["tp"] * sizes["cp"]) + summed)


@pytest.mark.parametrize(("text", "tensor", "context"), [
    ("tp=2,cp=2", 1, 1), ("tp=1,cp=2", 0, 1), ("tp=4,cp=1", 1.049 / 0.589, 0), ("tp=1,cp=1", 0, 0),
])  # fmt: skip
def test_waits_by_chance_end_with_their_axis(text, tensor, context):
    """Of four and of two normal deviations the largest is 1.05 and 0.59 on average, by Blom's formula."""
    sizes, one = parse_layout(text).sizes, Stage(64.0, 0.0, 0.0, {}, {"tp": 3.0, "cp": 5.0, "tp_pp": 9.0})
    costs = Costs({"tp": 2, "cp": 2, "pp": 1, "dp": 1}, 0, 0.0, (one,), {})
    part = 4 / (sizes["tp"] * sizes["cp"])
    expected = part * (64 + 3 * tensor + 5 * context)
    assert step_ns(costs, sizes, LIKELY) == pytest.approx(expected, rel=1e-4)


def test_one_stage_has_no_bubble():
    assert step_on("tp=2,dp=2") == pytest.approx(10 + 4 * (23 + 28) + 6 * 2)


def test_one_replica_sums_nothing():
    assert step_on("tp=2,pp=2") == pytest.approx(10 + 23 + 28 + 7 * 28)


@pytest.mark.parametrize(
    ("stages", "count", "expected"),
    [
        ([3.0, 3.0], 2, [3.0, 3.0]),
        ([3.0, 4.0], 4, [1.5, 1.5, 1.5, 2.5]),
        ([5.0, 3.0, 3.0, 4.0], 2, [8.0, 7.0]),
        ([5.0, 3.0, 3.0, 4.0], 1, [15.0]),
    ],
)
def test_first_and_last_stage_keep_what_is_theirs(stages, count, expected):
    assert restaged(stages, count) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "cp=2,pp=2,dp=2",
            "cp=1, so its traces do not show what context ranks exchange; record a few steps with cp=2",
        ),
        ("tp=2,pp=2,dp=3", "8 micro-batches cannot be shared evenly by dp=3; choose a divisor of 8"),
    ],
)
def test_a_mesh_that_traces_do_not_show_is_refused(text, reason):
    with pytest.raises(UsageError, match=reason):
        check(COSTS, parse_layout(text))


@pytest.mark.parametrize("text", ["xp=2", "dp=0", "dp=2,ep=2", "dp=2,dp=4"])
def test_what_is_no_mesh_is_refused(text):
    with pytest.raises(UsageError, match="--to-mesh: "):
        parse_layout(text)


def test_a_simulated_job_on_other_meshes(tmp_path):
    """Predicts meshes whose steps the simulator computes, from the traces of one."""
    small = {"steps": 2, "merge": False, "tables": {"model": {"layers": 4}}}

    def on(micro_batches, **mesh):
        return setup_of(mesh, micro_batches=micro_batches, **small)

    setup, config = on(4, tp=2, pp=2, dp=1)
    written(tmp_path, setup, config)
    found = answer(
        tracekit.load([str(tmp_path / "trace")]), layouts=("tp=4", "pp=4", "tp=2,pp=1", "pp=2")
    ).answers
    meshes = ({"tp": 4}, {"pp": 4}, {"tp": 2}, {"pp": 2})
    for one, mesh in zip(found, meshes, strict=True):
        true = summarise(simulate(on(4, **mesh)[0])).mean_step_ms
        assert one.without_ms == pytest.approx(true, rel=0.05)
        assert one.without_ms_low <= true <= one.without_ms_high


def test_context_ranks_do_not_divide_the_sums(tmp_path):
    small = {"steps": 2, "merge": False, "tables": {"model": {"layers": 4}}}
    job, config = setup_of({"cp": 2, "dp": 2}, micro_batches=8, **small)
    written(tmp_path, job, config, detail="kernels")
    true = summarise(simulate(setup_of({"cp": 4}, micro_batches=16, **small)[0])).mean_step_ms
    predicted = answer(tracekit.load([str(tmp_path / "trace")]), layouts=("cp=4",)).answers[0]
    assert predicted.without_ms == pytest.approx(true, rel=0.02)


def test_parts_of_a_stage_add_up_to_its_steps():
    """A transfer that is long in one step of three counts: the mean of the parts is the mean step."""
    steps = [
        SimpleNamespace(
            compute_ns=80, host_ns=10, idle_ns=0, unknown_ns=0, exposed=(ExposedTime("tp", wait, sent, 0),)
        )
        for wait, sent in ((0, 10), (0, 10), (12, 70))
    ]
    stage = _stage([SimpleNamespace(parts=parts) for parts in steps], 0.0, 0.0)
    assert stage == Stage(80.0, 0.0, 10.0, {"tp": 30.0}, {"tp": 4.0})
