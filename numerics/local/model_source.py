"""Loads the function that builds a user's model on one process: FILE.py:FUNCTION or MODULE:FUNCTION."""

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tracekit.errors import InputError


def build_model(source: str) -> tuple[nn.Module, torch.optim.Optimizer | None]:
    """Return what FUNCTION builds: the whole model, and its optimiser where it returns one beside it.

    The function takes no argument and returns the model without any parallelism, or (model, optimiser). InputError
    where it cannot be loaded, fails, or returns something else.
    """
    place, colon, name = source.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise InputError(f"{source}: name a function as FILE.py:FUNCTION or MODULE:FUNCTION")
    function = getattr(_module(place), name, None)
    if not callable(function):
        raise InputError(f"{source}: {place} has no function {name}")
    try:
        made: Any = function()
    except Exception as error:
        raise InputError(f"{source}: the function failed ({type(error).__name__}: {error})") from error
    model, optimizer = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module) or not isinstance(optimizer, torch.optim.Optimizer | None):
        raise InputError(
            f"{source}: returned {type(made).__name__}; return an nn.Module, or (module, optimiser)"
        )
    return model, optimizer


def _module(place: str) -> Any:
    """Return the module of a file or name; the file's folder is searched for what it imports."""
    path = Path(place)
    if path.suffix == ".py" and not path.is_file():
        raise InputError(f"{place}: no such file")
    try:
        if path.suffix != ".py":
            sys.path.insert(0, "")
            return importlib.import_module(place)
        sys.path.insert(0, str(path.parent.absolute()))
        return importlib.import_module(path.stem)
    except Exception as error:
        raise InputError(f"{place}: cannot be imported ({type(error).__name__}: {error})") from error
