"""Checks the optimiser's step of each recorded step, on the recorded parameters, gradients, state and settings.

Each rank's step is repeated on its own tensors by its own recorded settings; these are held against the declared
optimiser's. Where a capture holds no settings of an optimiser of torch's, the declared one steps the whole parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from numerics.local.forced_pass import Check
from numerics.local.judgement import Judged, Standing
from numerics.local.local_check import LocalCheck
from numerics.local.recorded_step import RecordedStep
from numerics.local.records.recorded import RecordedRun
from numerics.local.updates.learning_rates import rates_of_step
from numerics.local.updates.moments_before import GOES_ON, At, goes_on, moments_kept
from numerics.local.updates.optimizer_settings import Settings, check_settings, read_settings
from numerics.local.updates.optimizer_step import COUNT, Find, Named, other_count, repeat_step
from numerics.thresholds.local import ERROR_SHOWN

_MOMENTS = ("exp_avg", "exp_avg_sq", "exp_inf", "square_avg", "acc_delta")
"""States that are zero before an optimiser's first step."""

_REFUSED = (RuntimeError, TypeError, ValueError, KeyError)
"""What torch raises where an optimiser cannot go on from the settings or the state that a file holds."""


def check_update(
    state: RecordedStep,
    optimizer: torch.optim.Optimizer | None,
    unseen: set[str],
    *,
    declares: bool = True,
) -> list[LocalCheck]:
    """Return checks of parameters and state after a step by the optimiser's own step, and of its settings.

    `optimizer` is the declared one; `declares` is False if no function declares one.
    """
    by_rank = read_settings(state.recorded, state.step)
    model = state.model if declares else None
    settings = check_settings(state.recorded, state.step, model, optimizer)
    settings += restored_apart(state.recorded, state.step)
    ranks = _replayed(state, by_rank, unseen)
    if ranks is not None:
        if declares and optimizer is None:
            unseen.add("the optimiser's settings: the function returned no optimiser beside the model")
        return settings + ranks
    if optimizer is None:
        unseen.add(
            "the optimiser's step: the function returned no optimiser beside the model"
            if declares
            else "the optimiser's step: no settings of an optimiser of torch's were recorded"
        )
        return settings
    scale = next((one.scale for one in by_rank.values()), 1.0)
    return settings + (
        [] if any(one.skipped for one in by_rank.values()) else _whole(state, optimizer, scale, unseen)
    )


def restored_apart(recorded: RecordedRun, step: int) -> list[LocalCheck]:
    """Return a check where a run began with moments but without their count of steps, or with the count alone.

    An optimiser's first step gives it a count and moments together. One parameter may never have had a gradient, so
    that a count alone is wrong only where no parameter of the rank has moments.
    """
    run = recorded.run
    counts: dict[tuple[int, str], float] = {}
    moments: dict[tuple[int, str], list[tuple[float, str]]] = {}
    for tensor in recorded.names(-1, "init", "optimizer") if step == recorded.steps[0] else ():
        name, _, key = tensor.rpartition(".")
        for row in recorded.rows(-1, "init", "optimizer", tensor) if key in {COUNT, *_MOMENTS} else ():
            size = float(run.reals["sum_squares"][row])
            if key == COUNT:
                counts[int(run["rank"][row]), name] = float(run.reals["sum"][row])
            else:
                moments.setdefault((int(run["rank"][row]), name), []).append((size, tensor))
    found = []
    for (rank, name), held in moments.items():
        count, (size, tensor) = counts.get((rank, name)), max(held)
        counted = [n for (r, _), n in counts.items() if r == rank]
        lost = not any(size for (r, _), own in moments.items() for size, _ in own if r == rank)
        words = ""
        if count == 0 and size > 0:
            words = "the run began with moments and a count of 0 steps: it was restored without the optimiser's count"
        elif count is not None and count > 1 and lost:
            words = f"the run began with a count of {max(counted):.0f} steps and no moments: they were not restored"
        if words:
            judged = Judged(Standing.BEYOND, relation=words)
            found.append(
                LocalCheck(step, None, Check(tensor, name.rpartition(".")[0], "step", judged), ranks=(rank,))
            )
    return found


