"""A fix gives what the same job takes without its fault, which the generator simulates as well."""

import pytest

import tracekit
from tests.generator import generate
from tests.marks import quick_first
from tracekit.ingest import load

CASES = [
    ("slow_compute", 306, 0.01),
    ("long_stage", 327, 0.02),
    ("slow_link", 308, 0.02),
    ("slow_compute", 300, 0.01),
    ("slow_compute", 318, 0.01),
    ("slow_host", 301, 0.01),
    ("slow_host", 313, 0.01),
    ("long_stage", 321, 0.02),
    ("long_stage", 333, 0.02),
]


def fixes(case):
    """The fixes that undo the case's fault."""
    if case.truth.kind == "long_stage":
        return [f"stage={index}" for index in {at["pp"] for at in case.truth.coords.values()}]
    if case.truth.kind == "slow_link":
        first, second = case.truth.coords.values()
        return [f"axis={axis}" for axis in first if first[axis] != second[axis]]
    return [f"rank={rank}" for rank in sorted(case.truth.suspects)]


@pytest.mark.parametrize(("kind", "seed", "off"), quick_first(3, CASES))
@pytest.mark.quick(1)
def test_a_fix_gives_the_step_without_the_fault(tmp_path, kind, seed, off):
    case = generate(seed=seed, kind=kind)
    case.write(tmp_path)
    found = tracekit.whatif(load([str(tmp_path)]), fixes(case))
    assert found.together.slowdown == pytest.approx(case.truth.slowdown, abs=off)
    assert found.together.proven
    assert found.together.lost_ms_low <= found.together.lost_ms <= found.together.lost_ms_high
