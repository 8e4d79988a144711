"""What no kernel shows: a device's peak by name or as given, the model's FLOPs, an answer of `reftrain plan`."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from tracekit.errors import InputError, UsageError
from tracekit.mesh import Mesh
from tracekit.mesh.hardware import peak_tflops
from tracekit.small_files import read_small
from tracekit.thresholds.floor import (
    ATTENTION_FLOPS,
    MAX_GIVEN,
    MAX_PEAK_TFLOPS,
    MAX_PLAN_BYTES,
    PARAMETER_FLOPS,
)
from tracekit.units import NS_PER_S

_DECIMAL: Final = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY: Final = {"K": 2.0**10, "M": 2.0**20, "G": 2.0**30}
"""Suffixes of counts of tokens, as `reftrain plan` reads them."""
_TERA: Final = 1e12
_COUNTS: Final = ("tokens", "seq", "layers", "dim")
_NUMBER: Final = re.compile(r"([0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?)([KMBGTPE]?)")
_MODEL_KEYS: Final = ("flops", "parameters", *_COUNTS)
_ATTENTION: Final = ("layers", "dim", "seq")
_SCHEMA: Final = "reftrain.plan/1"


@dataclass(frozen=True)
class Choice:
    """A choice of a plan: its mesh by axis, its projected step in seconds, and mesh and schedule in words."""

    mesh: dict[str, int]
    step_s: float
    words: str


@dataclass(frozen=True)
class Plan:
    """A plan for a number of devices: its choices, and the one that it recommends."""

    gpus: int
    choices: tuple[Choice, ...]
    taken: Choice

    def step_of(self, mesh: Mesh) -> float | None:
        """Return the projected step of the fastest choice with the sizes of `mesh`, seconds; None without one."""
        steps = [c.step_s for c in self.choices if all(mesh.size(a) == n for a, n in c.mesh.items())]
        return min(steps, default=None)


@dataclass(frozen=True)
class Given:
    """flops: of a step of the whole job, without recomputation. peak_tflops: of one device. None where not given.

    shown: whether the FLOPs come from recorded shapes. devices: the names that traces give their devices, each once.
    named: whether the peak comes from such a name.
    """

    flops: float | None = None
    peak_tflops: float | None = None
    plan: Plan | None = None
    shown: bool = False
    devices: tuple[str, ...] = ()
    named: bool = False

    @property
    def source(self) -> Literal["given", "shapes"] | None:
        """Where the FLOPs come from."""
        return None if self.flops is None else "shapes" if self.shown else "given"

    def with_flops(self, shown: float | None) -> "Given":
        """Return what is given, with the FLOPs that shapes show where none are given."""
        return self if self.flops is not None or shown is None else replace(self, flops=shown, shown=True)

    @property
    def peak_from(self) -> Literal["given", "device"] | None:
        """Where the peak comes from."""
        return None if self.peak_tflops is None else "device" if self.named else "given"

    @property
    def device(self) -> str | None:
        """The name that the traces give all their devices; None without one, or where they differ."""
        return self.devices[0] or None if len(self.devices) == 1 else None

    def with_devices(self, names: Sequence[str]) -> "Given":
        """Return what is given, with the peak of the device that all `names` name where no peak is given."""
        found = replace(self, devices=tuple(sorted(set(names))))
        peak = None if self.peak_tflops or found.device is None else peak_tflops(found.device)
        return found if peak is None else replace(found, peak_tflops=peak, named=True)

    def within(self, devices: int, computed_ns: float) -> "Given":
        """Return what is given, without a peak by name at which the FLOPs need longer than a rank computes a step."""
        useful = self.useful_ns(devices) if self.named else None
        return self if useful is None or useful <= computed_ns else replace(self, peak_tflops=None)

    @property
    def needs_peak(self) -> str:
        """The option that supplies the peak, and why the names of devices do not."""
        if self.named:
            longer = f"at the 16-bit peak of {self.device} the FLOPs need longer than the ranks computed"
            return f"--hardware peak_tflops=N, or another --model: {longer}"
        if self.device:
            return f"--hardware peak_tflops=N: no peak is known of {self.device}"
        if len(self.devices) > 1:
            return "--hardware peak_tflops=N: the traces name several devices, or some name none"
        return "--hardware h100"

    def check(self, devices: int) -> None:
        """Raise UsageError where a number is not positive and finite, or the plan is of another number of devices."""
        if any(n is not None and not 0 < n <= MAX_GIVEN for n in (self.flops, self.peak_tflops)):
            raise UsageError("FLOPs and peak must be numbers above 0; correct them")
        if self.plan is not None and self.plan.gpus != devices:
            of = f"the plan is of {self.plan.gpus} devices, and the job has {devices}"
            raise UsageError(f"--plan: {of}; run reftrain plan --gpus {devices}")

    def useful_ns(self, devices: int) -> float | None:
        """Return what the FLOPs of a step need at the peak of all `devices`, ns; None without FLOPs or peak."""
        if not self.flops or not self.peak_tflops:
            return None
        return self.flops / (self.peak_tflops * _TERA * devices) * NS_PER_S


def parse_peak(text: str) -> float:
    """Return the peak of one device, TFLOP/s, from `peak_tflops=989`; UsageError where the text says no such number."""
    peak = given_numbers(text, "--hardware", ("peak_tflops",))["peak_tflops"]
    if peak > MAX_PEAK_TFLOPS:
        raise UsageError(f"--hardware: {peak:.3g} TFLOP/s are beyond any device; correct the number")
    return peak


def parse_model(text: str) -> float:
    """Return the FLOPs of one step of the whole job, without recomputation, from the option `--model`.

    `flops=…`, or 6 · parameters · tokens (active parameters, tokens of a step), plus 12 · layers · dim · seq a token
    for attention where these three are given (PaLM, appendix B). Raises UsageError where the text says neither.
    """
    given = given_numbers(text, "--model", _MODEL_KEYS)
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
    return bounded((PARAMETER_FLOPS * given["parameters"] + attention) * given["tokens"])


def bounded(flops: float) -> float:
    """Return the FLOPs of a step; UsageError where no machine computes so many."""
    if not 0 < flops <= MAX_GIVEN:
        raise UsageError(f"--model: {flops:.3g} FLOPs a step are beyond any machine; correct the numbers")
    return flops


def given_numbers(text: str, option: str, keys: tuple[str, ...]) -> dict[str, float]:
    """Return the numbers of `key=value` pairs joined by commas; UsageError names what is wrong.

    K, M and G of tokens, seq, layers and dim are powers of 1024, as `reftrain plan` reads them; all else is decimal.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in keys or not equals:
            raise UsageError(
                f"{option}: {part.strip()[:40]!r} is not key=value with a key of {', '.join(keys)}"
            )
        if key in found:
            raise UsageError(f"{option}: {key} is given twice")
        found[key] = _number(value, f"{option}: {key}", _BINARY if key in _COUNTS else _DECIMAL)
    return found


