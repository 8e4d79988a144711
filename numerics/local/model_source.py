"""Loads the function that builds a user's model on one process: FILE.py:FUNCTION or MODULE:FUNCTION."""

import importlib
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn

from numerics.local.updates.learning_rates import Schedule
from tracekit.errors import InputError

_LOADED_AS: Final = "tracekit_model_source"
"""The name that a file is loaded under: its own could be that of an installed or imported module (`train.py`)."""


@dataclass(frozen=True)
class Built:
    """What a user's function builds: the whole model, its optimiser, loss function and scheduler; None if left out."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None = None
    loss: Callable[..., torch.Tensor] | None = None
    schedule: Schedule | None = None


def build(source: str) -> Built:
    """Return what FUNCTION builds: the model, or (model, optimiser), and after them a loss, a scheduler, or both.

    The function takes no argument; the model is without any parallelism, and the loss maps the model's output and the
    recorded targets to the number from which the backward starts. The scheduler sets the optimiser's learning rates,
    and is stepped once after each of its steps. InputError where it cannot be loaded, fails, or returns something else.
    """
    place, colon, name = source.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise InputError(f"{source}: name a function as FILE.py:FUNCTION or MODULE:FUNCTION")
    function = getattr(_module(place), name, None)
    if not callable(function):
        raise InputError(f"{source}: {place} has no function {name}")
    try:
        made: Any = function()
    except Exception as error:  # the user's code may raise anything
        raise InputError(f"{source}: the function failed ({_in_words(error)})") from error
    parts = made if isinstance(made, tuple) else (made,)
    schedules = [part for part in parts[2:] if isinstance(part, Schedule)]
    others = [part for part in parts if not any(part is one for one in schedules)]
    model, optimizer, loss = (*others, None, None, None)[:3]
    known = isinstance(model, nn.Module) and isinstance(optimizer, torch.optim.Optimizer | None)
    own = all(one.optimizer is optimizer for one in schedules)
    few = len(others) < len(fields(Built)) and len(schedules) <= 1
    if not (known and few and own) or not (loss is None or callable(loss)):
        raise InputError(
            f"{source}: returned {type(made).__name__}; return an nn.Module, (module, optimiser), or "
            "(module, optimiser, loss), with the optimiser's scheduler behind them where there is one"
        )
    return Built(model, optimizer, loss, next(iter(schedules), None))


def build_model(source: str) -> tuple[nn.Module, torch.optim.Optimizer | None]:
    """Return the model and its optimiser that FUNCTION builds; see `build`."""
    built = build(source)
    return built.model, built.optimizer


def _module(place: str) -> ModuleType:
    """Return the module of a file or name; the file's folder is searched for what it imports."""
    path = Path(place)
    if path.suffix == ".py" and not path.is_file():
        raise InputError(f"{place}: no such file")
    try:
        if path.suffix != ".py":
            sys.path.insert(0, "")
            return importlib.import_module(place)
        sys.path.insert(0, str(path.parent.absolute()))
        return _of_file(path)
    except Exception as error:  # the user's code may raise anything
        raise InputError(f"{place}: cannot be imported ({_in_words(error)})") from error


def _of_file(path: Path) -> ModuleType:
    """Return the module that a file holds; nothing else that has its name is loaded or replaced."""
    spec = spec_from_file_location(_LOADED_AS, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: is not a Python file")
    module = module_from_spec(spec)
    sys.modules[_LOADED_AS] = module  # pickles and dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _in_words(error: Exception) -> str:
    """Return an error of the user's code with the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f", {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
