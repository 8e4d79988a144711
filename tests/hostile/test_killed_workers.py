"""A worker that the system kills says nothing of its file; one that dies each time does."""

import os
import signal
from functools import partial

import pytest

from tracekit.workers import Limits, do_all

LIMITS = Limits(seconds=60, memory=1 << 32, chunk=2, slow="slow", big="big", broken="broken")


def dying(folder, sign, deaths):
    """The handler that dies by `sign` on task 1 the first `deaths` times, and doubles its task."""

    def handle(task):
        tries = folder / f"{task}"
        tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
        if task == 1 and len(tries.read_text()) <= deaths:
            os.kill(os.getpid(), sign)
        return 2 * task

    return handle


def answers(folder, sign, deaths, jobs=2):
    """What is said of tasks 0 to 3, and how often task 1 was tried."""
    found = dict(do_all(range(4), partial(dying, folder, sign, deaths), jobs, LIMITS))
    told = [str(found[i]) if isinstance(found[i], Exception) else found[i] for i in range(4)]
    return told, len((folder / "1").read_text())


def test_one_kill_from_outside_refuses_no_file(tmp_path):
    told, _ = answers(tmp_path, signal.SIGKILL, 2)
    assert told == [0, 2, 4, 6]


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(("sign", "most"), [(signal.SIGKILL, 3), (signal.SIGSEGV, 2)])
@pytest.mark.quick(1)
def test_what_dies_each_time_is_refused(tmp_path, sign, most, jobs):
    """After task 0 in the same worker, then in a fresh one; killed from outside, in one more.

    A second worker may take it in between, after its own tasks: then its death proves nothing either.
    """
    told, tries = answers(tmp_path, sign, 99, jobs)
    assert told == [0, "broken", 4, 6]
    assert tries in range(most, most + jobs)
