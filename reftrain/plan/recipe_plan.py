"""Plans every stage of a recipe: the mesh to take for it beside the one that the recipe names, in one table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from reftrain.config.recipe import Recipe, Stage
from reftrain.cost.hardware import GIB, Hardware
from reftrain.cost.job import Job, job_of_run
from reftrain.cost.memory import MemoryModel
from reftrain.documents import RecipePlanDocument
from reftrain.plan.choose import Plan, Planner, mesh_of
from reftrain.plan.meshes import Workload
from reftrain.plan.plan_report import mesh_text
from reftrain.plan.projection import project
from tracekit.axes import AXES


@dataclass(frozen=True)
class PlannedStage:
    """A stage, the plan of its workload, and its own mesh with the seconds and bytes of a step on it."""

    stage: Stage
    plan: Plan
    own: Job
    own_s: float
    own_bytes: float

    @property
    def hours(self) -> float:
        """Projected hours of the stage on the taken mesh."""
        return self.stage.steps * self.plan.taken.projection.step_s / 3600


def plan_recipe(
    recipe: Recipe, hardware: Hardware, gpus: int | None, prefer: str, tell: Callable[[int, int], None]
) -> list[PlannedStage]:
    """Return the plans of all stages, each for `gpus` devices or as many as its own mesh has.

    `tell` gets the candidates done and their total. Raises `ConfigError` where nothing fits.
    """
    found = []
    for stage in recipe.stages:
        config = stage.config
        data, count = config.data, gpus or config.mesh.world_size
        work = Workload(
            config.model, count, data.seq_len, data.batch_size, data.micro_batch_size, config.encoder,
            config.mesh.sharding, config.optimizer.offload,
        )  # fmt: skip
        own = replace(job_of_run(config), kernels="fused", attention="flex", optimizer="fused")
        step_s, peak = project(own, hardware).step_s, MemoryModel(own).peak()
        found.append(PlannedStage(stage, Planner(work, hardware).plan(prefer, tell), own, step_s, peak))
    return found


def table(planned: Sequence[PlannedStage]) -> str:
    """The plans as text, a line a stage, and the hours of all."""
    head = ("stage", "steps", "tokens a step", "tokens", "mesh of the recipe", "step s", "GiB", "mesh to take",
            "schedule", "step s", "GiB", "TFLOP/s", "hours")  # fmt: skip
    rows = [head, *(_row(each) for each in planned)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join(
            c.ljust(w) if i in _LEFT else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    hours = sum(each.hours for each in planned)
    usable = planned[0].plan.hardware.usable_bytes / GIB
    lines += [
        "",
        f"{hours:.2f} hours in all on the meshes to take; {usable:.1f} GiB usable, of fused kernels",
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


_LEFT = (0, 4, 7, 8)
"""Columns of the text that begin at the left."""


def _row(planned: PlannedStage) -> tuple[str, ...]:
    stage, taken = planned.stage, planned.plan.taken
    data = stage.config.data
    return (
        stage.name,
        str(stage.steps),
        f"{data.batch_size} x {data.seq_len}",
        str(stage.steps * stage.tokens),
        mesh_text(mesh_of(planned.own)),
        f"{planned.own_s:.3f}",
        f"{planned.own_bytes / GIB:.1f}",
        mesh_text(taken.mesh),
        taken.schedule,
        f"{taken.projection.step_s:.3f}",
        f"{taken.memory_bytes / GIB:.1f}",
        f"{taken.tflops:.0f}",
        f"{planned.hours:.2f}",
    )


def document(planned: Sequence[PlannedStage]) -> RecipePlanDocument:
    """The plans as `reftrain.recipe_plan/1`."""
    return {
        "schema": "reftrain.recipe_plan/1",
        "hardware": planned[0].plan.hardware.name,
        "stages": [
            {
                "name": each.stage.name,
                "steps": each.stage.steps,
                "seq_len": each.stage.config.data.seq_len,
                "sequences": each.stage.config.data.batch_size,
                "mesh": dict(zip(AXES, mesh_of(each.own), strict=True)),
                "step_s": each.own_s,
                "memory_gib": each.own_bytes / GIB,
                "taken": dict(zip(AXES, each.plan.taken.mesh, strict=True)),
                "taken_schedule": each.plan.taken.schedule,
                "taken_step_s": each.plan.taken.projection.step_s,
                "taken_memory_gib": each.plan.taken.memory_bytes / GIB,
                "taken_hours": each.hours,
            }
            for each in planned
        ],
    }
