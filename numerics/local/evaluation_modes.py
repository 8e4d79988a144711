"""Modules that a run's forwards used in evaluation mode, where the model that the function builds trains them.

A layer in evaluation mode drops nothing and normalises by its running statistics. In a run that trains, that may be
intended (a frozen layer) or be left from an evaluation; an engine that only computes forwards evaluates as a rule.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from torch import nn

from numerics.local.local_check import Doubt
from numerics.local.records.recorded import RecordedRun
from numerics.record.wrapped_models import clean_name
from numerics.schema import EVALUATION, RANDOM

_SETTLED: Final = (
    "call `model.train()` after each evaluation; or, if it is intended, let the function of --model return the model "
    "with these modules in evaluation mode (`module.eval()`)"
)


def evaluated(recorded: RecordedRun, step: int, place: tuple[int, int]) -> frozenset[str] | None:
    """Return the largest modules that a place's ranks had in evaluation mode; None if modes were not recorded.

    A recorder that writes the states of generators before a forward writes modes too: without a row all modules train.
    """
    rows = recorded.of_place(recorded.rows(step, "forward", "input", EVALUATION), place)
    if not rows and recorded.of_place(recorded.rows(step, "forward", "input", f"{RANDOM}cpu"), place):
        return frozenset()
    held = [value for row in rows if (value := recorded.local(row)) is not None]
    lines = [bytes(value.tolist()).decode(errors="replace").split("\n")[:-1] for value in held]
    return frozenset(name for names in lines for name in names) if lines else None


@contextmanager
def in_modes(model: nn.Module, names: frozenset[str] | None) -> Iterator[None]:
    """Let the modules `names`, and what they hold, evaluate for a while, and all others train; None changes nothing."""
    before = [(module, module.training) for module in model.modules()]
    if names is not None:
        for name, module in model.named_modules():
            module.training = not _is_part(clean_name(name), names)
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def mode_doubts(recorded: RecordedRun, model: nn.Module) -> tuple[Doubt, ...]:
    """Return the doubt that a run trains with layers in evaluation mode that the built model has in training mode."""
    other = _other_mode(recorded, model) if _trains(recorded) else None
    if other is None:
        return ()
    name, step = other
    text = (
        f"{name} runs in evaluation mode from step {step} on, in which it drops nothing and uses running statistics, "
        "and in the model that the function builds it is in training mode"
    )
    return (Doubt(text, _SETTLED),)


def modes_in_words(recorded: RecordedRun, model: nn.Module) -> tuple[str, ...]:
    """Return in words that forwards without training were computed in evaluation mode, if the built model is not."""
    other = None if _trains(recorded) else _other_mode(recorded, model)
    return (
        () if other is None else (f"evaluation mode: {other[0]}, as the run has it; the built model trains",)
    )


def modal_layers(model: nn.Module) -> frozenset[str]:
    """Return the layers of a model that compute another thing in evaluation mode."""
    return frozenset(clean_name(name) for name, module in model.named_modules() if _depends(module))


def modes_apart(mine: RecordedRun, other: RecordedRun, layers: frozenset[str]) -> str:
    """Return in words which of `layers` trains in one run and evaluates in the other; "" where none does."""
    for step in mine.steps:
        if step not in other.steps:
            continue
        sides = [
            {name for place in run.places(step) for name in evaluated(run, step, place) or ()}
            for run in (mine, other)
        ]
        for layer in sorted(layers):
            own, its = (_is_part(layer, frozenset(names)) for names in sides)
            if own != its:
                modes = ("evaluation", "training") if own else ("training", "evaluation")
                return (
                    f"{layer} runs in {modes[0]} mode in step {step}, and in {modes[1]} mode in the baseline"
                )
    return ""


def _trains(recorded: RecordedRun) -> bool:
    """Return whether a run trained anything."""
    return bool(recorded.run.named("phase", "backward", "reduce", "step").any())


def _other_mode(recorded: RecordedRun, model: nn.Module) -> tuple[str, int] | None:
    """Return the first layer with a mode that matters and differs from the built model's, and the step; else None."""
    layers = [
        clean_name(name) for name, module in model.named_modules() if module.training and _depends(module)
    ]
    for step in recorded.steps:
        for place in recorded.places(step):
            names = evaluated(recorded, step, place) or frozenset()
            found = next((layer for layer in layers if _is_part(layer, names)), None)
            if found is not None:
                return found, step
    return None


def _depends(module: nn.Module) -> bool:
    """Return whether a layer of torch computes another thing in evaluation mode."""
    drops = float(getattr(module, "dropout", getattr(module, "p", 0.0)) or 0.0) if _plain(module) else 0.0
    normalises = isinstance(module, _NORMALISING)
    return drops > 0 or (normalises and getattr(module, "running_mean", None) is not None)


def _plain(module: nn.Module) -> bool:
    """Return whether a module is one of torch's that drop by a number."""
    return isinstance(module, _DROPPING)


_NORMALISING: Final = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)  # fmt: skip
_DROPPING: Final = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
    nn.MultiheadAttention, nn.RNNBase,
)  # fmt: skip


def _is_part(name: str, names: frozenset[str]) -> bool:
    """Return whether a module is one of `names` or a part of one; the empty name is the model."""
    parts = name.split(".") if name else []
    return any(".".join(parts[:n]) in names for n in range(len(parts) + 1))
