"""The arguments of a model's call: its tensors by name, and their places among lists, mappings and plain values.

A tensor is named by its place: "0" or "mask", and within a list or mapping "1.0" or "batch.ids". A call with more than
tensors is kept in its form, so that a replay makes the same call: a None by position keeps its place.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

_PLAIN = (bool, int, float, str, type(None))


def named_tensors(args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """Return the tensors of a call by name."""
    return _call(args, kwargs)[1]


def form_of(args: Sequence[object], kwargs: Mapping[str, object]) -> torch.Tensor | None:
    """Return the form of a call, (bytes,) uint8: JSON of its places; None if all arguments are tensors."""
    if all(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values())):
        return None
    return torch.frombuffer(bytearray(json.dumps(_call(args, kwargs)[0]).encode()), dtype=torch.uint8)


def _call(
    args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the form of a call and its tensors by name."""
    found: dict[str, torch.Tensor] = {}
    by_place = [_form(value, str(n), found) for n, value in enumerate(args)]
    return {"args": by_place, "kwargs": {k: _form(v, k, found) for k, v in kwargs.items()}}, found


def _form(value: object, name: str, found: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return the form of a value, and put its tensors into `found`."""
    if isinstance(value, torch.Tensor):
        found[name] = value
        return {"tensor": name}
    if isinstance(value, _PLAIN):
        return {"plain": value}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"mapping": {key: _form(one, f"{name}.{key}", found) for key, one in value.items()}}
    if isinstance(value, (list, tuple)) and type(value) in {list, tuple}:
        parts = [_form(one, f"{name}.{n}", found) for n, one in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": parts}
    return {"other": type(value).__name__}


def call_of(raw: bytes, tensors: Mapping[str, torch.Tensor]) -> tuple[list[Any], dict[str, Any]] | None:
    """Return the arguments of a call by its recorded form; None where that does not fit the tensors.

    Named arguments of other types are left out: the model takes its own for them.
    """
    try:
        form = json.loads(raw)
        named = {key: _value(one, tensors) for key, one in form["kwargs"].items() if "other" not in one}
        return [_value(one, tensors) for one in form["args"]], named
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _value(form: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return a value by its form. KeyError for a value that no form holds, or a tensor that was not recorded."""
    kind, inner = next(iter(form.items()))
    if kind == "tensor":
        return tensors[inner]
    if kind == "plain":
        return inner
    if kind == "mapping":
        return {key: _value(one, tensors) for key, one in inner.items()}
    listed = [_value(one, tensors) for one in {"list": inner, "tuple": inner}[kind]]
    return tuple(listed) if kind == "tuple" else listed
