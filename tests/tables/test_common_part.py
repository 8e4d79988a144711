"""What all ranks recorded counts as one step where no step is whole."""

from tests.tables.rows import comm, gemm, group, matched
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.steps.step_ends import common_part
from tracekit.steps.steps import measure


def test_operations_of_all_members_are_one_step():
    """Rank 1 lacks the first call and the last one, rank 2 the second."""
    rows = [[gemm(20 * i, 10), comm(20 * i + 10, 5, 0, seq=i)] for i in range(6)]
    kept = {0: range(6), 1: range(1, 5), 2: (0, 2, 3, 4, 5)}
    ops = matched({r: [x for i in part for x in rows[i]] for r, part in kept.items()}, group(0, 0, 1, 2))
    found = common_part(ops)
    assert [found.step[found.of(r)].tolist() for r in kept] == [
        [NO_STEP, NO_STEP, 0, 0, 0, NO_STEP],
        [NO_STEP, 0, 0, 0],
        [NO_STEP, 0, 0, 0, NO_STEP],
    ]
    assert measure(found).numbers == (0,)
