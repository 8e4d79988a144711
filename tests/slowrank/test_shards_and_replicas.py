"""In HSDP the all-reduce of replicas follows the reduce-scatter of each member's own shard, also where it queued."""

from types import SimpleNamespace

import numpy as np
import pytest

from tracekit.step_graph.collective_queue import _of_members

# each of two ranks scatters alone twice; both reduce behind that: instances 0 and 1, 2 and 3, then 4 and 5
OP = ["reduce_scatter", "reduce_scatter", "all_reduce", "all_reduce"] * 2
ORDER = [0, 2, 1, 3]  # of issue: a scatter, its reduction, the next ones
INSTANCE = [0, 1, 4, 5, 2, 3, 4, 5]
START = np.array([0, 20, 10, 30, 0, 12, 10, 30]) * 1000
END = np.array([10, 30, 20, 40, 5, 17, 20, 40]) * 1000


def operations(end=END):
    """Two ranks of four operations, in order of their kind; the second rank is early, and its reductions queue."""
    issued = np.argsort(ORDER)
    return SimpleNamespace(
        ranks=[3, 7], rank=np.repeat([3, 7], 4), start=START, end=end, op=np.array(OP), token=np.array(OP),
        instance=np.array(INSTANCE), per_rank=dict.fromkeys([3, 7], SimpleNamespace(issued=issued)),
        of=lambda rank: slice(0, 4) if rank == 3 else slice(4, 8),
    )  # fmt: skip


def pairs_of(ops):
    late, asked = np.array([2, 3]), np.array([0, 1])  # the first rank shows what its reductions wait for
    return set(zip(*(side.tolist() for side in _of_members(ops, late, asked)), strict=True))


def test_a_queued_member_waits_for_its_own_shard():
    assert pairs_of(operations()) == {(4, 0), (5, 1), (4, 2), (5, 3)}


@pytest.mark.parametrize("row", [4, 5])
def test_an_operation_that_ended_later_delays_nothing(row):
    end = END.copy()
    end[row] = 60_000_000
    assert pairs_of(operations(end)) == {(4, 0), (5, 1), (4, 2), (5, 3)} - {(4, 2) if row == 4 else (5, 3)}
