"""An excess of one step is spread over most kernels of a rank, or lies in few."""

from dataclasses import replace

import numpy as np
import pytest

from tracekit.steps.step_kernels import StepKernels, longer_kernels, longest_beyond

PLACES, STEPS = 10, 3


def rank(gemm=1.0, attention=1.0, *, first=1.0, column=1, less=0):
    """A gemm of 200 ns and an attention of 100 ns, ten times in each of three steps; factors in the step `column`.

    `first` is the factor of the first gemm; `less` kernels are missing there.
    """
    lasted = np.tile([200.0, 100.0], (STEPS, PLACES))
    lasted[column] *= np.tile([gemm, attention], PLACES)
    lasted[column, 0] *= first
    kept = np.ones(lasted.shape, bool)
    kept[column, 2 * PLACES - less :] = False
    at = np.repeat(np.arange(STEPS), 2 * PLACES).reshape(lasted.shape)
    name = np.tile(np.array(["gemm", "attention"], object), (STEPS, PLACES))
    n = int(kept.sum())
    start = np.cumsum(lasted[kept]).astype(np.int64)
    return StepKernels(at[kept], name[kept], lasted[kept], np.zeros(n), np.ones(n, bool), start)


@pytest.mark.parametrize(
    ("mine", "ns", "share", "count"),
    [
        (rank(1.2, 1.2), 600.0, 1.0, 20),
        (rank(attention=1.5), 500.0, 1 / 3, 10),
        (rank(first=4.0), 600.0, 1 / 15, 1),
        (rank(0.9, 0.9), 0.0, 0.0, 0),
        (
            rank(1.2, 1.2, less=1),
            400.0,
            1.0,
            10,
        ),  # one attention less: nothing tells which kernels do the same
    ],
)
def test_an_excess_is_spread_as_planted(mine, ns, share, count):
    found = longer_kernels(mine, [rank(), rank(), rank()], 1)
    assert (found.ns, found.share, found.count) == (pytest.approx(ns), pytest.approx(share), count)


def test_of_a_cut_step_the_recorded_kernels_count():
    """Windows end within the step, here and there; its first kernels are those of the other steps."""
    found = longer_kernels(rank(1.2, 1.2, less=6), [rank(less=8), rank(less=4)], 1)
    assert (found.ns, found.share, found.count) == (pytest.approx(6 * 40 + 6 * 20), pytest.approx(1.0), 12)


def test_what_peers_met_as_well_is_usual():
    assert longer_kernels(rank(1.2, 1.2), [rank(1.2, 1.2)] * 3, 1).ns == pytest.approx(0.0)


def test_what_recurs_in_the_own_steps_is_usual():
    always = StepKernels(
        *(getattr(rank(), f) for f in ("column", "name")), rank().lasted * 1.2, *[rank().shared] * 3
    )
    assert longer_kernels(always, [rank()] * 3, 1).ns == pytest.approx(0.0)


def test_without_peers_nothing_is_told():
    assert longer_kernels(rank(1.2, 1.2), [], 1).count == 0


def test_what_communication_beside_it_lengthens_is_not_longer():
    """Kernels that share the device for half of their time where their peers do not."""
    beside = rank(1.2, 1.2)
    beside = replace(beside, shared=beside.lasted * np.where(beside.column == 1, 0.5, 0.0))
    assert longer_kernels(beside, [rank()] * 3, 1).count == 0


def test_kernels_of_one_step_alone_are_not_compared():
    def with_extra(kernels):
        """Two copies more in the middle step, and none in the others."""
        return StepKernels(
            np.append(kernels.column, [1, 1]), np.append(kernels.name, ["copy", "copy"]),
            np.append(kernels.lasted, [900.0, 900.0]), np.append(kernels.shared, [0.0, 0.0]),
            np.ones(len(kernels.lasted) + 2, bool), np.arange(len(kernels.lasted) + 2),
        )  # fmt: skip

    found = longer_kernels(with_extra(rank(1.2, 1.2)), [with_extra(rank()), with_extra(rank())], 1)
    assert (found.ns, found.count) == (600.0, 20)


def test_one_kernel_is_beyond_its_name_elsewhere():
    """A gemm of 200 ns takes 4 times as long in one step; one more of them counts whole; a common factor hardly."""
    assert longest_beyond(rank(first=4.0), 1) == 600.0
    assert longest_beyond(rank(1.2, 1.2), 1) == pytest.approx(40.0)
    assert longest_beyond(rank(), 1) == 0.0
    mine = rank()
    seen = mine.column != 0
    kept = {f: getattr(mine, f)[seen] for f in mine.__dataclass_fields__}
    first = {f: getattr(mine, f)[~seen][:-1] for f in kept}
    fewer = StepKernels(**{f: np.concatenate([first[f], kept[f]]) for f in kept})
    assert longest_beyond(fewer.only((0, 1)), 1) == 100.0  # an attention more than in both other steps
