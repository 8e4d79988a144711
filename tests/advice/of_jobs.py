"""Ranks, simulated pipelines and unnamed groups that are refused, and what the refusals advise."""

import multiprocessing
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tracekit_cli.tracekit_commands import slowrank

from numerics import watch
from reftrain.config.fault_spec import parse_fault
from reftrain.config.run import RunConfig
from reftrain.cost.calibrate import Sample, measure_links
from reftrain.errors import RankDiedError
from reftrain.faults.registry import fault_hooks
from reftrain.job.launcher import _fork_all, _train_alone
from reftrain.job.one_rank import own_hooks, process_group
from reftrain.rank.events import CollectiveCall
from reftrain.rank.hooks import RunContext
from reftrain.rank.processes import Ranks
from reftrain.rank.world import World
from reftrain.simulate.conditions import HostCosts
from reftrain.simulate.engine import Engine
from reftrain.simulate.program import Builder, Kind, Parcel
from tests.advice.cases import command
from tests.advice.of_config import configured
from tests.advice.register import Call, case
from tests.hang import simulate as dumps
from tests.hostile import job as hostile
from tests.simulate.test_engine import grid_of
from tests.slowrank import test_one_pipeline as pipeline
from tests.slowrank.jobs import grid, job
from tests.tables.rows import comm, recorded
from tracekit.analysis.hang.analyse import analyse as hang
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.dumps.load import load_dumps
from tracekit.inference.groups.unnamed_groups import with_groups_of_streams
from tracekit.inference.mesh.mesh_choice import choose
from tracekit.ingest import load
from tracekit.matching.match import match
from tracekit.mesh import parse_mesh
from tracekit.schema import InferredGroup

NO_MESH: Any = None
"""The mesh of a rank whose hooks ask for none."""


@case("is printed already; name a file for one of them")
def _(folder, _patch):
    given = f"{hostile.write(folder / 'traces', hostile.documents())} --quiet --json"
    return command(slowrank.slowrank, f"{given} - --markdown -", f"{given} {folder / 'a.json'} --markdown -")


@case("a page is not text for a terminal; name a file")
def _(folder, _patch):
    given = f"{hostile.write(folder / 'traces', hostile.documents())} --quiet --html"
    return command(slowrank.slowrank, f"{given} -", f"{given} {folder / 'a.html'}")


@case("a trace is not text for a terminal; name a file")
def _(folder, _patch):
    given = f"{hostile.write(folder / 'traces', hostile.documents())} --quiet --perfetto"
    return command(slowrank.slowrank, f"{given} -", f"{given} {folder / 'a.pftrace'}")


@case("numerics.watch: a step makes more than micro_batches")
def _(folder, _patch):
    def trained(micro_batches: int) -> None:
        model, out = torch.nn.Linear(4, 2), folder / str(micro_batches)
        watched = watch(model, torch.optim.SGD(model.parameters(), 0.1), micro_batches=micro_batches, out=out)
        try:
            for _ in range(2):
                model(torch.ones(3, 4)).sum().backward()
        finally:
            watched.close()

    return lambda: trained(1), lambda: trained(2)


@case("{} processes did not measure in {} s; use fewer ranks")
def _(_folder, patch):
    def answers_where_few(
        rank: int, ranks: int, _store: str, queue: multiprocessing.Queue, _pid: int
    ) -> None:
        if rank == 0 and ranks < 3:
            queue.put([Sample("message", 2, 8, 1.0)])

    patch.setattr("reftrain.cost.calibrate.CALIBRATION_TIMEOUT_S", 0.5)
    patch.setattr("reftrain.cost.calibrate._rank", answers_where_few)
    return lambda: measure_links(3), lambda: measure_links(2)


@case("never struck: in its steps rank {} made no {}{}; choose another")
def _(_folder, patch):
    def run_to_the_end(fault: str) -> None:
        (made,) = fault_hooks([parse_fault(fault, 2)])
        made.setup(RunContext(configured("mesh.dp=2"), NO_MESH, 0, torch.device("cpu")))
        made.step_begin(0)
        patch.setattr(made, "strike", lambda _: None)
        made.collective_begin(CollectiveCall("dp", "all_reduce", "x", torch.zeros(1), None, 1))
        made.close()

    return (
        lambda: run_to_the_end("host_stall:rank=0,axis=dp,op=send"),
        lambda: run_to_the_end("host_stall:rank=0,axis=dp,op=all_reduce"),
    )


def stuck(folder: Path, train: Callable[[RunConfig], object]) -> tuple[Call, Call]:
    """A job that waits in vain; it is run again with the flight recorder, and its dumps name the rank."""
    case_of = dumps.make(3, "host_stall", "tp", {"tp": 2, "cp": 2, "pp": 2, "dp": 2})

    def again() -> None:
        with pytest.raises(RankDiedError, match=r"tracekit hang .*fr shows which rank never came"):
            train(configured(f"run.out={folder} mesh.dp=2 evidence.flight_recorder=true"))
        found = hang(load_dumps([str(case_of.write(folder / "fr"))]))
        assert [c.rank for c in found.culprits] == [case_of.culprit]

    return lambda: train(configured(f"run.out={folder} mesh.dp=2")), again