def _replayed(
    state: RecordedStep, by_rank: Mapping[int, Settings], unseen: set[str]
) -> list[LocalCheck] | None:
    """Return checks of each rank's own step, equal ones once; None where a rank's optimiser cannot be rebuilt."""
    recorded, step = state.recorded, state.step
    ranks = {int(recorded.run["rank"][row]) for row in _all_rows(recorded, step, "param_grad", "reduce")}
    if not ranks or not ranks <= by_rank.keys():
        return None
    found: list[LocalCheck] = []
    done: dict[tuple[object, ...], list[int]] = {}
    first: dict[tuple[object, ...], int] = {}
    for rank in sorted(ranks):
        if not by_rank[rank].skipped:
            own = _OwnStep(state, rank, by_rank[rank])
            done.setdefault(own.digest, []).append(rank)
            first.setdefault(own.digest, rank)
    for digest, alike in done.items():
        own = _OwnStep(state, first[digest], by_rank[first[digest]])
        if own.goes_on:
            unseen.add(GOES_ON)
            continue
        judged = own.judged()
        if judged is None:
            return None
        for name, one in judged:
            check = Check(name, name.rpartition(".")[0], "step", one)
            found.append(LocalCheck(step, None, check, ranks=tuple(alike)))
    return found


def _all_rows(recorded: RecordedRun, step: int, kind: str, phase: str) -> list[int]:
    return [
        row for name in recorded.names(step, phase, kind) for row in recorded.rows(step, phase, kind, name)
    ]


class _OwnStep:
    """One rank's step on its own tensors, flat, as it recorded them."""

    def __init__(self, state: RecordedStep, rank: int, settings: Settings) -> None:
        self._recorded, self._step, self._rank, self._settings = state.recorded, state.step, rank, settings
        self._state, self._after = state, (state.step, "step")
        run, groups = self._recorded.run, settings.by_parameter()
        self._start = state.stepped_from
        if self._start == state.before and self._recorded.names(self._step, "init", "param"):
            self._start = (self._step, "init")
        self._moments = state.last_update()
        names = [n.removesuffix(".grad") for n in self._recorded.names(self._step, "reduce", "param_grad")]
        stepped = {name: self._row(f"{name}.grad") for name in names if name in groups}
        self._grads = {name: row for name, row in stepped.items() if row is not None}
        self._states: dict[str, list[str]] = {}
        for at in {self._moments, (self._step, "step")}:
            for tensor in self._recorded.names(*at, "optimizer"):
                name, _, key = tensor.rpartition(".")
                keys = self._states.setdefault(name, [])
                keys += [] if key in keys else [key]
        rows = [
            row
            for name in self._grads
            for tensor in (name, *(f"{name}.{key}" for key in self._states.get(name, ())))
            for row in (self._row(tensor), self._row(tensor, self._after))
        ]
        digests = tuple(-1 if row is None else int(run.digest[row]) for row in (*self._grads.values(), *rows))
        by = tuple(str({k: v for k, v in groups[name].items() if k != "params"}) for name in self._grads)
        self.digest = (settings.kind, settings.scale, tuple(self._grads), by, digests)

    def _row(self, tensor: str, at: At | None = None) -> int | None:
        """Return the rank's row of a gradient, or of a parameter or moment before the step, or `at` another time."""
        run, reduced = self._recorded.run, (self._step, "reduce")
        before = {"param": at or self._start, "optimizer": at or self._moments, "param_grad": reduced}
        for kind, then in before.items():
            for row in self._recorded.rows(*then, kind, tensor):
                if int(run["rank"][row]) == self._rank:
                    return row
        return None

    def _value(self, tensor: str, at: At | None = None) -> torch.Tensor | None:
        row = self._row(tensor, at)
        value = None if row is None else self._recorded.local(row)
        number = value is not None and row is not None and not self._recorded.run.name("global_shape", row)
        return value.reshape(()) if value is not None and number and value.numel() == 1 else value

    @property
    def goes_on(self) -> bool:
        """Whether the optimiser had counted steps before this one, and what it held then was not recorded."""
        name = next((f"{name}.{COUNT}" for name in self._grads if COUNT in self._states.get(name, ())), "")
        return goes_on(self._state, lambda at: self._value(name, at), keeps=bool(self._states))

    def judged(self) -> list[tuple[str, Judged]] | None:
        """Return the judgements of parameters and moments by the step made again; None if it cannot be made."""
        held = {}
        for name in self._grads:
            value = self._value(name)
            if value is None:
                return None
            held[name] = nn.Parameter(value.clone(), requires_grad=value.is_floating_point())
        found: list[tuple[str, Judged]] | None = None
        for kernels in (True, False):
            optimizer = self._settings.rebuilt(held, kernels=kernels)
            made = None if optimizer is None else self._repeated(held, optimizer)
            better = made is not None and (found is None or _worst(made) < _worst(found))
            found = made if better else found
            if found is not None and _worst(found) == Standing.EQUAL:
                break
        return found

    def _repeated(
        self, held: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
    ) -> list[tuple[str, Judged]] | None:
        def before(name: str, _shape: tuple[int, ...] | None) -> torch.Tensor | None:
            return self._value(name)

        def after(name: str, _shape: tuple[int, ...] | None) -> torch.Tensor | None:
            return self._value(name, self._after)

        def kept(name: str, _shape: tuple[int, ...] | None) -> torch.Tensor | None:
            found = None if name in held else self._value(name, self._state.last_update(self._step))
            return self._value(name) if found is None else found

        def gradient(name: str, _shape: tuple[int, ...] | None) -> torch.Tensor | None:
            value = self._value(name)
            return value if value is None or self._settings.scale == 1 else value / self._settings.scale

        def stepped(find: Find) -> list[tuple[str, Judged]]:
            return repeat_step(Named(dict(held)), optimizer, find, gradient, after, {}, self._states)

        try:
            done = stepped(before)
            words = other_count(before, after, stepped, done) or moments_kept(
                self._state, kept, stepped, done
            )
        except _REFUSED:
            return None
        return [(name, replace(judged, relation=words)) for name, judged in done]


