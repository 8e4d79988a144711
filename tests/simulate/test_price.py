"""A slow rank's price equals what the same simulated job without the fault saves, within five points."""

from dataclasses import dataclass

import pytest

from tests.marks import quick_first
from tests.simulate.case import setup_of, written
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.ingest import load

NAMED_FROM = 1.03
"""True slowdown from which the rank must be named: the threshold is 2 %, and a price may be off a little."""


@dataclass(frozen=True)
class Job:
    """A simulated job with one slow rank; `sizes` are tp, cp, pp, dp."""

    sizes: tuple[int, int, int, int]
    zero: int
    virtual: int
    micro_batches: int
    layers: int
    seq_len: int
    rank: int
    factor: float


JOBS = [
    Job((4, 1, 2, 2), 1, 4, 2, 16, 4096, 3, 1.25),  # parameters are gathered behind messages
    Job((8, 2, 1, 1), 0, 1, 2, 8, 2048, 3, 1.25),  # two communicators of the same members
    Job((2, 1, 2, 3), 0, 1, 4, 8, 4096, 0, 1.1),  # gradients are reduced under compute
    Job((2, 2, 4, 2), 3, 1, 4, 8, 8192, 11, 1.25),
    Job((2, 2, 2, 3), 1, 4, 8, 16, 2048, 18, 1.5),
    Job((2, 2, 2, 1), 3, 2, 4, 16, 2048, 4, 1.25),
    Job((2, 1, 4, 4), 3, 4, 4, 16, 4096, 7, 1.5),
    Job((4, 1, 2, 3), 2, 4, 2, 8, 4096, 15, 1.1),
    Job((4, 1, 2, 2), 1, 1, 8, 16, 4096, 13, 1.1),
    Job((2, 1, 1, 4), 2, 1, 4, 16, 2048, 0, 1.25),
    Job((8, 1, 2, 2), 3, 1, 2, 16, 2048, 24, 1.5),
    Job((2, 2, 4, 2), 0, 2, 8, 16, 8192, 10, 1.25),
    Job((4, 2, 1, 4), 1, 1, 2, 16, 4096, 21, 1.25),
    Job((2, 1, 4, 1), 2, 2, 8, 8, 8192, 2, 1.5),
]


@pytest.mark.parametrize("job", quick_first(1, JOBS))
@pytest.mark.slow
def test_price_equals_the_counterfactual(tmp_path, job):
    tp, cp, pp, dp = job.sizes
    setup, config = setup_of(
        {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "zero": job.zero},
        f"slow_compute:rank={job.rank},factor={job.factor}",
        schedule="interleaved" if job.virtual > 1 else "1f1b",
        virtual=job.virtual,
        micro_batches=job.micro_batches,
        merge=False,
        tables={"model": {"layers": job.layers}, "data": {"seq_len": job.seq_len}},
    )
    outcome = written(tmp_path, setup, config, detail="kernels")
    finding = analyse(load([str(tmp_path / "trace")]))
    assert outcome.slowdown > NAMED_FROM
    assert (finding.verdict, [s.rank for s in finding.suspects]) == ("slow_rank", [job.rank])
    assert finding.what_if.slowdown == pytest.approx(outcome.slowdown, abs=0.05)
