"""Forked ranks: which one is named when several end, and what a rank does not do with objects of its parent."""

import gc
import os
import signal
import time

import pytest

from reftrain.errors import RankDiedError
from reftrain.rank.processes import Ranks
from tests.ranks.patience import patience


def started(work):
    """Three ranks that each do `work` of their number."""
    ranks = Ranks()
    for rank in range(3):
        ranks.fork(lambda rank=rank: work(rank))
    return ranks


def test_a_stopped_rank_is_named_before_those_that_wait():
    """Its peers give up first, and report; it does not end when it is asked to."""

    def work(rank):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        if rank == 0:
            raise RuntimeError("Timed out waiting 8000ms for recv operation to complete")
        time.sleep(patience(60))

    with pytest.raises(RankDiedError, match=r"rank 1 \(process \d+\) is frozen.*; ended the other 2 ranks"):
        started(work).wait()


class Left:
    """Garbage of the parent, in a circle of references, as of a process group whose threads a fork leaves behind."""

    def __init__(self):
        self.parent, self.circle = os.getpid(), self

    def __del__(self):
        if os.getpid() != self.parent:
            os._exit(7)


def test_a_rank_collects_no_garbage_of_its_parent():
    gc.disable()
    try:
        Left()
        started(lambda _: gc.collect()).wait()
    finally:
        gc.enable()
