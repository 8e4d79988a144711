"""Whether a model computes over the sequences of its batch: batch normalisation, a mean taken off, a contrastive loss.

Such a model gives other values when the same batch is split otherwise over ranks or micro-batches, and no order of
sums is the reason. It is asked directly: the model runs in FP64 on copies of one sequence and on the same number of
sequences that begins with it. Outputs and gradients of the first one, which stayed, change only if they depend on
others. Two sequences are tried in turn, since a largest value stays where the sequence that holds it does.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from numerics.local.judgement import ratio
from numerics.local.model_inputs import model_inputs
from numerics.local.recorded_step import Place, RecordedStep
from numerics.record.call_arguments import named_tensors
from numerics.record.wrapped_models import clean_name, first_tensor
from numerics.thresholds.local import APART_IN_FP64, MOST_BATCHES_TRIED
from tracekit.errors import InputError

Tensors = Mapping[str, torch.Tensor]
Loss = Callable[..., torch.Tensor]

_ROOT: Final = ""


@dataclass(frozen=True)
class BatchStatistics:
    """What computes over the batch, in words ("" where nothing does), and the first recorded tensor that shows it.

    `shared` says that the run computed it over all data-parallel ranks at once, as a synchronised batch norm does.
    `tensor` is empty where only the loss computes over the batch.
    """

    words: str = ""
    tensor: str = ""
    shared: bool = False


class _CannotRunError(Exception):
    """The user's model or loss fails on inputs that no run gave it."""


