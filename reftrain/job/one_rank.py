"""Trains on one rank: joins the process group, resumes, makes the steps, calls the hooks, saves.

`launcher` calls `train_rank` in every process; the command calls the launcher.
"""

import contextlib
import datetime as dt
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from reftrain.config.run import RunConfig
from reftrain.errors import ConfigError, MachineError
from reftrain.faults.bugs import plant, read_bugs
from reftrain.faults.registry import emulated_compute, fault_hooks, read_faults
from reftrain.model.flops import mfu, peak_bytes
from reftrain.rank.events import StepMetrics
from reftrain.rank.hooks import HookList, Hooks
from reftrain.rank.world import World
from reftrain.record.allocator import AllocatorSnapshot
from reftrain.record.capture import Capture
from reftrain.record.evidence import Manifest, MetricsLog, StepTrace
from reftrain.record.flight_hook import FlightRecording
from reftrain.record.memory import MemoryByKind
from reftrain.record.orders import OrderRecorder
from reftrain.record.shadow_gradients import Shadow
from reftrain.record.trackers import Tracking
from reftrain.train.asynchronous import make_trainer
from reftrain.train.checkpoint import Checkpointer, find
from reftrain.train.evaluation import Evaluator
from reftrain.train.trainer import Trainer

MakeHooks = Callable[[int], Sequence[Hooks]]
"""Makes the hooks of a rank, in its own process."""


def choose_device(config: RunConfig, local_rank: int) -> torch.device:
    """Return the device of a rank; `ConfigError` where the machine has too few, or the kernel needs another."""
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        if config.numerics.attention == "flex":
            raise ConfigError(
                "numerics.attention",
                "flex has no backward on a CPU",
                "choose sdpa, math or documents, or run on a GPU",
            )
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count == 0 or (local_rank >= count and not config.share_gpus):
        raise ConfigError(
            "run.device",
            f"rank {local_rank} of this machine has no GPU of {count}",
            "use device = cpu" + (", or for a test run.share_gpus = true" if count else ""),
        )
    device = torch.device("cuda", local_rank % count)
    torch.cuda.set_device(device)
    return device


def let_ranks_share_gpus(rank: int) -> None:
    """Let NCCL take the ranks of this machine for hosts of their own, which speak through sockets.

    It refuses two ranks of one host on one GPU. What the user has set stays.
    """
    os.environ.setdefault("NCCL_HOSTID", f"reftrain-{rank}")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_IB_DISABLE", "1")
    os.environ.setdefault("NCCL_MAX_CTAS", "2")  # kernels of all ranks wait on one GPU at once


@contextlib.contextmanager
def stderr_unless_it_fails() -> Iterator[None]:
    """Hold back the C++ output to stderr in the block, and drop it when the block raises: the error says the same.

    torch writes fifty lines of a C++ stack when ranks cannot meet.
    """
    sys.stderr.flush()
    try:
        ours = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(ours, 2)
            os.close(ours)
        held.seek(0)
        while part := held.read(1 << 16):
            os.write(2, part)


