"""All subsets of two, three and half of the ranks of a recorded job: the culprit, or the answer stays open."""

from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

from tests.marks import quick_first
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.errors import InputError
from tracekit.ingest import load

SAMPLES = Path(__file__).parents[2] / "sample_traces"
CULPRITS = {"demo_slow_tp": {5}, "demo_healthy": set(), "slow_compute": {5}, "slow_link": {8, 10}}
"""Ranks that may be named, by sample: a link is named with the ranks that no collective tells apart."""
QUICK, STRIDE, CHUNK = 16, 53, 32
"""Subsets asked each time; of half of 16 ranks one in STRIDE; so many a test."""


@cache
def recorded(sample):
    return load([str(SAMPLES / sample / "trace")])


def chunks(sample, ranks, stride=1):
    """(sample, subsets) for each test: subsets of all sizes in the first, so that the quick one has some of each."""
    subsets = [c for size in (2, 3) for c in combinations(range(ranks), size)]
    subsets += list(combinations(range(ranks), ranks // 2))[::stride]
    mixed = [c for start in range(QUICK) for c in subsets[start::QUICK]]
    step = max(1, len(mixed) // QUICK)
    few = mixed[::step][:QUICK]
    rest = [c for c in mixed if c not in set(few)]
    return [few, *(rest[at : at + CHUNK] for at in range(0, len(rest), CHUNK))]


CASES = [
    *(("demo_slow_tp", c) for c in chunks("demo_slow_tp", 8)),
    *(("demo_healthy", c) for c in chunks("demo_healthy", 8)),
    *(("slow_compute", c) for c in chunks("slow_compute", 16, STRIDE)),
    *(("slow_link", c) for c in chunks("slow_link", 16, STRIDE)),
]


def wrong(sample, kept):
    """What is wrong with the answer to some ranks of a sample alone; "" where nothing is."""
    run = recorded(sample)
    part = run.without([r.rank for r in run.ranks if r.rank not in kept], "left out")
    try:
        found = analyse(part)
    except InputError:
        return ""  # refused with a remedy, as tests/advice walks them
    named = {s.rank for s in found.suspects}
    fooled = not named <= CULPRITS[sample] or (found.verdict == "healthy" and CULPRITS[sample])
    lost = found.ranks.expected != len(run.ranks)
    return f"{found.verdict} {sorted(named)} of {found.ranks.expected}" if fooled or lost else ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample", "subsets"), quick_first(1, CASES), ids=lambda v: v if type(v) is str else len(v)
)
def test_any_subset_names_the_culprit_or_nobody(sample, subsets):
    assert {kept: why for kept in subsets if (why := wrong(sample, kept))} == {}


@pytest.mark.parametrize("sample", ["demo_slow_tp", "demo_healthy"])
def test_subsets_are_complete(sample):
    asked = [c for name, subsets in CASES if name == sample for c in subsets]
    assert sorted(asked) == sorted(c for size in (2, 3, 4) for c in combinations(range(8), size))
