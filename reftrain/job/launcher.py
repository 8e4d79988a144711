"""Starts the ranks: forks them on one machine, or joins the world that torchrun or Slurm has started.

Forking after `import torch` takes half a second where torchrun takes as long as every rank's imports. The
parent watches them (`rank.processes`): it names a rank that dies and how, and ends the others.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from reftrain.config.checks import check_world
from reftrain.config.run import RunConfig
from reftrain.errors import ConfigError, MachineError, RankDiedError, StuckError
from reftrain.faults.bugs import read_bugs
from reftrain.faults.registry import read_faults
from reftrain.job.lag import record_lag, wants_lag
from reftrain.job.one_rank import MakeHooks, train_rank
from reftrain.rank.processes import (
    Ranks,
    describe_error,
    leave_signals_to_the_launcher,
    refusal,
)
from reftrain.rank.world import World, world_from_environment
from reftrain.record.job_log import note_death
from reftrain.record.last_calls import merge_last_calls
from reftrain.record.manifest import refuse_foreign
from reftrain.thresholds import MOST_FORKED
from tracekit.locked_folders import temporary
from tracekit.own_files import odd_name, unwritable

MEETING = "reftrain-meeting-"
"""Begin of the names of folders in which ranks of this machine meet."""
ENTRY_SHOWN = 80
"""Characters of a planted fault that a refusal shows."""


def launch(config: RunConfig, make_hooks: MakeHooks, tell: Callable[[str], None] = lambda _: None) -> None:
    """Run the job on all ranks; with planted slow faults, on this machine, a second time without them.

    An elastic job says with `tell` when it goes on after a death. Raises `ConfigError` when a launcher started another
    number of ranks than the mesh has, `RankDiedError` when a rank ended early, or the error that a rank reported.
    """
    check_faults(config)
    world = world_from_environment(os.environ)
    if config.elastic.enabled and world is not None:
        raise ConfigError(
            "elastic.enabled",
            "another launcher has started this rank",
            "let it start ranks again: torchrun --max-restarts N … --resume auto, or a requeued Slurm job",
        )
    prepare_folder(Path(config.out), first=world is None or world.rank == 0)
    if world is not None:
        check_world(config, world.size)
        leave_signals_to_the_launcher()
        _train_alone(config, world, make_hooks)
        return
    try:
        if config.elastic.enabled:
            _train_through_deaths(config, make_hooks, tell)
            return
        _train_here(config, make_hooks)
        if wants_lag(config):
            record_lag(config, lambda other: _train_here(other, lambda _: []))
    except OSError as error:
        error.filename = error.filename or config.out
        raise MachineError(refusal(error)) from error


def check_faults(config: RunConfig, file: Path | None = None) -> None:
    """Raise `ConfigError` for a planted fault or bug that cannot strike in this run; `file` lists them, if given."""
    refused = _refused(config)
    if refused is not None and file is not None:
        alone = {text: _refused(_with_faults(config, text)) for text in config.evidence.faults}
        entry = next((f" {t[:ENTRY_SHOWN]!r}" for t, e in alone.items() if str(e) == str(refused)), "")
        where = f"{file}: evidence.faults{entry}: {refused.field}"
        raise ConfigError(where, refused.problem, refused.remedy) from refused
    if refused is not None:
        raise refused


def _with_faults(config: RunConfig, *faults: str) -> RunConfig:
    """The configuration with these faults alone."""
    return replace(config, evidence=replace(config.evidence, faults=faults))


def _refused(config: RunConfig) -> ConfigError | None:
    """What is wrong with the first planted fault or bug that cannot strike, if any."""
    try:
        read_faults(config)
        read_bugs(config)
    except ConfigError as error:
        return error
    return None


def _train_through_deaths(config: RunConfig, make_hooks: MakeHooks, tell: Callable[[str], None]) -> None:
    """Run the job on this machine alone, through deaths of its ranks."""
    from reftrain.job.elastic import run_elastic

    _check_size(config)
    with temporary(MEETING) as folder:
        run_elastic(config, make_hooks, tell, folder)


def _train_here(config: RunConfig, make_hooks: MakeHooks) -> None:
    """Run the job on this machine alone."""
    if config.mesh.world_size == 1:
        with temporary(MEETING) as folder:
            _train_alone(config, World(0, 0, 1, f"file://{folder}/store"), make_hooks)
        return
    _fork_all(config, make_hooks)


def _train_alone(config: RunConfig, world: World, make_hooks: MakeHooks) -> None:
    """Run one rank of a world that others started; turn failures of its peers and of the machine into one sentence."""
    try:
        train_rank(config, world, make_hooks)
    except OSError as error:
        raise MachineError(refusal(error)) from error
    except RuntimeError as error:
        kind, sentence = describe_error(error)
        if kind in {"Lost", "Stuck"}:
            raise RankDiedError(f"rank {world.rank}: {sentence}; {_who_never_came(config)}") from error
        raise


def prepare_folder(folder: Path, *, first: bool = True) -> None:
    """Create the run's folder; raises `MachineError` when it cannot be written.

    The `first` rank also raises `ConfigError` where the folder holds files of a run that is none of ours.
    """
    if first:
        refuse_foreign("run.out", folder)
    try:
        why = odd_name(folder)
        if why is None:
            folder.mkdir(parents=True, exist_ok=True)
            why = unwritable(folder)
    except OSError as error:
        why = error.strerror
    if why:
        raise MachineError(f"{folder}: {why}; choose another out")


def _check_size(config: RunConfig) -> None:
    """Refuse more ranks than a machine forks."""
    size = config.mesh.world_size
    if size > MOST_FORKED:
        problem = f"{size} ranks are too many for one machine"
        raise ConfigError(
            "mesh", problem, f"stay below {MOST_FORKED}, or start the ranks with torchrun or srun"
        )


def _fork_all(config: RunConfig, make_hooks: MakeHooks) -> None:
    _check_size(config)
    size = config.mesh.world_size
    with temporary(MEETING) as folder:
        meeting = f"file://{folder}/store"
        ranks = Ranks()
        try:
            for rank in range(size):
                world = World(rank, rank, size, meeting)
                ranks.fork(partial(train_rank, config, world, make_hooks))
            ranks.wait()
        except StuckError as error:
            raise RankDiedError(f"{error}; {_who_never_came(config)}") from error
        except RankDiedError as error:
            if config.evidence.records_flight:
                note_death(Path(config.out), str(error))
            raise
        finally:
            ranks.end()
            if config.evidence.records_flight:
                merge_last_calls(Path(config.out) / "fr")


def _who_never_came(config: RunConfig) -> str:
    if config.evidence.records_flight:
        return f"tracekit hang {Path(config.out) / 'fr'} shows which rank never came"
    return "run again with --flight-recorder to see which rank never came"