def waits_in_vain(*_: object) -> None:
    """What a rank does whose peer never comes."""
    raise RuntimeError("Timed out waiting 1000ms for recv operation to complete")


@case("rank {}: {}; {}")
def _(folder, patch):
    patch.setattr("reftrain.job.launcher.train_rank", waits_in_vain)
    world = World(0, 0, 2, "env://")
    return stuck(folder, lambda config: _train_alone(config, world, lambda _: []))


@case("{}; {}")
def _(folder, patch):
    patch.setattr("reftrain.job.launcher.train_rank", waits_in_vain)
    patch.setattr("reftrain.job.launcher.merge_last_calls", lambda _: None)
    return stuck(folder, lambda config: _fork_all(config, lambda _: []))


@case("cannot meet the others at {}: {}; choose a free MASTER_PORT")
def _(_folder, patch):
    taken = socket.create_server(("127.0.0.1", 0))

    def met(port: int) -> None:
        patch.setenv("MASTER_ADDR", "127.0.0.1")
        patch.setenv("MASTER_PORT", str(port))
        with process_group(World(0, 0, 1, "env://"), torch.device("cpu"), 5.0):
            pass

    def free() -> None:
        port = taken.getsockname()[1]
        taken.close()
        met(port)

    return lambda: met(taken.getsockname()[1]), free


@case("{}: {}; {}")
def _(_folder, _patch):
    def ranks_of(layers: str) -> None:
        ranks = Ranks()
        try:
            ranks.fork(lambda: configured(f"model.layers={layers}") and None)
            ranks.wait()
        finally:
            ranks.end()

    return lambda: ranks_of("0"), lambda: ranks_of("2")


@case("where torch's allocator keeps no history; set it to false")
def _(folder, _patch):
    def set_up(settings: str) -> None:
        config = configured(f"run.out={folder} {settings}")
        for hook in own_hooks(config):
            if type(hook).__name__ == "AllocatorSnapshot":
                hook.setup(RunContext(config, NO_MESH, 0, torch.device("cpu")))

    return lambda: set_up("evidence.memory_snapshot=true"), lambda: set_up("evidence.memory_snapshot=false")


def passed(sent: Sequence[int], received: Sequence[int]) -> object:
    """Messages of micro-batches from one stage to the next, simulated."""
    shape = grid_of(pp=2)
    builders = Builder(0, shape), Builder(1, shape)
    for rank, (kind, batches) in enumerate(((Kind.SEND, sent), (Kind.RECV, received))):
        for batch in batches:
            builders[rank].at(rank, batch, backward=False)
            message = builders[rank].message(kind, kind.name.lower(), 1 - rank, Parcel(1.0, 8))
            builders[rank].sync([message])
    return Engine([b.program for b in builders], shape, 1, host=HostCosts()).run()


@case("receives micro-batch {} where rank {} sends {}; receive in the order")
def _(_folder, _patch):
    return lambda: passed((0, 1), (1, 0)), lambda: passed((0, 1), (0, 1))


@case("never gets past {} of stage {}; correct the table")
def _(_folder, _patch):
    return lambda: passed((0,), (0, 1)), lambda: passed((0, 1), (0, 1))


@case("messages name no peer, no process group is named and ranks are missing")
def _(folder, _patch):
    ranks = pipeline.stages((), 1, ranks=(0, 1))
    lost = [replace(r, op=("send_recv", *r.op[1:])) for r in ranks]
    run = replace(job(folder, grid(dp=4)), groups=(InferredGroup(0, pipeline.WORLD.ranks, (), ()),))
    ops = match(lost, run.groups)
    return lambda: choose(run, ops, None, None), lambda: choose(
        run, ops, parse_mesh("tp=1,cp=1,pp=4,dp=1"), None
    )


@case("and the ends of collectives do not show which ranks belong together")
def _(folder, _patch):
    rng = np.random.default_rng(1)
    ranks = [
        recorded(r, *[comm(1000.0 * n, 100 + rng.uniform(0, 400), None, stream=20) for n in range(12)])
        for r in range(4)
    ]
    run = replace(job(folder, grid(dp=4)), groups=())
    return (
        lambda: with_groups_of_streams(run, ranks, None, None),
        lambda: with_groups_of_streams(run, ranks, parse_mesh("tp=2,cp=1,pp=1,dp=2"), None),
    )


@case("the traces mark no steps, and neither one window")
def _(folder, _patch):
    def traces(name: str, *, marked: bool) -> Call:
        given = hostile.documents()
        for rank, trace in enumerate(given):
            listed = trace["traceEvents"]
            if not marked:
                listed = [e for e in listed if not str(e["name"]).startswith("ProfilerStep")]
                listed = listed[rank * len(listed) // 8 : (rank + 1) * len(listed) // 8]
            trace["traceEvents"] = listed
        where = str(hostile.write(folder / name, given))
        return lambda: analyse(load([where]), steps=[(None, 104)])

    return traces("unmarked", marked=False), traces("marked", marked=True)
