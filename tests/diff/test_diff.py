"""What changed between two runs: named where it is, tested over steps, and blind to clocks and to order."""

from dataclasses import replace

import numpy as np
import pytest

import tracekit
from tests.breakdown.runs import kernel, made, shifted_ids
from tests.slowrank.jobs import grid, recorded_until
from tests.slowrank.jobs import job as job_on
from tests.tables.rows import comm, row, step
from tracekit.analysis.diff import analyse
from tracekit.analysis.diff.analyse import _verdict, changes, interval, steps_for_one
from tracekit.findings.diff import Change

RNG = np.random.default_rng(7)


def job(extra=0):
    """Rows of two ranks in four steps; rank 1 computes `extra` µs longer in each, and rank 0 waits for it."""
    ends = [kernel(700 + extra, 250, 2), comm(950 + extra, 50, 0, stream=20)]
    quick = [kernel(0, 300, 1), comm(300, 400 + extra, 0, stream=20), *ends]
    slow = [kernel(0, 650 + extra, 1), comm(650 + extra, 50, 0, stream=20), *ends]
    length = 1000 + extra
    return {
        rank: [
            row | {"ts": row["ts"] + number * length * 1000} | shifted_ids(row, number)
            for number in range(4)
            for row in [*rows, step(number, 0, length)]
        ]
        for rank, rows in enumerate((quick, slow))
    }


def test_longer_copies_are_named(tmp_path):
    name = "Memcpy HtoD (Pageable -> Device)"
    both = [
        {
            rank: [
                *rows,
                *(row("gpu_memcpy", name, number * 1000 + 960, us, stream=9) for number in range(4)),
            ]
            for rank, rows in job().items()
        }
        for us in (5, 30)
    ]
    found = tracekit.diff(*(kept(tmp_path / str(n), rows) for n, rows in enumerate(both))).kernels[0]
    assert (found.what, round(found.change_ns)) == (name, 25_000)


def kept(folder, rows, axis="tp"):
    folder.mkdir(exist_ok=True)
    return made(folder, rows, axis=axis)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return kept(folder / "before", job()), kept(folder / "after", job(100))


@pytest.fixture(scope="module")
def found(runs):
    return tracekit.diff(*runs)


def test_longer_kernel_is_named_where_it_is(found):
    assert found.verdict == "slower"
    assert round(found.step.change_ns) == 100_000
    assert [(c.what, round(c.change_ns)) for c in found.ranks] == [("rank 1", 100_000), ("rank 0", 0)]
    assert [(c.what, round(c.change_ns)) for c in found.parts if c.change_ns] == [
        ("compute", 50_000), ("tp waiting", 50_000),
    ]  # fmt: skip
    assert [(c.what, round(c.change_ns)) for c in found.kernels] == [("gemm", 50_000)]


def test_swapped_runs_change_the_other_way(runs, found):
    back = tracekit.diff(*reversed(runs))
    assert back.verdict == "faster"
    assert back.step.change_ns == -found.step.change_ns
    assert {(c.what, c.change_ns) for c in back.parts} == {(c.what, -c.change_ns) for c in found.parts}


def test_equal_runs_are_unchanged(runs):
    same = tracekit.diff(runs[0], runs[0])
    assert same.verdict == "unchanged"
    assert not any(c.proven for c in (same.step, *same.parts, *same.ranks, *same.kernels))


def test_clocks_and_step_numbers_change_nothing(runs, found, tmp_path):
    shift = {0: 7_000_000_001, 1: 5_000_000_000_003}
    moved = {r: [row | {"ts": row["ts"] + shift[r]} for row in rows] for r, rows in job(100).items()}
    assert replace(tracekit.diff(runs[0], kept(tmp_path, moved)), after=found.after) == found


def test_different_meshes_compare_no_rank(runs, tmp_path):
    other = tracekit.diff(runs[0], kept(tmp_path, job(), "dp"))
    assert (other.ranks, other.compared) == ((), 0)
    assert other.notes[0].startswith("the meshes differ: means over all 2 and 2 recorded ranks")
    assert {"tp waiting", "dp waiting"} <= {c.what for c in other.parts}


def test_rare_kernels_are_compared_together(runs, monkeypatch):
    monkeypatch.setattr(analyse, "KERNELS_KEPT", 0)
    (others,) = tracekit.diff(*runs).kernels
    assert (others.what, round(others.change_ns)) == ("all other kernels", 50_000)


def test_two_steps_decide_nothing(runs):
    few = tracekit.diff(*runs, steps=[(1, 3)])
    assert (few.verdict, few.step.p) == ("inconclusive", None)
    assert few.to_decide


