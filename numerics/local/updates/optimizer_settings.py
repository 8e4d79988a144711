"""The recorded settings of a run's optimisers: read, rebuilt, compared with each other and with the declared one.

A step's result shows neither a decay that one rank applies to other parameters than its peers, nor an optimiser that is
not the one declared; the groups that each rank's optimiser had show both, by name.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from numerics.local.forced_pass import Check
from numerics.local.judgement import Judged, Standing
from numerics.local.local_check import LocalCheck
from numerics.local.records.recorded import RecordedRun
from numerics.schema import SETTINGS
from numerics.thresholds.local import RATE_TOLERANCE
from numerics.thresholds.report import RANKS_IN_SENTENCE

REPLAYED: Final[Mapping[str, type[torch.optim.Optimizer]]] = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adagrad,
        torch.optim.RMSprop,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.Adamax,
        torch.optim.Adadelta,
        torch.optim.ASGD,
        torch.optim.Rprop,
    )
}
"""Torch's optimisers that step each element by itself, so that any part of a parameter is stepped as the whole is."""

_KERNELS: Final = ("foreach", "fused", "capturable", "differentiable")
"""Settings that choose a kernel: they change the rounding of a step, and not what it computes."""

_KEPT: Final = ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr")
"""What schedulers keep in the groups of an optimiser; it steps without."""


@dataclass(frozen=True)
class Settings:
    """The settings of one rank's optimiser: its class, its groups by parameter, and what a gradient scaler left it.

    `scale` divides the gradients within the step, `skipped` says that the step changes nothing.
    """

    kind: str
    groups: tuple[Mapping[str, Any], ...]
    scale: float = 1.0
    skipped: bool = False

    def by_parameter(self) -> dict[str, Mapping[str, Any]]:
        """Return the group of each parameter of the model."""
        return {name: group for group in self.groups for name in group["params"]}

    def rebuilt(self, held: Mapping[str, nn.Parameter], *, kernels: bool) -> torch.optim.Optimizer | None:
        """Return such an optimiser of other parameters, by the recorded kernels or torch's default ones.

        None for classes that torch lacks, and for settings that it refuses.
        """
        made = REPLAYED.get(self.kind)
        groups = []
        for group in self.groups:
            own = {key: _tupled(value) for key, value in group.items() if key not in {"params", "others"}}
            own |= {} if kernels else dict.fromkeys(set(_KERNELS) & own.keys(), False)
            own |= {"differentiable": False} if "differentiable" in own else {}
            groups.append({**own, "params": [held[name] for name in group["params"] if name in held]})
        if made is None or not any(group["params"] for group in groups):
            return None
        build: Callable[[Any], torch.optim.Optimizer] = made
        try:
            return build(groups)
        except (
            RuntimeError,
            TypeError,
            ValueError,
        ):  # torch's constructors check settings, which come from a file
            return None


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def read_settings(recorded: RecordedRun, step: int) -> dict[int, Settings]:
    """Return the settings of each rank's optimiser in a step; ranks without a readable record are left out."""
    found: dict[int, Settings] = {}
    parsed: dict[int, Settings | None] = {}
    for row in recorded.rows(step, "step", "scalar", SETTINGS):
        digest = int(recorded.run.digest[row])
        if digest not in parsed:
            value = recorded.local(row)
            parsed[digest] = None if value is None else _parsed(value.numpy().tobytes())
        one = parsed[digest]
        if one is not None:
            found[int(recorded.run["rank"][row])] = one
    return found


def _parsed(raw: bytes) -> Settings | None:
    """Return settings from what a file holds; None where that is something else."""
    try:
        content = json.loads(raw)
        groups = tuple(content["groups"])
        names = [name for group in groups for name in group["params"]]
        scale, skipped = float(content.get("scale", 1.0)), bool(content.get("skipped", False))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    sound = all(isinstance(group, dict) for group in groups) and all(isinstance(n, str) for n in names)
    return Settings(str(content.get("class")), groups, scale, skipped) if sound and scale else None


def check_settings(
    recorded: RecordedRun, step: int, model: nn.Module | None, declared: torch.optim.Optimizer | None
) -> list[LocalCheck]:
    """Return a check for each parameter that ranks, or a run and the declared optimiser, step by other settings."""
    settings = read_settings(recorded, step)
    between = _between_ranks(recorded, step, settings)
    if between or model is None or declared is None or not settings:
        return between
    return _against_declared(recorded, step, settings, model, declared)


def _wrong(step: int, tensor: str, text: str, ranks: Sequence[int]) -> LocalCheck:
    check = Check(tensor, tensor.rpartition(".")[0], "step", Judged(Standing.BEYOND, relation=text))
    return LocalCheck(step, None, check, ranks=tuple(ranks))


