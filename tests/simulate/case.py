"""Small simulated jobs for the tests: a decoder whose pipeline stages do the same work."""

import dataclasses
from pathlib import Path

from reftrain.config.fault_spec import parse_fault
from reftrain.config.file import load
from reftrain.config.run import RunConfig
from reftrain.cost.hardware import load_hardware
from reftrain.cost.job import job_of_run
from reftrain.schedule.generators import generate
from reftrain.schedule.lower import lower
from reftrain.schedule.spec import ScheduleSpec
from reftrain.simulate.run_folder import Outcome, outcome_of, write_folder
from reftrain.simulate.runner import simulate
from reftrain.simulate.setup import Setup

MODEL = {"preset": "8b", "layers": 16, "vocab_size": 1024}
AXES = ("tp", "cp", "pp", "dp")


def config_of(mesh: dict[str, int], micro_batches: int = 4, **tables: dict[str, object]) -> RunConfig:
    sizes = {**dict.fromkeys(AXES, 1), **mesh}
    data = {"batch_size": micro_batches * sizes["dp"], **tables.get("data", {})}
    return load(
        None,
        {
            "model": {**MODEL, **tables.get("model", {})},
            "mesh": {**sizes, **tables.get("mesh", {})},
            "data": data,
            "pipeline": tables.get("pipeline", {}),
            "optimizer": tables.get("optimizer", {}),
        },
    )


def setup_of(
    mesh: dict[str, int],
    *faults: str,
    schedule: str = "1f1b",
    micro_batches: int = 4,
    virtual: int = 1,
    steps: int = 3,
    tables: dict[str, dict[str, object]] | None = None,
    **fields: object,
) -> tuple[Setup, RunConfig]:
    config = config_of(mesh, micro_batches, **{"pipeline": {"virtual_stages": virtual}, **(tables or {})})
    table = generate(
        ScheduleSpec(schedule, config.mesh.pp, config.micro_batches, virtual, config.consecutive)
    )
    specs = tuple(parse_fault(text, config.mesh.world_size) for text in faults)
    job = dataclasses.replace(job_of_run(config), schedule=schedule, kernels="fused", attention="flex")
    setup = Setup(
        job,
        lower(table, config.mesh.zero),
        load_hardware("h100"),
        steps,
        faults=specs,
        **{"seed": 5, "merge": True, **fields},
    )
    return setup, config


def written(
    folder: Path,
    setup: Setup,
    config: RunConfig,
    *,
    detail: str = "collectives",
    jobs: int = 1,
    ranks=None,
    **kw,
) -> Outcome:
    outcome = outcome_of(setup, simulate(setup))
    ranks = range(setup.grid.world) if ranks is None else ranks
    kw.setdefault("flight_recorder", False)
    return write_folder(outcome, config, folder, ranks=list(ranks), detail=detail, jobs=jobs, **kw)
