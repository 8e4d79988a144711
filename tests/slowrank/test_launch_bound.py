"""Where hosts set the pace, the device of the one that is last shows gaps, and its cure saves next to nothing."""

import pytest

from tests.slowrank.hosts import LOADING_US, host_bound
from tests.slowrank.jobs import grid, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.hypotheses.loading_role import role_of_tensor_groups

LAST = 3


def later(us):
    """Rank `LAST` loads for so much longer than its peers in every step, the others a little as it comes."""
    return lambda rank, step: LOADING_US + (us if rank == LAST else 3 * ((5 * rank + 3 * step) % 4))


def made(folder, name):
    (folder / name).mkdir()
    return folder / name


@pytest.mark.quick(1)
@pytest.mark.parametrize("recorded", [True, False])
def test_who_is_last_by_chance_is_not_named(tmp_path, recorded):
    found = analyse(host_bound(tmp_path, recorded=recorded, loading=later(18))[0])
    assert not found.suspects
    assert found.what_if.slowdown == 1
    if not recorded:
        assert found.verdict == "inconclusive"
        (candidate,) = found.candidates
        assert candidate.rank == LAST
        assert candidate.lost_ms_low == 0 < candidate.lost_ms_high
        assert "ProfilerActivity.CPU" in found.to_decide


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.quick(1)
def test_a_late_loader_costs_what_hosts_allow(tmp_path, recorded):
    run, slow = host_bound(made(tmp_path, "slow"), recorded=recorded, loading=later(600))
    _, quick = host_bound(made(tmp_path, "quick"), loading=later(0))
    found = analyse(run)
    if recorded:
        assert [(s.rank, s.cause) for s in found.suspects] == [(LAST, "dataloader")]
        assert found.what_if.slowdown == pytest.approx(slow / quick, abs=0.03)
    else:
        assert [c.rank for c in found.suspects + found.candidates] == [LAST]


@pytest.mark.parametrize("factor", [1.5, 3.0])
@pytest.mark.quick(1)
def test_a_slow_host_is_named_beside_quick_ones(tmp_path, factor):
    run, slow = host_bound(made(tmp_path, "slow"), pace=lambda rank: factor if rank == LAST else 1.0)
    _, quick = host_bound(made(tmp_path, "quick"))
    found = analyse(run)
    assert [(s.rank, s.cause) for s in found.suspects] == [(LAST, "cpu_launch")]
    assert found.what_if.slowdown == pytest.approx(slow / quick, abs=0.05)


@pytest.mark.parametrize(("world", "factor"), [(8, 1.6), (16, 2.5)])
@pytest.mark.quick(1)
def test_half_of_the_hosts_are_slow(tmp_path, world, factor):
    """As those of one node of two: their peers are the others, not half of themselves."""
    struck = range(world // 2)
    run, slow = host_bound(made(tmp_path, "slow"), world=world, pace=lambda r: factor if r in struck else 1.0)
    _, quick = host_bound(made(tmp_path, "quick"), world=world)
    found = analyse(run)
    assert (found.cause, {s.rank for s in found.suspects}) == ("cpu_launch", {*struck})
    assert found.what_if.slowdown == pytest.approx(slow / quick, abs=0.05)


@pytest.mark.parametrize("more", [100.0, 600.0])
@pytest.mark.quick(1)
def test_loading_role_costs_what_hosts_allow(tmp_path, more):
    """Where hosts set the pace, the devices of ranks that load first are idle at every launch of the step."""
    run, slow = host_bound(made(tmp_path, "slow"), loading=lambda r, _: LOADING_US + more * (r % 2 == 0))
    _, quick = host_bound(made(tmp_path, "quick"))
    role = role_of_tensor_groups(prepared(run, grid(tp=2, dp=4)))
    assert (role.cause, role.rows) == ("dataloader", (0, 2, 4, 6))
    assert role.price.best / 1e6 == pytest.approx(slow - quick, abs=0.02)


def uneven(rank, step):
    """Who loads longest changes from step to step, but for `LAST`, which is long in each."""
    if rank == LAST:
        return LOADING_US + 115 - 25 * (step % 2)
    return LOADING_US + 25 * ((7 * rank + 5 * step + rank * step) % 6)


@pytest.mark.slow
def test_uneven_loading_costs_what_hosts_allow(tmp_path):
    """Who is last changes from step to step, and with it whose device shows all gaps."""
    found = analyse(host_bound(tmp_path, loading=uneven)[0])
    assert not found.suspects
    assert found.what_if.slowdown < 1.1