def _between_ranks(recorded: RecordedRun, step: int, settings: Mapping[int, Settings]) -> list[LocalCheck]:
    """Return checks of parameters that the ranks' optimisers treat unlike, or that some of several leave out."""
    groups = {rank: one.by_parameter() for rank, one in settings.items()}
    found = []
    for name in recorded.names(step, "step", "param"):
        own = {rank: by[name] for rank, by in groups.items() if name in by}
        shared = set.intersection(*(set(group) for group in own.values())) if own else set()
        for key in sorted(shared - {"params", "others", *_KERNELS, *_KEPT}):
            values: dict[str, list[int]] = {}
            for rank, group in own.items():
                values.setdefault(_shown(group[key]), []).append(rank)
            if len(values) > 1:
                odd = min(values.values(), key=len)
                said = "; ".join(f"{value} on {_ranks(ranks)}" for value, ranks in values.items())
                found.append(_wrong(step, name, f"the ranks step it by unequal {key}: {said}", odd))
        found += _left_out(recorded, step, name, own)
    return found


def _left_out(recorded: RecordedRun, step: int, name: str, own: Mapping[int, object]) -> list[LocalCheck]:
    """Return a check where one rank's optimiser leaves out a parameter that several others with equal copies step."""
    run, rows = recorded.run, recorded.rows(step, "step", "param", name)
    at = {int(run["rank"][row]): (int(run["boxes"][row]), int(run["partial"][row])) for row in rows}
    left = [rank for rank in at if rank not in own and sum(at.get(r) == at[rank] for r in own) > 1]
    if not left:
        return []
    text = f"the optimiser of {_ranks(left)} leaves it out, the optimisers of {_ranks(sorted(own))} step it"
    return [_wrong(step, name, text, left)]


def _against_declared(
    recorded: RecordedRun,
    step: int,
    settings: Mapping[int, Settings],
    model: nn.Module,
    declared: torch.optim.Optimizer,
) -> list[LocalCheck]:
    """Return checks of a run's optimisers against the declared one, parameter by parameter."""
    kind = f"{type(declared).__module__}.{type(declared).__qualname__}"
    others = sorted({one.kind for one in settings.values()} - {kind})
    if others and kind in REPLAYED and others[0] in REPLAYED:
        ours, due = (one.rpartition(".")[2] for one in (others[0], kind))
        text = f"the run steps by {ours}, and the function given by --model returns {due}"
        return [
            _wrong(step, "optimizer", text, [rank for rank, one in settings.items() if one.kind == others[0]])
        ]
    names = {p: name for name, p in model.named_parameters()}
    wanted = {names[p]: group for group in declared.param_groups for p in group["params"] if p in names}
    groups = {rank: one.by_parameter() for rank, one in settings.items()}
    compared = set(declared.defaults) - _moving(recorded) - {"lr", *_KERNELS}
    every = set().union(*groups.values())
    held = set(recorded.names(step, "step", "param")) if every else set()
    text = "no optimiser of the run holds it, and the one given by --model does"
    found = [_wrong(step, name, text, sorted(settings)) for name in wanted if name in held - every]
    for name, right in wanted.items():
        for rank, own in ((rank, by[name]) for rank, by in groups.items() if name in by):
            words = unlike(own, right, compared & right.keys() & own.keys())
            if words:
                text = f"it is stepped with {words[0]}, and the optimiser given by --model has {words[1]}"
                same = [r for r, by in groups.items() if by.get(name) == own]
                found.append(_wrong(step, name, text, same or [rank]))
                break
    return found


def _moving(recorded: RecordedRun) -> set[str]:
    """Return the settings that change from step to step, or that a schedule of cycles moves: they are not declared."""
    seen: dict[tuple[int, int, str], set[str]] = {}
    found: set[str] = set()
    for step in recorded.steps:
        for rank, one in read_settings(recorded, step).items():
            for number, group in enumerate(one.groups):
                found |= {"betas", "momentum"} if "base_momentum" in group else set()
                for key, value in [pair for pair in group.items() if pair[0] not in {"params", "others"}]:
                    seen.setdefault((rank, number, key), set()).add(_shown(value))
    return found | {key for (_, _, key), values in seen.items() if len(values) > 1}


def unlike(
    mine: Mapping[str, Any], right: Mapping[str, Any], keys: AbstractSet[str]
) -> tuple[str, str] | None:
    """Return the settings of two groups that differ, each side in words; None where they agree.

    What chooses a kernel, and what a scheduler keeps there for itself, is no setting of the step.
    """
    apart = sorted(k for k in keys - {"params", "others", *_KERNELS, *_KEPT} if not _alike(mine[k], right[k]))
    if not apart:
        return None
    first, second = (", ".join(f"{key} {_shown(one[key])}" for key in apart) for one in (mine, right))
    return first, second


def _alike(mine: Any, right: Any) -> bool:
    """Return whether a recorded setting is the declared one; numbers may have been kept in FP32."""
    if isinstance(mine, list) and isinstance(right, (list, tuple)):
        return len(mine) == len(right) and all(_alike(a, b) for a, b in zip(mine, right, strict=True))
    if mine is None or not isinstance(right, (bool, int, float, torch.Tensor)):
        return True  # of a kind that no record holds
    if not isinstance(mine, (bool, int, float)):
        return False
    return abs(float(mine) - float(right)) <= RATE_TOLERANCE * max(abs(float(mine)), abs(float(right)))


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_shown(one) for one in value)})"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _ranks(ranks: Sequence[int]) -> str:
    some = ", ".join(map(str, ranks[:RANKS_IN_SENTENCE])) + (", …" if len(ranks) > RANKS_IN_SENTENCE else "")
    return f"rank{'s' * (len(ranks) > 1)} {some}"
