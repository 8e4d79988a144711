"""A copy that its owner steps is no broken copy; one that was forgotten is, where no later start tells."""

from types import SimpleNamespace

import numpy as np
import pytest

from numerics.comparison.broken_invariants.owners import left_to_owners, left_unseen
from numerics.comparison.proofs.local_scope import never_seen_sent, not_checked
from numerics.local.proof import LocalProof

OLD, NEW = 1, 2


def columns(*rows, source=""):
    """A capture of one tensor; rows of step, phase, kind, rank, digest."""
    step, phase, kind, rank, digest = zip(*rows, strict=True)
    texts = {"phase": phase, "kind": kind}

    class Run(SimpleNamespace):
        def __getitem__(self, name):
            return {"step": np.array(step), "rank": np.array(rank)}[name]

        def named(self, column, *names):
            return np.isin(texts[column], names)

        def name(self, _column, row):
            return "w.grad" if kind[row] == "param_grad" else "w"

    return Run(digest=np.array(digest), capture=SimpleNamespace(source=source))


def run(*, forgotten=NEW, gradients=(0,), later=True, source=""):
    """Two ranks; those in `gradients` step, and rank 1 holds `forgotten` when the next step begins."""
    rows = [(-1, "init", "param", r, OLD) for r in (0, 1)]
    rows += [(0, "reduce", "param_grad", r, 7) for r in gradients]
    rows += [(0, "step", "param", r, NEW if r == 0 else OLD) for r in (0, 1)]
    rows += [(1, "init", "param", r, NEW if r == 0 else forgotten) for r in (0, 1) if later]
    return columns(*rows, source=source)


@pytest.mark.parametrize("forgotten", [NEW, OLD])
def test_a_copy_without_a_gradient_is_its_owners(forgotten):
    """Whether it got the result is told by the rows of the next step, which stay compared."""
    given = run(forgotten=forgotten)
    (row,) = np.flatnonzero(left_to_owners(given)).tolist()
    assert (given["step"][row], given["rank"][row]) == (0, 1)


@pytest.mark.parametrize("given", [run(later=False), run(gradients=(0, 1)), run(gradients=())])
def test_other_copies_stay_compared(given):
    assert not left_to_owners(given).any()


def test_a_watched_last_step_is_left_unseen():
    """Hooks record before results are sent."""
    given = run(later=False, source="watch")
    (row,) = np.flatnonzero(left_to_owners(given)).tolist()
    assert left_unseen(given) == ([row], False)
    assert left_unseen(run()) == ([], True)
    found = never_seen_sent(given)
    assert found.verdict == "undecided"
    assert found.reason.startswith("ranks 1 kept w as it was in step 0 while another rank updated it")
    assert never_seen_sent(run()) is None


def test_an_unseen_last_step_is_told_and_no_more():
    """The start of the step before showed that results are sent."""
    rows = [(-1, "init", "param", r, OLD) for r in (0, 1)]
    for step in (0, 1):
        rows += [(step, "reduce", "param_grad", 0, 7)]
        rows += [(step, "step", "param", r, NEW + step if r == 0 else OLD + step) for r in (0, 1)]
        rows += [(1, "init", "param", r, NEW) for r in (0, 1) if not step]
    given = columns(*rows, source="watch")
    assert never_seen_sent(given) is None
    (told,) = not_checked(given, LocalProof((), loss_factors={0: 1.0}))
    assert told.startswith("copies after step 1: some ranks stepped 1 parameters for the others")


@pytest.mark.parametrize(("begun", "left"), [(NEW, True), (OLD, False)])
def test_a_start_tells_where_gradients_are_missing(begun, left):
    """A capture of few steps holds the state before each; a copy that stays behind is no sound one."""
    rows = [(-1, "init", "param", r, 9) for r in (0, 1)]
    rows += [(4, "step", "param", r, NEW if r == 0 else OLD) for r in (0, 1)]
    rows += [(5, "init", "param", r, NEW if r == 0 else begun) for r in (0, 1)]
    rows += [(5, "reduce", "param_grad", 0, 7)]
    assert left_to_owners(columns(*rows, source="watch")).any() == left
