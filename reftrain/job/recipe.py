"""Runs the stages of a recipe one after the other: each goes on from the checkpoint before, on its own mesh.

Every stage leaves a run folder of its own below the recipe's, and a checkpoint after its last step. The checkpoint is
resharded when the next stage loads it (`train.checkpoint`), so that the mesh may change between stages.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from reftrain.config.recipe import Recipe, Stage
from reftrain.config.run import RunConfig
from reftrain.errors import ConfigError
from reftrain.job.launcher import check_faults, launch
from reftrain.job.one_rank import MakeHooks
from reftrain.rank.world import world_from_environment
from reftrain.train.average import write_average
from reftrain.train.checkpoint import finished

AVERAGE = "average"
"""Folder of the averaged checkpoint."""


def folder_of(out: Path, number: int, stage: Stage) -> Path:
    """Return the run folder of a stage."""
    return out / f"{number + 1}-{stage.name}"


def run_recipe(recipe: Recipe, make_hooks: MakeHooks, tell: Callable[[str], None]) -> None:
    """Train all stages that are not finished, then average; `tell` hears which stage begins.

    With `checkpoint.resume = auto` a recipe that was interrupted goes on. Raises `ConfigError` where its folder holds
    checkpoints and nothing says to go on from them, and whatever `launch` raises.
    """
    shared = recipe.stages[0].config
    out, resume = Path(shared.out), shared.checkpoint.resume
    _check(recipe, out, resume)
    before = None if resume in {"", "auto"} else resume
    for number, stage in enumerate(recipe.stages):
        folder = folder_of(out, number, stage)
        own = finished(folder / "checkpoint")
        if not own or own[-1][0] < stage.config.steps:
            tell(
                f"stage {stage.name}: steps {stage.first} to {stage.config.steps - 1}, {_words(stage.config)}"
            )
            launch(_config(stage, folder, "auto" if own else before or "", recipe), make_hooks, tell)
        before = str(folder)
    if recipe.average:
        kept = finished(folder / "checkpoint")[-recipe.average :]
        write_average(
            [path for _, path in kept], out / AVERAGE / f"step-{recipe.stages[-1].config.steps:08d}"
        )
        tell(f"averaged the weights of steps {', '.join(str(step) for step, _ in kept)} in {out / AVERAGE}")


def _check(recipe: Recipe, out: Path, resume: str) -> None:
    """Refuse other launchers, old checkpoints, and more averaged checkpoints than are kept."""
    if world_from_environment(os.environ) is not None:
        raise ConfigError(
            "--recipe", "another launcher has started this rank", "run it without torchrun or srun"
        )
    held = any(finished(folder_of(out, n, s) / "checkpoint") for n, s in enumerate(recipe.stages))
    if held and resume != "auto":
        raise ConfigError(
            "run.out",
            f"{out} holds checkpoints of an earlier recipe",
            "give --resume auto to go on, or another out",
        )
    for stage in recipe.stages:
        check_faults(stage.config)
    last = recipe.stages[-1]
    every = last.config.checkpoint.every
    if recipe.average > 1 and (not every or every * (recipe.average - 1) >= last.steps):
        raise ConfigError(
            "recipe.average",
            f"the {last.steps} steps of stage {last.name} save fewer than {recipe.average} checkpoints",
            "set checkpoint.every lower, or average fewer",
        )


def _words(config: RunConfig) -> str:
    sizes = ", ".join(f"{axis} {size}" for axis, size in config.mesh.sizes.items() if size > 1) or "one rank"
    return f"{config.data.batch_size} sequences of {config.data.seq_len} tokens a step, {sizes}"


def _config(stage: Stage, folder: Path, resume: str, recipe: Recipe) -> RunConfig:
    """Return a stage's configuration with its folder, its start, and the checkpoints that the recipe needs."""
    saved = stage.config.checkpoint
    keep = max(saved.keep, recipe.average)
    checkpoint = replace(saved, resume=resume, at_end=True, keep=keep)
    return replace(stage.config, out=str(folder), checkpoint=checkpoint)