def test_three_steps_beside_three_can_decide():
    one, two = np.array([[10.0, 11.0, 12.0]]).T, np.array([[13.0, 14.0, 15.0]]).T
    (change,) = changes("step", ["step"], one, two)
    assert (change.p, change.proven) == (0.1, True)
    assert interval(one[:, 0], two[:, 0])[0] > 0


def test_noise_of_many_ranks_proves_no_one():
    one, two = (100 + RNG.normal(size=(8, 100)) for _ in range(2))
    found = changes("rank", [f"rank {i}" for i in range(100)], one, two)
    assert sum(c.proven for c in found) <= 2
    two[:, 17] += 10
    found = changes("rank", [f"rank {i}" for i in range(100)], one, two)
    assert found[0].what == "rank 17"
    assert found[0].proven


def test_order_of_steps_and_ranks_changes_nothing():
    one, two = RNG.normal(size=(6, 5)), RNG.normal(size=(7, 5))
    names, order = [f"rank {i}" for i in range(5)], RNG.permutation(5)
    turned = changes("rank", [names[i] for i in order], one[::-1][:, order], two[::-1][:, order])
    assert turned == changes("rank", names, one, two)
    assert interval(one[::-1, 0], two[::-1, 0]) == interval(one[:, 0], two[:, 0])


@pytest.mark.parametrize(
    ("after", "low", "high", "proven", "verdict"),
    [
        (101.0, -1.0, 1.5, False, "unchanged"),
        (101.0, 0.5, 1.5, True, "unchanged"),
        (103.0, -1.0, 7.0, False, "inconclusive"),
        (103.0, 2.5, 3.5, True, "slower"),
        (97.0, -3.5, -2.5, True, "faster"),
        (101.0, -1.0, 5.0, False, "inconclusive"),
        (103.0, -0.5, 7.0, True, "inconclusive"),  # the order of steps differs, and the median may not
    ],
)
def test_unchanged_needs_evidence(after, low, high, proven, verdict):
    change = Change("step", "step", 100.0, after, 0.1, proven)
    assert _verdict(change, low, high, 8)[0] == verdict


@pytest.mark.slow
def test_missing_ranks_blame_no_one():
    runs = [tracekit.load(f"sample_traces/{name}") for name in ("healthy", "slow_compute")]
    whole = tracekit.diff(*runs)
    assert (whole.verdict, whole.ranks[0].what) == ("slower", "rank 5")
    part = tracekit.diff(runs[0].without([3], "left out"), runs[1].without([5], "left out"))
    assert (part.verdict, part.compared) == ("slower", 14)
    assert abs(part.ranks[0].change_ns) < 0.1 * whole.ranks[0].change_ns
    assert "14 mesh places" in part.notes[0]


@pytest.mark.parametrize(
    ("steps", "tested"), [((3, 3), 16), ((3, 9), 40), ((4, 4), 200), ((6, 6), 16), ((3, 3), 1)]
)
def test_steps_that_are_enough_prove_one_change_alone(steps, tested):
    """One quantity of many is longer in every step of the second run: so many steps prove it, and not fewer."""

    def proven(before, after):
        noise = np.random.default_rng(7)
        one, two = noise.normal(100, 1, (before, tested)), noise.normal(100, 1, (after, tested))
        one[:, 1:], two[:, 1:] = 50, 50
        two[:, 0] += 50
        return changes("rank", [str(i) for i in range(tested)], one, two)[0].proven

    needed = steps_for_one(steps, tested)
    assert proven(*steps) == (needed is None)
    if needed is not None:
        assert proven(needed, needed)
        assert not proven(needed - 1, needed - 1)


@pytest.mark.parametrize(("steps", "needed"), [(3, "5 steps of both runs can"), (5, None)])
def test_few_steps_are_told_to_prove_little(tmp_path, steps, needed):
    runs = []
    for name in "ab":
        (tmp_path / name).mkdir()
        runs.append(job_on(tmp_path / name, grid(tp=2, dp=4), steps=steps))
    notes = tracekit.diff(*runs).notes
    assert [needed in note for note in notes if "cannot prove" in note] == ([True] if needed else [])


def test_a_cut_step_is_no_sample(tmp_path):
    """Windows of the second recording end within its last step, which is no shorter for that."""
    runs = []
    for name in ("whole", "cut"):
        (folder := tmp_path / name).mkdir()
        runs.append(job_on(folder, grid(dp=4), layers=6, steps=3, jitter=0))
    found = tracekit.diff(runs[0], recorded_until(runs[1], 0.6))
    assert (found.before.steps.analysed, found.after.steps.analysed) == ((0, 1, 2), (0, 1))
    assert found.step.change_ns == 0
    assert [row.detail for row in found.after.quality if row.kind == "cut_step"] == [
        "step 2 is left out: windows cut it"
    ]
