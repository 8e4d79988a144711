"""A copy that its owner steps is no broken copy; one that was forgotten is, where no later start tells."""

from types import SimpleNamespace

import numpy as np
import pytest

from numerics.comparison.owners import left_to_owners

OLD, NEW = 1, 2


def columns(*rows):
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

    return Run(digest=np.array(digest))


def run(*, forgotten=NEW, gradients=(0,), later=True):
    """Two ranks; those in `gradients` step, and rank 1 holds `forgotten` when the next step begins."""
    rows = [(-1, "init", "param", r, OLD) for r in (0, 1)]
    rows += [(0, "reduce", "param_grad", r, 7) for r in gradients]
    rows += [(0, "step", "param", r, NEW if r == 0 else OLD) for r in (0, 1)]
    rows += [(1, "init", "param", r, NEW if r == 0 else forgotten) for r in (0, 1) if later]
    return columns(*rows)


@pytest.mark.parametrize("forgotten", [NEW, OLD])
def test_a_copy_without_a_gradient_is_its_owners(forgotten):
    """Whether it got the result is told by the rows of the next step, which stay compared."""
    given = run(forgotten=forgotten)
    (row,) = np.flatnonzero(left_to_owners(given)).tolist()
    assert (given["step"][row], given["rank"][row]) == (0, 1)


@pytest.mark.parametrize("given", [run(later=False), run(gradients=(0, 1)), run(gradients=())])
def test_other_copies_stay_compared(given):
    assert not left_to_owners(given).any()
