"""Whatever ranks of a recorded job are kept, the culprit stays the answer or the answer stays open."""

from pathlib import Path

import pytest

from tests.marks import quick_if
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.ingest import load

TRACES = Path(__file__).parents[2] / "sample_traces" / "slow_compute" / "trace"
CULPRIT = 5
KEPT = {
    "one rank a tensor group, without the culprit": range(0, 16, 2),
    "one rank a tensor group, with the culprit": range(1, 16, 2),
    "one rank in four": range(0, 16, 4),
    "the other replica": range(8, 16),
    "one host in two": [0, 1, 2, 3, 8, 9, 10, 11],
    "60 % at random": [0, 1, 3, 4, 7, 9, 12, 13, 15],
    "all but the culprit": [r for r in range(16) if r != CULPRIT],
}


QUICK = ("one rank in four", "60 % at random", "all but the culprit")


@pytest.mark.parametrize("name", quick_if(QUICK.__contains__, KEPT))
@pytest.mark.quick(1)
def test_a_subset_names_the_culprit_or_nobody(name):
    kept = KEPT[name]
    finding = analyse(load([str(TRACES / f"rank{r}.json.gz") for r in kept]))
    assert finding.ranks.expected == 16
    assert finding.mesh.sizes == dict.fromkeys(("tp", "cp", "pp", "dp"), 2)
    if CULPRIT in kept:
        assert [s.rank for s in finding.suspects] == [CULPRIT]
    else:
        assert (finding.verdict, finding.suspects) == ("inconclusive", ())
        assert finding.to_decide.startswith(("add the trace of rank ", "add the traces of ranks "))
