"""What traces do not hold, as users give it: the hardware's peak, the model's FLOPs, and a plan of `reftrain plan`."""

import json
import re
import tomllib
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Final

from tracekit.errors import InputError, UsageError
from tracekit.small_files import read_small
from tracekit.thresholds.floor import ATTENTION_FLOPS, MAX_GIVEN, MAX_PLAN_BYTES, PARAMETER_FLOPS

_SUFFIXES: Final = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_NUMBER: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)([KMBGT]?)")
_MODEL_KEYS: Final = ("flops", "parameters", "tokens", "layers", "dim", "seq")
_ATTENTION: Final = ("layers", "dim", "seq")
_PLAN: Final = "reftrain.plan/"


@dataclass(frozen=True)
class Plan:
    """The choice that a plan recommends: its step in ms, its mesh and its schedule in words."""

    step_ms: float
    words: str


def parse_hardware(text: str) -> float:
    """Return the peak of one device, TFLOP/s, from `peak_tflops=989` or a TOML file with `[device] peak_tflops`.

    Raises UsageError where the text or the file says no such number, InputError where the file cannot be read.
    """
    if "=" in text:
        return _numbers(text, "--hardware", ("peak_tflops",))["peak_tflops"]
    try:
        described = tomllib.loads(_read(text, "--hardware").decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{text}: not TOML: {error}") from error
    device = described.get("device")
    peak = device.get("peak_tflops") if isinstance(device, dict) else None
    if not _positive(peak):
        raise UsageError(f"--hardware {text}: the file has no number peak_tflops in [device]; add it")
    return float(peak)


def parse_model(text: str) -> float:
    """Return the FLOPs of one step of the whole job, without recomputation, from the option `--model`.

    `flops=…`, or 6 · parameters · tokens (active parameters, tokens of a step), plus 12 · layers · dim · seq a token for
    attention where these three are given (PaLM, appendix B). Raises UsageError where the text says neither.
    """
    given = _numbers(text, "--model", _MODEL_KEYS)
    if "flops" in given:
        if len(given) > 1:
            raise UsageError("--model: flops is the whole step; leave the other keys out")
        return given["flops"]
    if not {"parameters", "tokens"} <= set(given):
        raise UsageError(f"--model {text[:60]!r}: write parameters=8e9,tokens=4M, or flops=2e17")
    partly = [key for key in _ATTENTION if key in given]
    if partly and len(partly) < len(_ATTENTION):
        raise UsageError(f"--model: attention needs {', '.join(_ATTENTION)}; only {', '.join(partly)} given")
    attention = ATTENTION_FLOPS * given["layers"] * given["dim"] * given["seq"] if partly else 0.0
    return (PARAMETER_FLOPS * given["parameters"] + attention) * given["tokens"]


def read_plan(path: str) -> Plan:
    """Return the choice that the answer of `reftrain plan --json` in a file takes.

    Raises InputError where the file cannot be read, is no such answer, or holds no choice.
    """
    try:
        document = json.loads(_read(path, "--plan").decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict) or not str(document.get("schema", "")).startswith(_PLAN):
        raise InputError(f"{path}: not an answer of reftrain plan; write one with reftrain plan … --json {path}")
    listed = document.get("choices")
    choices = [c for c in listed if isinstance(c, dict)] if isinstance(listed, list) else []
    choices = [c for c in choices if _positive(c.get("step_s"))]
    if not choices:
        raise InputError(f"{path}: the plan holds no choice with its step")
    taken = next((c for c in choices if c.get("mesh") == document.get("taken")), None)
    chosen = taken or min(choices, key=lambda c: float(c["step_s"]))
    return Plan(1000 * float(chosen["step_s"]), _words(chosen))


def _words(choice: dict[str, Any]) -> str:
    mesh = choice.get("mesh")
    sizes = ",".join(f"{k}={v}" for k, v in mesh.items()) if isinstance(mesh, dict) else "?"
    schedule = choice.get("schedule")
    name = schedule.get("name") if isinstance(schedule, dict) else schedule
    return sizes + (f", schedule {name}" if isinstance(name, str) else "")


def _numbers(text: str, option: str, keys: tuple[str, ...]) -> dict[str, float]:
    """Return the numbers of `key=value` pairs joined by commas; UsageError names what is wrong."""
    found: dict[str, float] = {}
    for part in text.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in keys:
            raise UsageError(f"{option}: no key is called {key[:40]!r}; the keys are {', '.join(keys)}")
        if key in found:
            raise UsageError(f"{option}: {key} is given twice")
        found[key] = _number(value, f"{option}: {key}")
    return found


def _number(text: str, what: str) -> float:
    matched = _NUMBER.fullmatch(text)
    value = float(matched[1]) * _SUFFIXES.get(matched[2], 1.0) if matched else 0.0
    if not 0 < value <= MAX_GIVEN:
        raise UsageError(f"{what} must be a number above 0, as in 989, 8e9 or 4M; got {text[:40]!r}")
    return value


def _positive(value: Any) -> bool:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return known and isfinite(value) and 0 < value <= MAX_GIVEN


def _read(path: str, option: str) -> bytes:
    try:
        return read_small(Path(path), MAX_PLAN_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{option} {path}: {reason}") from error
