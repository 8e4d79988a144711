"""`reftrain demo`: sixteen real ranks, one of them slow, recorded for `tracekit slowrank`."""

from pathlib import Path

import click

from reftrain.errors import ConfigError
from reftrain.job.demo import DEFAULT_FAULT, demo_config
from tracekit.own_files import of_a_run, remove_own, strangers

from .. import completion


@click.command()
@click.option(
    "--out", default="demo_run", show_default=True, help="Folder to write; an earlier run there is replaced."
)
@click.option("--steps", type=click.IntRange(3, 200), default=4, show_default=True, help="Steps to trace.")
@click.option(
    "--fault",
    default=DEFAULT_FAULT,
    shell_complete=completion.fault,
    show_default=True,
    help="What to plant (see `reftrain run`), or none.",
)
@click.option(
    "--seed", type=click.IntRange(0, 1 << 31), default=0, show_default=True, help="Seed of weights and data."
)
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def demo(out: str, steps: int, fault: str, seed: int, *, quiet: bool) -> None:
    """Train a small model on sixteen processes, one of them slow, and record it.

    Each of tensor, context, pipeline and data parallelism has two ranks. Communication is real; compute is emulated,
    so two cores suffice. `tracekit slowrank DEMO_RUN` then names the slow rank.
    """
    from reftrain.faults.registry import read_faults
    from reftrain.job.launcher import launch

    from .progress import Progress

    folder = Path(out)
    given: dict[str, dict[str, object]] = {
        "evidence": {"measure_lag": False},
        "run": {"seed": seed},
        "data": {"seed": seed + 1},
    }
    config = demo_config(folder, steps, [] if fault == "none" else [fault], given)
    read_faults(config)
    clear(folder)
    launch(config, lambda rank: [Progress()] if rank == 0 and not quiet else [])


def clear(folder: Path) -> None:
    """Remove an earlier run; raises `ConfigError` where the folder holds something else, beside the run or instead."""
    from reftrain.record.manifest import read_manifest

    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if folder.is_symlink() or read_manifest(folder) is None:
        raise ConfigError("--out", f"{folder} holds something else than a run", "give another folder")
    if foreign := strangers(folder, of_a_run):
        problem = f"{folder} holds {foreign[0]}, which reftrain did not write"
        raise ConfigError("--out", problem, "move it away, or give another folder")
    remove_own(folder, of_a_run)
