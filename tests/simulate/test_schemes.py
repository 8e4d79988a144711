"""Every scheme of the registry is simulated, wherever replicas are summed."""

import dataclasses
from itertools import product

import pytest

from reftrain.cost.hardware import load_hardware
from reftrain.cost.job import job_of_run
from reftrain.errors import ScheduleError
from reftrain.schedule.actions import Kind
from reftrain.schedule.generators import generate
from reftrain.schedule.lower import complete
from reftrain.schedule.registry import SCHEMES
from reftrain.schedule.replica_sync import SYNCS
from reftrain.schedule.spec import ScheduleSpec
from reftrain.simulate.runner import simulate
from reftrain.simulate.setup import Setup
from tests.simulate.case import config_of

BIDIRECTIONAL = [name for name, scheme in SCHEMES.items() if scheme.bidirectional]
PLACES = [(name, sync) for name in SCHEMES for sync in (SYNCS if name in BIDIRECTIONAL else SYNCS[:1])]


def ends(name: str, p: int, m: int, sync: str, dp: int) -> bool:
    """Whether the scheme takes these sizes; its simulation then ends, and no time in it is infinite."""
    virtual = SCHEMES[name].default_virtual
    try:
        table = generate(ScheduleSpec(name, p, m, virtual, p))
    except ScheduleError:
        return False
    model = {"layers": p * virtual, "dim": 64, "heads": 4, "kv_heads": 4, "ffn_dim": 64}
    tables = {"model": model, "pipeline": {"virtual_stages": virtual}}
    config = config_of({"pp": p, "dp": dp}, m, **tables)
    job = dataclasses.replace(
        job_of_run(config), schedule=name, virtual=virtual, kernels="fused", attention="flex"
    )
    schedule = complete(table, config.mesh.zero, sync)
    simulation = simulate(Setup(job, schedule, load_hardware("h100"), 1, jitter=0.0, merge=True))
    assert len(simulation.times) == p
    assert all(0 < float(times.bounds[-1].max()) < float("inf") for times in simulation.times)
    if name in BIDIRECTIONAL:
        assert any(a.kind is Kind.SYNC_REPLICAS for actions in schedule.actions for a in actions)
    return True


@pytest.mark.parametrize(("name", "sync"), PLACES)
def test_no_scheme_waits_in_a_circle(name, sync):
    sizes = (
        [(4, 7, 1), (4, 8, 2), *([(3, 4, 1)] if name == "gems" else [])]
        if name in BIDIRECTIONAL
        else [(4, 8, 1)]
    )
    assert all(ends(name, *size[:2], sync, size[2]) for size in sizes)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sync"), PLACES)
def test_no_scheme_waits_in_a_circle_at_any_size(name, sync):
    sizes = product((1, 2, 3, 4, 5, 6, 8), (1, 2, 3, 4, 7, 8, 17), (1, 2))
    assert sum(ends(name, p, m, sync, dp) for p, m, dp in sizes)
