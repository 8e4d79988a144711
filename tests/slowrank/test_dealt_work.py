"""Work that data deal unevenly is told by those who share the data; chance and slow devices are not taken for it."""

import numpy as np
import pytest

from tests.slowrank.events import Timeline, write_run
from tracekit.analysis.slowrank.analyse import _answered, analyse
from tracekit.analysis.slowrank.decision.work_gaps import varied_ns
from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.hypotheses.data_imbalance import dealt_price
from tracekit.analysis.slowrank.price import Price
from tracekit.case.case import Case
from tracekit.findings import Coverage

TENSOR, REPLICAS, STEPS, BATCHES = 2, 4, 4, 4
RANKS = TENSOR * REPLICAS
KERNELS = {"gemm": 600.0, "attention": 300.0}
TRANSFER_US = 20.0


def trained(folder, factor, noise=0.0, adam=lambda replica, step: 1.0, layers=1):
    """Pairs of ranks work on the same micro-batches, each `factor(replica, step, batch)` times as long.

    A micro-batch passes through `layers`, which together take as long as one.
    """
    lines, random = [Timeline(rank) for rank in range(RANKS)], np.random.default_rng(1)
    groups = {n: (2 * n, 2 * n + 1) for n in range(REPLICAS)} | {REPLICAS: tuple(range(RANKS))}
    for step in range(STEPS):
        begins = [line.at for line in lines]
        for batch in np.repeat(range(BATCHES), layers).tolist():
            for line in lines:
                for name, us in KERNELS.items():
                    longer = factor(line.rank // TENSOR, step, batch) * (1.0 + noise * random.normal())
                    line.compute(us * longer / layers, name)
            for replica in range(REPLICAS):
                join([lines[r] for r in groups[replica]], replica)
        for line in lines:
            line.compute(400.0 * adam(line.rank // TENSOR, step), "adam")
        join(lines, REPLICAS)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    return write_run(folder, lines, groups, dict.fromkeys(range(REPLICAS), "tp") | {REPLICAS: "dp"}, RANKS)


def join(lines, group):
    """All `lines` wait for the last of them."""
    handles = [line.post(group) for line in lines]
    end = max(h[0] for h in handles) + TRANSFER_US
    for line, handle in zip(lines, handles, strict=True):
        line.finish(handle, end)


def documents(spread=0.4):
    """Factors of documents that differ between replicas, steps and micro-batches."""
    made = 1.0 + spread * np.random.default_rng(7).uniform(-1, 1, (REPLICAS, STEPS, BATCHES))
    return lambda *at: float(made[at])


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_all_kernels_follow_documents(tmp_path, noise):
    factor = documents()
    finding = analyse(trained(tmp_path, factor, noise))
    assert (finding.verdict, finding.cause, finding.suspects) == ("imbalance", "data_imbalance", ())
    work = np.array(
        [[sum(factor(r, s, b) for b in range(BATCHES)) for s in range(STEPS)] for r in range(REPLICAS)]
    )
    lost = (work.max(axis=0) - work.mean()).mean() * sum(KERNELS.values()) / 1000
    saved = finding.what_if.step_ms - finding.what_if.without_suspects_ms
    assert saved == pytest.approx(lost, rel=0.25)


def test_long_documents_are_no_accidents(tmp_path):
    """Documents of up to four times the usual length are long on both ranks of a replica; all get the same ones."""
    draw = np.random.default_rng(5)
    lengths = np.exp(np.linspace(-1.2, 1.2, STEPS * BATCHES))
    made = np.stack([draw.permutation(lengths) for _ in range(REPLICAS)]).reshape(REPLICAS, STEPS, BATCHES)
    finding = analyse(trained(tmp_path, lambda *at: float(made[at]), 0.02))
    work = made.sum(axis=2)
    lost = (work.max(axis=0) - work.mean()).mean() * sum(KERNELS.values()) / 1000
    saved = finding.what_if.step_ms - finding.what_if.without_suspects_ms
    assert finding.cause == "data_imbalance"
    assert saved == pytest.approx(lost, rel=0.2)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
def test_noise_alone_deals_no_work(tmp_path, noise):
    assert analyse(trained(tmp_path, lambda *_: 1.0, noise)).verdict == "healthy"


def test_slow_devices_of_a_replica_follow_no_data(tmp_path):
    """Both ranks of a replica are slow in two steps, in all kernels, throughout the step."""
    slow = {(1, 1), (1, 3)}
    finding = analyse(
        trained(
            tmp_path,
            lambda replica, step, _: 1.3 if (replica, step) in slow else 1.0,
            0.01,
            adam=lambda *at: 1.3 if at in slow else 1.0,
        )
    )
    assert finding.verdict == "slow_rank"
    assert {s.rank for s in finding.suspects} == {2, 3}


@pytest.mark.parametrize(
    ("factor", "noise", "verdict"),
    [(documents(), 0.02, "inconclusive"), (lambda *_: 1.0, 0.0, "healthy"), (lambda *_: 1.0, 0.1, "healthy")],
)
def test_work_that_varies_unexplained_is_no_health(tmp_path, monkeypatch, factor, noise, verdict):
    """What kernels tell of the data is not asked, nor whether ranks are slow in turn."""
    monkeypatch.setattr("tracekit.analysis.slowrank.evidence.uneven_data", lambda _case: 0.0)
    monkeypatch.setattr(Evidence, "moving", None)
    finding = analyse(trained(tmp_path, factor, noise, layers=6))
    assert (finding.verdict, finding.suspects) == (verdict, ())
    assert ("whole parts of steps are longer, on a different rank each time" in finding.reason) == (
        verdict == "inconclusive"
    )


def test_one_long_part_varies_by_accident(tmp_path):
    """Two ranks take 5 ms more in one micro-batch: without it there is nothing but noise."""
    lone = (1, 2, 1)
    run = trained(tmp_path, lambda *at: 6.0 if at == lone else 1.0, 0.02, layers=6)
    case = _answered(run, None, None, None, None)[0]
    assert varied_ns(case) < 0.001 * case.step_ns


@pytest.mark.parametrize(("matched", "verdict"), [(0.5, "inconclusive"), (1.0, "healthy")])
def test_uneven_data_unmatched_are_no_health(tmp_path, monkeypatch, matched, verdict):
    """Waits that were not matched may be for uneven data: a tenth of a step between the two prices."""
    bounds = Price.up_to(1e6)
    monkeypatch.setattr("tracekit.analysis.slowrank.decision.work_gaps.dealt_price", lambda _case: bounds)
    monkeypatch.setattr(Case, "coverage", Coverage(matched, {}))
    finding = analyse(trained(tmp_path, lambda *_: 1.0, 0.01))
    assert finding.verdict == verdict
    assert ("the cost is between 0.0 and 1.0 ms" in finding.reason) == (verdict == "inconclusive")


def test_most_that_data_cost_bounds_the_price(tmp_path):
    case = _answered(trained(tmp_path, documents()), None, None, None, None)[0]
    found = dealt_price(case)
    assert 0.02 * case.step_ns < found.low <= found.high < 0.3 * case.step_ns


@pytest.mark.parametrize(("steps", "verdict"), [((0, 2), "inconclusive"), (range(STEPS), "slow_rank")])
def test_ranks_with_the_same_documents_are_slow_at_times(tmp_path, steps, verdict):
    """Both ranks of a replica work longer in some steps, but for the update, half of the work: by their documents."""

    def factor(replica, step, batch):
        return 1.3 if replica == 1 and step in steps else 1.0

    found = analyse(trained(tmp_path, factor, adam=lambda *_: 8.0))
    assert (found.verdict, [s.rank for s in (*found.suspects, *found.candidates)]) == (verdict, [2, 3])
