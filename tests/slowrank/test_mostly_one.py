"""A rank that causes most of an imbalance by itself is a candidate; ranks that take turns are none."""

import pytest

from tests.generator import generate
from tests.slowrank.test_steady_work import documents
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.ingest import load


@pytest.mark.parametrize("step", [0, 2])
def test_one_long_step_does_not_hide_behind_documents(tmp_path, step):
    finding = analyse(documents(tmp_path, factor=3.0, steps=(step,)))
    assert (finding.verdict, finding.suspects) == ("inconclusive", ())
    assert [c.rank for c in finding.candidates] == [2]
    assert "behind rank 2 alone, which works" in finding.reason
    assert f"in step {step};" in finding.reason
    assert 0 < finding.candidates[0].lost_ms_high <= finding.what_if.step_ms


@pytest.mark.parametrize("seed", [4, 10, 18])
def test_ranks_in_turn_are_an_imbalance(tmp_path, seed):
    """The jobs of drawn ones in which one rank causes most: up to a third."""
    generate(seed, kind="doc_imbalance").write(tmp_path)
    finding = analyse(load([str(tmp_path)]))
    assert (finding.verdict, finding.cause, finding.candidates) == ("imbalance", "data_imbalance", ())