@dataclass
class _Run:
    """One forward and backward: what each module got and gave in order, by (module, "in" or "out"), and gradients."""

    rows: int
    kept: int
    seen: list[tuple[str, str, torch.Tensor]] = field(default_factory=list)
    grads: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    drawn: torch.Tensor | None = None

    def of_kept(self, value: torch.Tensor) -> torch.Tensor | None:
        """Return what belongs to the sequences that stayed; None where dimension 0 does not count sequences."""
        if not value.dim() or not value.shape[0] or value.shape[0] % self.rows:
            return None
        return value[: value.shape[0] // self.rows * self.kept].detach().double()


def batch_statistics(state: RecordedStep, place: Place, held: Tensors, loss: Loss | None) -> BatchStatistics:
    """Return what the model, and the loss where given, compute over the batch of a place.

    If the model cannot run like this (other sizes of inputs, or FP64), its layers of batch normalisation decide.
    """
    with state.modes(place):
        return _batch_statistics(state, place, held, loss)


def _batch_statistics(state: RecordedStep, place: Place, held: Tensors, loss: Loss | None) -> BatchStatistics:
    """Return what `batch_statistics` does, of a model in the modes of the run."""
    try:
        args, kwargs = model_inputs(state, place)
        given = named_tensors(args, kwargs)
        targets = state.targets(place) if loss is not None else []
        rows = _rows(state.model, {n: value for n, value in given.items() if isinstance(value, torch.Tensor)})
        if rows is None:
            return _normalising(state.model)
        for stays in sorted({0, rows[0] - 1}):
            run = partial(_ran, (state, place), held, given, rows, targets, loss, stays)
            same, other = run(other=False), run(other=True)
            found = _compared(state.model, same, other)
            if found is not None and found.words:
                repeated = _compared(state.model, same, run(other=False))
                found = found if repeated is not None and not repeated.words else None  # it may keep state
            if found is None or found.words:
                break
    except (_CannotRunError, InputError):
        return _normalising(state.model)
    return _normalising(state.model) if found is None else found


def _normalising(model: nn.Module) -> BatchStatistics:
    """Return the first layer of batch normalisation that takes the batch's own statistics."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (  # noqa: SLF001 - the base of all of them
            module.training or module.running_mean is None
        ):
            return BatchStatistics(_named(model, clean_name(name)), f"{clean_name(name)}.out")
    return BatchStatistics()


def _rows(model: nn.Module, given: Tensors) -> tuple[int, int] | None:
    """Return (sequences of a place, of the batch tried), which divides no other dimension; None without sequences."""
    first = next((value for value in given.values() if value.dim()), None)
    if first is None or not first.shape[0]:
        return None
    kept = first.shape[0]
    sizes = {size for value in given.values() for size in value.shape[1:]}
    sizes |= {size for value in model.state_dict().values() for size in value.shape}
    tried = range(2 * kept + 1, 2 * kept + 1 + MOST_BATCHES_TRIED)
    return kept, next((rows for rows in tried if rows > 1 and all(s % rows for s in sizes if s)), tried[-1])


def _ran(
    of: tuple[RecordedStep, Place],
    held: Tensors,
    given: dict[str, Any],
    rows: tuple[int, int],
    targets: list[torch.Tensor],
    loss: Loss | None,
    stays: int,
    *,
    other: bool,
) -> _Run:
    """Run the model on one of a place's sequences and more: copies of it, or `other` ones."""
    (state, place), run = of, _Run(rows[1], 1)
    values = {
        name: _wide(value.detach().clone()).requires_grad_(value.is_floating_point())
        for name, value in held.items()
    }
    values |= {name: _wide(value.detach().clone()) for name, value in state.model.named_buffers()}
    inputs = {name: _widened(value, stays, rows, other=other) for name, value in given.items()}
    args, named = state.arranged(place, inputs)
    with ExitStack() as around:
        around.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(0)
        for name, module in state.model.named_modules():
            clean = clean_name(name)
            around.callback(module.register_forward_pre_hook(partial(_got, run, clean)).remove)
            around.callback(module.register_forward_hook(partial(_gave, run, clean)).remove)
        wanted = [_widened(value, stays, rows, other=other) for value in targets]
        try:
            out = first_tensor(torch.func.functional_call(state.model, values, tuple(args), named))
            if out is not None and loss is not None and wanted:
                out = loss(out, *wanted)
            if out is not None and out.numel() == 1 and out.requires_grad:
                torch.autograd.backward(out.reshape(()))
        except Exception as error:  # the user's model may raise anything on inputs that no run gave it
            raise _CannotRunError from error
        run.drawn = torch.get_rng_state()
    return run


def _widened(value: torch.Tensor, stays: int, rows: tuple[int, int], *, other: bool) -> torch.Tensor:
    """Return an input of more sequences: the one that stays and copies of it, or all of the place and made-up ones."""
    value, (held, every) = _wide(value), rows
    if not value.dim() or value.shape[0] != held:
        return value
    more = value.roll(-stays, 0)
    if not other:
        return more[:1].expand(every, *more.shape[1:]).clone()
    return torch.cat([more, *[_made_up(more)] * (every // held)])[:every]


def _made_up(value: torch.Tensor) -> torch.Tensor:
    """Return sequences of the same kind as these."""
    if value.is_floating_point() or value.is_complex():
        return value.flip(-1) / -2
    if value.dtype == torch.bool or int(value.max()) <= 1:
        return value
    first = (
        value.flatten()[0] if value.dim() == 1 else value[(slice(None), *[slice(0, 1)] * (value.dim() - 1))]
    )
    return first.expand(value.shape)


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def _got(run: _Run, name: str, _module: nn.Module, given: tuple[Any, ...]) -> None:
    value = first_tensor(given)
    if value is not None:
        run.seen.append((name, "in", value.detach()))


def _gave(run: _Run, name: str, _module: nn.Module, _given: Any, output: Any) -> None:
    value = first_tensor(output)
    if value is None:
        return
    run.seen.append((name, "out", value.detach()))
    if value.requires_grad:
        value.register_hook(lambda grad: run.grads.append((name, grad)))  # type: ignore[no-untyped-call] # torch's


def _compared(model: nn.Module, same: _Run, other: _Run) -> BatchStatistics | None:
    """Return what changed for the sequences that stayed; None if that is unknown."""
    drew_alike = same.drawn is not None and other.drawn is not None and torch.equal(same.drawn, other.drawn)
    if [s[:2] for s in same.seen] != [s[:2] for s in other.seen] or not drew_alike:
        return None
    changed = [_differ(same, other, a[2], b[2]) for a, b in zip(same.seen, other.seen, strict=True)]
    root = same.of_kept(same.seen[-1][2])
    if root is not None and not changed[-1]:
        return _of_loss(model, same, other)
    first = next((n for n, one in enumerate(changed) if one), None)
    if first is None:
        return _of_loss(model, same, other)
    name, side, _ = same.seen[first]
    gave = next(
        n
        for n in range(first, len(changed))
        if same.seen[n][1] == "out" and (changed[n] or n == len(changed) - 1)
    )
    tensor = f"{same.seen[gave][0]}.out" if same.seen[gave][0] else "out"
    own = side == "in"
    return BatchStatistics(f"the code before {name}" if own else _named(model, name), tensor)


def _differ(same: _Run, other: _Run, one: torch.Tensor, two: torch.Tensor, factor: float = 1.0) -> bool:
    """Return whether two values differ for the sequences that stayed, by more than FP64 rounds."""
    a, b = same.of_kept(one), other.of_kept(two)
    if a is None or b is None or a.shape != b.shape or not a.numel():
        return False
    a = a.nan_to_num() * factor
    return bool((a - b.nan_to_num()).norm() > APART_IN_FP64 * torch.maximum(a.norm(), b.nan_to_num().norm()))


def _of_loss(model: nn.Module, same: _Run, other: _Run) -> BatchStatistics:
    """Return whether the gradient of one sequence depends on others, but for one factor of all: a mean's count."""
    if [name for name, _ in same.grads] != [name for name, _ in other.grads] or not same.grads:
        return BatchStatistics()
    pairs = [
        (name, same.of_kept(a), other.of_kept(b), a, b)
        for (name, a), (_, b) in zip(same.grads, other.grads, strict=True)
    ]
    known = [
        pair
        for pair in pairs
        if pair[1] is not None and pair[2] is not None and pair[1].shape == pair[2].shape
    ]
    factors = [ratio(b, a) for _, a, b, *_ in known if a is not None and b is not None]
    factor = next((f for f in factors if f), None)
    if factor is None:
        return BatchStatistics()
    for name, _, _, a, b in known:
        if _differ(same, other, a, b, factor):
            return BatchStatistics(f"the loss that follows {_named(model, name)}" if name else "the loss")
    return BatchStatistics()


def _named(model: nn.Module, name: str) -> str:
    """Return a module's name with its class."""
    kind = type(next((m for n, m in model.named_modules() if clean_name(n) == name), model)).__name__
    return f"{name} ({kind})" if name != _ROOT else f"the model's own code ({kind})"
