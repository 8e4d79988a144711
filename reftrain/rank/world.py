"""The place of this process among all ranks, as torchrun or Slurm describe it in the environment.

Needs no torch, so that a dry run answers at once.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from reftrain.config.checks import check_world
from reftrain.config.run import RunConfig
from reftrain.errors import ConfigError
from reftrain.thresholds import FIRST_SLURM_PORT, MOST_DEVICES, SLURM_PORTS
from tracekit.text import whole_number


@dataclass(frozen=True)
class World:
    """A rank, its place on its machine, the number of ranks, and where all meet (torch's init_method)."""

    rank: int
    local_rank: int
    size: int
    meeting: str


def world_from_environment(environment: Mapping[str, str]) -> World | None:
    """Return the world that torchrun or Slurm describes, or None where neither started this process.

    Raises `ConfigError` when the variables are incomplete or no numbers.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
        rank, local, size = (
            _number(environment, name, "0" if name == "LOCAL_RANK" else None) for name in names
        )
        return World(rank, local, size, "env://")
    if "SLURM_PROCID" in environment and int(environment.get("SLURM_NTASKS", "1")) > 1:
        names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS")
        rank, local, size = (_number(environment, name, None) for name in names)
        port = environment.get("MASTER_PORT") or str(
            FIRST_SLURM_PORT + _number(environment, "SLURM_JOB_ID", "0") % SLURM_PORTS
        )
        return World(rank, local, size, f"tcp://{_slurm_host(environment)}:{port}")
    return None


def _number(environment: Mapping[str, str], name: str, default: str | None) -> int:
    value = environment.get(name, default)
    number = None if value is None else whole_number(value, MOST_DEVICES)
    if number is None:
        raise ConfigError(
            name, f"{value!r} is not a number", "start ranks with torchrun or srun, or unset it"
        )
    return number


def _slurm_host(environment: Mapping[str, str]) -> str:
    """Return the first host of the job: MASTER_ADDR, or what scontrol says."""
    if environment.get("MASTER_ADDR"):
        return environment["MASTER_ADDR"]
    scontrol = shutil.which("scontrol")
    nodes = environment.get("SLURM_JOB_NODELIST", "")
    if scontrol is None or not nodes:
        raise ConfigError(
            "MASTER_ADDR", "is not set and scontrol is missing", "export MASTER_ADDR in the job"
        )
    listed = subprocess.run(  # noqa: S603 - a fixed program
        [scontrol, "show", "hostnames", nodes], capture_output=True, text=True, check=True, timeout=60
    )
    return listed.stdout.splitlines()[0]


def check_environment(config: RunConfig) -> str:
    """Return a sentence about the ranks that `launch` would start; raises `ConfigError` as it would."""
    world = world_from_environment(os.environ)
    if world is None:
        return f"would fork {config.mesh.world_size} ranks on this machine"
    check_world(config, world.size)
    return f"would join as rank {world.rank} (local {world.local_rank}) of {world.size} at {world.meeting}"