def _number(text: str, what: str, suffixes: dict[str, float]) -> float:
    matched = _NUMBER.fullmatch(text)
    value = float(matched[1]) * (suffixes.get(matched[2], 0.0) if matched[2] else 1.0) if matched else 0.0
    if not 0 < value <= MAX_GIVEN:
        raise UsageError(f"{what} must be a number above 0, as in 989, 8e9 or 4M; got {text[:40]!r}")
    return value


def read_plan(path: str) -> Plan:
    """Return the answer of `reftrain plan --json` in a file.

    Raises InputError where the file cannot be read, is no such answer, or holds no choice with mesh and step.
    """
    try:
        document = json.loads(read_small(Path(path), MAX_PLAN_BYTES).decode())
    except OSError as error:
        raise InputError(f"--plan {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"--plan {path}: not JSON; write it with reftrain plan … --json {path}") from error
    if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
        raise InputError(
            f"--plan {path}: not an answer of reftrain plan; write one with reftrain plan … --json {path}"
        )
    listed, gpus = document.get("choices"), document.get("gpus")
    choices = [c for entry in (listed if isinstance(listed, list) else []) if (c := _choice(entry))]
    if not choices or not isinstance(gpus, int):
        raise InputError(f"--plan {path}: the plan holds no choice with mesh and step; plan again")
    taken = next((c for c in choices if c.mesh == document.get("taken")), None)
    return Plan(gpus, tuple(choices), taken or min(choices, key=lambda c: c.step_s))


def _choice(entry: Any) -> Choice | None:
    """Return one choice; None where it lacks its mesh or its step."""
    if not isinstance(entry, dict):
        return None
    mesh, step, schedule = entry.get("mesh"), entry.get("step_s"), entry.get("schedule")
    if not isinstance(mesh, dict) or not all(type(n) is int and n > 0 for n in mesh.values()):
        return None
    if not isinstance(step, int | float) or isinstance(step, bool) or not 0 < step <= MAX_GIVEN:
        return None
    words = ",".join(f"{axis}={size}" for axis, size in mesh.items())
    return Choice(mesh, float(step), words + (f", schedule {schedule}" if isinstance(schedule, str) else ""))
