"""Whatever ranks an operation table keeps, the culprit stays the answer or the answer stays open."""

from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.ingest.sample import DATA, needs_data
from tests.marks import quick_first
from tests.what_if.tables import ingested, replicas
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.ingest import load

WORLD, SLOW = 8, 3
LONG_STAGE = {6, 7}


def kept(world, culprits):
    """Subsets of ranks as people record them."""
    everybody = range(world)
    return {
        "one rank in two": everybody[::2],
        "the other one in two": everybody[1::2],
        "one host in two": [r for r in everybody if r // 2 % 2 == 0],
        "the other hosts": [r for r in everybody if r // 2 % 2],
        "all but the culprit": [r for r in everybody if r not in culprits],
        "all but an innocent": [r for r in everybody if r != min(set(everybody) - set(culprits))],
        **{f"60 % at random, {n}": sorted(Random(n).sample(everybody, 5)) for n in range(4)},
    }


def judged(finding, culprits, ranks):
    """Whether nobody but a recorded culprit is named, and nothing is called healthy."""
    named = {s.rank for s in finding.suspects}
    return finding.verdict != "healthy" and (
        named <= set(culprits) & set(ranks) if named else finding.verdict == "inconclusive"
    )


SLOW_RANK = kept(WORLD, {SLOW})


@pytest.mark.parametrize("ranks", SLOW_RANK.values(), ids=SLOW_RANK.keys())
@pytest.mark.quick(3)
def test_a_table_of_replicas_names_nobody_else(tmp_path, ranks):
    slow = [2 if r == SLOW else 1 for r in range(WORLD)]
    finding = analyse(ingested(tmp_path, [row for row in replicas(slow) if row["rank"] in ranks]))
    assert judged(finding, {SLOW}, ranks)
    if SLOW in ranks:
        assert [s.rank for s in finding.suspects] == [SLOW]
    else:
        assert SLOW in {c.rank for c in finding.candidates}


@needs_data
@pytest.mark.realdata
@pytest.mark.parametrize("what", quick_first(4, sorted(kept(WORLD, LONG_STAGE))))
@pytest.mark.quick(1)
def test_a_published_table_names_nobody_else(tmp_path, what):
    ranks = kept(WORLD, LONG_STAGE)[what]
    table = pq.read_table(DATA / "ops" / "trace-ST.parquet")
    wanted = pa.array(list(ranks), table.schema.field("rank").type)
    pq.write_table(table.filter(pc.is_in(table["rank"], wanted)), tmp_path / "some.parquet")
    assert judged(analyse(load([str(tmp_path / "some.parquet")])), LONG_STAGE, ranks)
