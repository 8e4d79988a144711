"""An engine on all ranks of this machine: starts them, hands them the requests, writes what came out and how fast.

OUT holds run.json, OUT/infer/rankN.json with tokens and times, OUT/trace with the profiler's traces where asked.
"""

import dataclasses
import json
from functools import partial
from pathlib import Path

import torch

from reftrain.config.run import RunConfig
from reftrain.errors import ConfigError, MachineError
from reftrain.faults.registry import emulated_compute, fault_hooks, read_faults
from reftrain.infer.capture import watched
from reftrain.infer.checkpoint import load_weights
from reftrain.infer.engine import Engine, Workload, steps_of
from reftrain.infer.report import FOLDER
from reftrain.job.launcher import MEETING, prepare_folder
from reftrain.job.one_rank import choose_device, process_group
from reftrain.rank.hooks import HookList, Hooks, RunContext
from reftrain.rank.mesh import Mesh
from reftrain.rank.processes import Ranks, refusal
from reftrain.rank.world import World
from reftrain.record.evidence import Manifest, StepTrace
from reftrain.thresholds import MOST_FORKED
from tracekit.locked_folders import temporary

FAULTS = ("slow_compute", "launch_bound", "pauses", "slow_link")
"""Planted faults that an engine can have: those of computing and of communication, not of data or training."""


def check_serving(config: RunConfig, work: Workload) -> None:
    """Raise `ConfigError` for what an engine does not do."""
    mesh = config.mesh
    for axis in ("pp", "cp", "ep"):
        if mesh.sizes.get(axis, mesh.ep) > 1:
            raise ConfigError(f"mesh.{axis}", "an engine has tensor ranks and replicas alone", "set it to 1")
    if config.model.experts or config.model.cross_every:
        raise ConfigError(
            "model", "an engine serves plain decoders", "choose a preset without experts and images"
        )
    _check_forced(config, work)
    if work.requests % mesh.dp:
        problem = f"{work.requests} requests do not deal out to {mesh.dp} replicas"
        raise ConfigError("--requests", problem, f"give a multiple of {mesh.dp}")
    if mesh.world_size > MOST_FORKED:
        raise ConfigError("mesh", f"{mesh.world_size} ranks are too many for one machine", "choose fewer")
    for text in config.evidence.faults:
        kind = text.partition(":")[0]
        if kind not in FAULTS:
            raise ConfigError("fault", f"{kind} is not for an engine", f"choose among {', '.join(FAULTS)}")
    read_faults(config)


def _check_forced(config: RunConfig, work: Workload) -> None:
    """Refuse answers of other requests, and whole sequences that no answers give."""
    if work.whole and not work.forced:
        raise ConfigError("--whole", "needs the tokens of finished requests", "name their run with --forced")
    sizes = {len(tokens) for tokens in work.forced}
    if work.forced and (len(work.forced) < work.requests or sizes != {work.length}):
        problem = f"holds no {work.requests} requests of {work.length} tokens"
        raise ConfigError("--forced", problem, "give the --requests, --prompt and --generate of that run")
    highest = max((token for tokens in work.forced for token in tokens), default=0)
    if highest >= config.model.vocab_size:
        raise ConfigError("--forced", f"token {highest} is beyond the vocabulary", "choose that run's preset")


def serve(config: RunConfig, work: Workload, capture: str = "", *, traced: bool = False) -> RunConfig:
    """Answer all requests on all ranks of this machine, and write OUT; raises what a rank raised.

    `capture` is digest or tensors: on one rank the forwards are recorded for `numerics compare`. `traced` records all
    steps but the first with the profiler. Returns the configuration that was run.
    """
    config = prepared(config, work, traced=traced)
    check_serving(config, work)
    if capture and config.mesh.world_size > 1:
        raise ConfigError("--capture", "records an engine of one rank", "choose a mesh of one rank")
    prepare_folder(Path(config.out))
    size = config.mesh.world_size
    ranks = Ranks()
    with temporary(MEETING) as folder:
        try:
            for rank in range(size):
                world = World(rank, rank, size, f"file://{folder}/store")
                ranks.fork(partial(serve_rank, config, work, world, capture))
            ranks.wait()
        except OSError as error:
            raise MachineError(refusal(error)) from error
        finally:
            ranks.end()
    return config


def prepared(config: RunConfig, work: Workload, *, traced: bool) -> RunConfig:
    """Return the configuration with the engine's number of steps, and those to trace."""
    count = len(work.steps(config.mesh.dp))
    traces = tuple(range(1, count)) if traced else ()
    evidence = dataclasses.replace(config.evidence, trace_steps=traces)
    return dataclasses.replace(config, steps=count, evidence=evidence)


def serving_hooks(config: RunConfig) -> list[Hooks]:
    """Make the hooks that the configuration asks for, in the order of training's."""
    faults = read_faults(config)
    hooks: list[Hooks] = [Manifest(faults)]
    if config.evidence.trace_steps:
        hooks.append(StepTrace(config.evidence.trace_steps))
    planted = fault_hooks(faults)
    return [*hooks, *planted, *emulated_compute(config, planted)]


def serve_rank(config: RunConfig, work: Workload, world: World, capture: str = "") -> None:
    """Run one rank of an engine from its first request to its last."""
    torch.set_num_threads(config.threads)
    device = choose_device(config, world.local_rank)
    with process_group(world, device, config.evidence.waiting_s):
        listed = HookList(serving_hooks(config))
        try:
            mesh = Mesh(config.mesh, device, listed, config.evidence.waiting_s)
            listed.setup(RunContext(config, mesh, mesh.rank, device))
            engine = Engine(config, work, listed, mesh, device)
            if config.checkpoint.resume:
                load_weights(engine.sharded, mesh, config)
            with watched(engine, capture) as on_step:
                requests = engine.run(on_step)
        finally:
            listed.close()
    answer = {
        "schema": "reftrain.infer/1",
        "rank": world.rank,
        "requests": [{"number": r.number, "tokens": r.tokens} for r in requests],
        "steps": [dataclasses.asdict(done) for done in engine.done],
        "total": {kind: {"steps": n, "tokens": t, "seconds": s} for kind, n, t, s in steps_of(engine.done)},
        "cache_bytes": engine.model.cache.bytes if engine.model.cache else 0,
    }
    folder = Path(config.out) / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / f"rank{world.rank}.json").write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