def _worst(judged: Sequence[tuple[str, Judged]]) -> Standing:
    return max((one.standing for _, one in judged), default=Standing.EQUAL)


def _done(
    stepped: Callable[[Find], list[tuple[str, Judged]]], state: RecordedStep, unseen: set[str]
) -> list[tuple[str, Judged]]:
    """Return the judgements of a step made again; none where the optimiser cannot go on from what was recorded."""
    try:
        return stepped(state.before_update)
    except _REFUSED as error:
        error_text = f"{type(error).__name__}: {str(error)[:ERROR_SHOWN]}"
        unseen.add(f"the optimiser's step: it cannot go on from what was recorded ({error_text})")
        return []


def _whole(
    state: RecordedStep, optimizer: torch.optim.Optimizer, scale: float, unseen: set[str]
) -> list[LocalCheck]:
    """Return checks of whole parameters and state by the declared optimiser's step, at the recorded rates."""
    states: dict[str, list[str]] = {}
    for tensor in state.recorded.names(state.step, "step", "optimizer"):
        name, _, key = tensor.rpartition(".")
        states.setdefault(name, []).append(key)

    counted = next((f"{name}.{COUNT}" for name, keys in states.items() if COUNT in keys), "")
    if goes_on(state, lambda at: state.parameter(counted, None, at), keeps=False):
        unseen.add(GOES_ON)
        return []

    def after(name: str, shape: tuple[int, ...] | None) -> torch.Tensor | None:
        return state.parameter(name, shape, (state.step, "step"))

    def gradient(name: str, shape: tuple[int, ...] | None) -> torch.Tensor | None:
        found = None if state.parted(name.removesuffix(".grad")) else state.gradient(name, shape)
        return found if found is None or scale == 1 else found / scale

    rates = rates_of_step(state.recorded, state.step)

    def stepped(before: Find) -> list[tuple[str, Judged]]:
        return repeat_step(state.model, optimizer, before, gradient, after, rates, states)

    done = _done(stepped, state, unseen)
    if not states and _hides_moments(state, [name for name, _ in done]):
        unseen.add(
            "the optimiser's step: it keeps moments, and none were recorded (a sharded optimiser's own)"
        )
        return []
    words = other_count(state.before_update, after, stepped, done)
    return [
        LocalCheck(state.step, None, Check(n, n.rpartition(".")[0], "step", replace(judged, relation=words)))
        for n, judged in done
    ]


def _hides_moments(state: RecordedStep, judged: Sequence[str]) -> bool:
    """Return whether the optimiser's step makes more than parameters, after a first one that left none recorded."""
    names = dict(state.model.named_parameters())
    return state.step != state.recorded.steps[0] and any(name not in names for name in judged)