@contextlib.contextmanager
def process_group(world: World, device: torch.device, timeout_s: float) -> Iterator[None]:
    """Join the world; raises `MachineError` when the meeting place cannot be opened."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        with stderr_unless_it_fails():
            dist.init_process_group(
                backend,
                init_method=world.meeting,
                rank=world.rank,
                world_size=world.size,
                timeout=dt.timedelta(seconds=timeout_s),
                device_id=device if device.type == "cuda" else None,
            )
    except (dist.DistNetworkError, dist.DistStoreError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise MachineError(
            f"rank {world.rank} cannot meet the others at {world.meeting}: {reason}; "
            "choose a free MASTER_PORT and a MASTER_ADDR that all ranks reach"
        ) from error
    try:
        yield
    finally:
        dist.destroy_process_group()


def own_hooks(config: RunConfig, reached: int = -1) -> list[Hooks]:
    """Make the hooks that the configuration asks for; `reached` as in `fault_hooks`.

    Spans enclose faults, and faults the emulated computation: begins run in this order, ends in the reverse.
    """
    faults = read_faults(config)
    memory = MemoryByKind()
    hooks: list[Hooks] = [Manifest([*faults, *read_bugs(config)]), MetricsLog(memory), memory]
    if config.evidence.records_flight:
        hooks.append(FlightRecording(config.out))
    if config.evidence.trace_steps:
        hooks.append(StepTrace(config.evidence.trace_steps))
    if config.evidence.memory_snapshot:
        hooks.append(AllocatorSnapshot(max(config.evidence.trace_steps, default=None)))
    if config.evidence.shadow_gradients:
        hooks.append(Shadow())
    if config.evidence.capture:
        hooks += [Capture(config.evidence.capture, config.evidence.capture_names), OrderRecorder()]
    if config.evidence.trackers:
        hooks.append(Tracking(config.evidence.trackers))
    planted = fault_hooks(faults, reached)
    return [*hooks, *planted, *emulated_compute(config, planted)]


def train_rank(config: RunConfig, world: World, make_hooks: MakeHooks, reached: int = -1) -> None:
    """Run the whole job on one rank; `reached` is the last step that an earlier attempt had begun."""
    torch.set_num_threads(config.threads)
    device = choose_device(config, world.local_rank)
    if device.type == "cuda" and config.share_gpus:
        let_ranks_share_gpus(world.rank)
    hooks = [*own_hooks(config, reached), *make_hooks(world.rank)]
    with plant(config, world.rank), process_group(world, device, config.evidence.waiting_s):
        listed = HookList(hooks)
        try:
            try:
                _train(make_trainer(config, listed, device), listed, device)
            finally:
                listed.close()
        except OSError as error:
            error.filename = error.filename or config.out  # a write to an open file names none
            raise


def _train(trainer: Trainer, hooks: HookList, device: torch.device) -> None:
    config = trainer.config
    own = Path(config.out) / "checkpoint"
    start = find(config.checkpoint.resume, own)
    saves = config.checkpoint.every or config.checkpoint.at_end
    checkpointer = Checkpointer(trainer, own) if saves or start else None
    first = checkpointer.load(start) if checkpointer and start else 0
    _check_resumed(config, first)
    evaluator = Evaluator(trainer) if config.evaluation.every else None
    barrier(device)
    for step in range(first, config.steps):
        _step(trainer, hooks, step, device)
        if evaluator:
            evaluator.after_step(step)
        if checkpointer:
            checkpointer.after_step(step)
    if checkpointer:
        checkpointer.wait()
    barrier(device)


def _check_resumed(config: RunConfig, first: int) -> None:
    """Refuse a checkpoint that the user named and that leaves no step, or no traced step, to run.

    A job that a scheduler restarts (`resume = auto`) may have nothing left to do.
    """
    if config.checkpoint.resume in {"", "auto"}:
        return
    if first >= config.steps:
        raise ConfigError(
            "run.steps",
            f"the checkpoint is at step {first}, but run.steps is {config.steps}",
            "raise run.steps, or start from an earlier checkpoint",
        )
    if config.evidence.trace_steps and min(config.evidence.trace_steps) < first:
        raise ConfigError(
            "evidence.trace_steps",
            f"step {min(config.evidence.trace_steps)} is before step {first}, where the run resumes",
            f"choose steps from {first} on",
        )


def _step(trainer: Trainer, hooks: HookList, step: int, device: torch.device) -> None:
    """Make one step and hand its figures to the hooks."""
    config = trainer.config
    begin = time.perf_counter()
    hooks.step_begin(step)
    got = trainer.compute_gradients(step)
    rate = trainer.apply_gradients(step, got.norm)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    step_s = time.perf_counter() - begin
    hooks.step_end(
        StepMetrics(
            step=step,
            loss=got.loss,
            grad_norm=float(got.norm.item()),
            learning_rate=rate,
            tokens=config.data.batch_size * config.data.seq_len,
            valid_tokens=got.valid_tokens,
            step_s=step_s,
            mfu=mfu(config, device, step_s),
            peak_bytes=peak_bytes(device),
        )
    )


def barrier(device: torch.device) -> None:
    """Wait for all ranks."""
    if device.type == "cuda":
        dist.barrier(device_ids=[device.index or 0])
    else:
        dist.barrier()
