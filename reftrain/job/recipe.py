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


def run_recipe(recipe: Recipe, make_hooks: MakeHooks, tell: Callable[[str], None], only: str = "") -> None:
    """Train all stages that are not finished, or `only` the stage of that name, then average; `tell` hears of each.

    With `checkpoint.resume = auto` a recipe that was interrupted goes on. Raises `ConfigError` where its folder holds
    checkpoints and nothing says to go on from them, where the stage before `only` is not finished, and whatever
    `launch` raises.
    """
    shared = recipe.stages[0].config
    out, resume = Path(shared.out), shared.checkpoint.resume
    chosen = _chosen(recipe, out, only)
    world = world_from_environment(os.environ)
    first = world is None or world.rank == 0
    say = tell if first else lambda _: None
    _check(recipe, chosen, out, resume)
    start = "" if resume == "auto" else resume
    before = str(folder_of(out, chosen[0] - 1, recipe.stages[chosen[0] - 1])) if chosen[0] else start
    for number in chosen:
        stage = recipe.stages[number]
        folder = folder_of(out, number, stage)
        own = finished(folder / "checkpoint")
        if not own or own[-1][0] < stage.config.steps:
            say(
                f"stage {stage.name}: steps {stage.first} to {stage.config.steps - 1}, {_words(stage.config)}"
            )
            launch(_config(stage, folder, "auto" if own else before, recipe), make_hooks, tell)
        before = str(folder)
    if recipe.average and stage is recipe.stages[-1] and first:
        kept = finished(folder / "checkpoint")[-recipe.average :]
        write_average(
            [path for _, path in kept], out / AVERAGE / f"step-{recipe.stages[-1].config.steps:08d}"
        )
        say(f"averaged the weights of steps {', '.join(str(step) for step, _ in kept)} in {out / AVERAGE}")


def _chosen(recipe: Recipe, out: Path, only: str) -> range:
    """Return the numbers of the stages to train; refuse a name that none has, and a stage before its turn."""
    names = [stage.name for stage in recipe.stages]
    if not only:
        return range(len(names))
    if only not in names:
        raise ConfigError("--stage", f"no stage is named {only[:40]!r}", f"choose one of {', '.join(names)}")
    number = names.index(only)
    if number:
        folder, first = folder_of(out, number - 1, recipe.stages[number - 1]), recipe.stages[number].first
        if first not in [step for step, _ in finished(folder / "checkpoint")]:
            raise ConfigError(
                "--stage", f"{folder} holds no checkpoint of step {first}", f"train {names[number - 1]} first"
            )
    return range(number, number + 1)


def _check(recipe: Recipe, chosen: range, out: Path, resume: str) -> None:
    """Refuse ranks of another launcher for several stages, old checkpoints, and more averaged ones than are kept."""
    if world_from_environment(os.environ) is not None and len(chosen) > 1:
        raise ConfigError(
            "--recipe",
            "another launcher has started this rank, and stages may need other numbers of ranks",
            "let it start each stage by itself: torchrun … reftrain run --recipe FILE --stage NAME",
        )
    held = any(finished(folder_of(out, n, recipe.stages[n]) / "checkpoint") for n in chosen)
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
