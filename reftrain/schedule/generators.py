"""Makes the table of a scheme by name, after the checks that all schemes share.

`registry` lists the schemes; each refuses by name the sizes that it cannot take.
"""

from reftrain.errors import ScheduleError
from reftrain.schedule.actions import Schedule
from reftrain.schedule.registry import SCHEMES, Scheme
from reftrain.schedule.spec import CONCATENATIONS, ScheduleSpec
from reftrain.thresholds import MOST_ACTIONS


def make_schedule(
    name: str,
    ranks: int,
    virtual: int,
    micro_batches: int,
    consecutive: int,
    *,
    pipelines: int = 2,
    concatenation: str = "direct",
    steps: int = 1,
) -> Schedule:
    """Build a schedule by name; see `ScheduleSpec` for the sizes.

    Raises `ScheduleError` for an unknown name or sizes the scheme has no meaning for.
    """
    return generate(
        ScheduleSpec(name, ranks, micro_batches, virtual, consecutive, pipelines, concatenation, steps)
    )


def generate(spec: ScheduleSpec) -> Schedule:
    """Build the schedule that a spec describes; raises `ScheduleError` as `make_schedule` does."""
    if spec.name not in SCHEMES:
        raise ScheduleError("pipeline.schedule", f"{spec.name!r} is unknown", f"choose {', '.join(SCHEMES)}")
    scheme = SCHEMES[spec.name]
    _check_sizes(spec)
    _check_options(scheme, spec)
    return scheme.build(spec)


def _check_sizes(spec: ScheduleSpec) -> None:
    if min(spec.ranks, spec.virtual, spec.micro_batches, spec.consecutive, spec.steps) < 1:
        raise ScheduleError("pipeline.schedule", "a size is below 1", "give p, v, m and k of at least 1")
    size = 2 * spec.ranks * spec.virtual * spec.micro_batches * spec.steps
    if size > MOST_ACTIONS:
        raise spec.refuse("pipeline.schedule", f"would have {size} actions", f"stay below {MOST_ACTIONS}")


def _check_options(scheme: Scheme, spec: ScheduleSpec) -> None:
    """Raise `ScheduleError` for an option that the scheme does not take."""
    if spec.concatenation not in CONCATENATIONS:
        problem = f"has no concatenation {spec.concatenation!r}"
        raise spec.refuse("pipeline.concatenation", problem, f"choose among {', '.join(CONCATENATIONS)}")
    if not {"pipelines", "concatenation"} <= scheme.options and (
        spec.pipelines != ScheduleSpec.pipelines or spec.concatenation != ScheduleSpec.concatenation
    ):
        raise spec.refuse(
            "pipeline.schedule", "has no choice of pipelines or concatenation", "leave them out"
        )
    if spec.steps > 1 and "steps" not in scheme.options:
        raise spec.refuse("pipeline.schedule", "is flushed after every step", "give 1 step")


def check_rounds(spec: ScheduleSpec) -> None:
    """Raise `ScheduleError` when a k that the user named has no effect: the scheme has no rounds, or m is less.

    `generate` takes such a k, because the default k = p may be above m and means one round of m micro-batches.
    """
    if "consecutive" not in SCHEMES[spec.name].options:
        remedy = "leave k out, or choose flexible or afab"
        raise spec.refuse("pipeline.consecutive", "has no rounds of consecutive micro-batches", remedy)
    if spec.consecutive > spec.micro_batches:
        problem = f"cannot run {spec.consecutive} of {spec.micro_batches} micro-batches consecutively"
        remedy = f"give k at most {spec.micro_batches}, or leave it out"
        raise spec.refuse("pipeline.consecutive", problem, remedy)
