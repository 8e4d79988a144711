"""Repeats an optimiser's step on the recorded parameters, gradients and state."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from numerics.local.bounds.bounded import unit
from numerics.local.judgement import Judged, Standing, within
from numerics.thresholds.local import FUNCTION_ROUNDINGS

COUNT: Final = "step"
"""Name of the optimiser's state that counts its steps."""

Find = Callable[[str, tuple[int, ...] | None], torch.Tensor | None]
"""Maps a tensor's name and shape (None: any) to what was recorded; None where it was not."""

Judgements = Sequence[tuple[str, Judged]]
"""Judgements of parameters and states by name."""


class Named(nn.Module):
    """A substitute for a model that is known only by its parameters' names and shapes."""

    def __init__(self, held: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self._held = held

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the recorded names with parameters that have a shape and no storage."""
        del prefix, recurse, remove_duplicate
        yield from self._held.items()

    def named_modules(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield the names of what holds parameters, and of what holds that."""
        names = {name.rsplit(".", depth)[0] for name in self._held for depth in range(1, name.count(".") + 1)}
        yield from ((name, self) for name in sorted(names))


def repeat_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    before: Find,
    gradient: Find,
    after: Find,
    rates: Mapping[int, float],
    states: Mapping[str, Sequence[str]],
) -> list[tuple[str, Judged]]:
    """Return the judgement of each recorded parameter and state by the same step made again.

    `before` and `after` give parameters and state around the step ("name", "name.key"), `rates` the learning rates
    by number of the parameter group, `states` the recorded names of state by parameter. A parameter without a recorded
    gradient is not stepped and not judged.
    """
    names = {p: name for name, p in model.named_parameters()}
    optimizer.state.clear()
    own = [group["lr"] for group in optimizer.param_groups]  # a scheduler goes on from these
    for number, group in enumerate(optimizer.param_groups):
        group["lr"] = rates.get(number, group["lr"])
        for p in group["params"]:
            name = names.get(p, "")
            _put(optimizer, p, name, before, gradient, states.get(name, ()))
    old = {p: p.detach().clone() for p in names}
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, own, strict=True):
        group["lr"] = rate
    found = []
    for p, name in names.items():
        if p.grad is None:
            continue
        found.append((name, _stand(after(name, tuple(p.shape)), p.detach(), old[p])))
        for key, value in sorted(optimizer.state[p].items()):
            if isinstance(value, torch.Tensor):
                found.append(
                    (f"{name}.{key}", _stand(after(f"{name}.{key}", tuple(value.shape)), value, None))
                )
    return found


def other_count(
    before: Find,
    after: Find,
    stepped: Callable[[Find], Judgements],
    done: Judgements,
) -> str:
    """Return that the optimiser counted another step than the next, where that alone explains all updates; else "".

    `stepped` repeats the step from given parameters and state, `done` is the judgement with the recorded ones.
    """
    wrong = [name for name, judged in done if judged.standing == Standing.BEYOND]
    counted = [name for name, _ in done if name.endswith(f".{COUNT}")]
    if not wrong or not counted:
        return ""
    held, left = before(counted[0], None), after(counted[0], None)
    if held is None or held.numel() != 1:
        return ""
    due = int(held) + 1
    counts = {due - 1, due + 1, 1} | ({int(left)} if left is not None and left.numel() == 1 else set())
    fits = []
    for count in sorted(counts - {due, 0}):

        def counting(name: str, shape: tuple[int, ...] | None, to: int = count) -> torch.Tensor | None:
            found = before(name, shape)
            return (
                found if found is None or not name.endswith(f".{COUNT}") else torch.full_like(found, to - 1)
            )

        again = [judged for name, judged in stepped(counting) if not name.endswith(f".{COUNT}")]
        if all(judged.standing != Standing.BEYOND for judged in again):
            fits.append(count)
    return f"the optimiser counts step {fits[0]}, not {due}" if len(fits) == 1 else ""


def _put(
    optimizer: torch.optim.Optimizer,
    p: torch.Tensor,
    name: str,
    before: Find,
    gradient: Find,
    keys: Sequence[str],
) -> None:
    """Set a parameter, its gradient and its state to the recorded ones."""
    value, grad = before(name, tuple(p.shape)), gradient(f"{name}.grad", tuple(p.shape))
    p.grad = None
    if value is None or grad is None:
        return
    p.data.copy_(value)
    rows_alone = isinstance(optimizer, torch.optim.SparseAdam)
    p.grad = grad.to(p.dtype).to_sparse(1) if rows_alone else grad.to(p.dtype)
    state: dict[str, Any] = {}
    for key in keys:
        held = before(f"{name}.{key}", tuple(p.shape))
        if held is None:  # a number, as the count of steps
            held = before(f"{name}.{key}", None)
        if held is not None:
            plain = held.numel() == 1 and held.dtype in {torch.int64, torch.float64} and not held.dim()
            state[key] = held.item() if plain else held.clone()
    if state:
        optimizer.state[p] = state


def _stand(recorded: torch.Tensor | None, made: torch.Tensor, old: torch.Tensor | None) -> Judged:
    """Return the judgement of a recorded value by the one made again; other implementations round each step once."""
    if recorded is None or recorded.shape != made.shape:
        return Judged(Standing.UNCHECKED, why="it was not recorded")
    size = made.double().abs() if old is None else (made.double() - old.double()).abs()
    return within(
        made.double(), unit(made.dtype) * (FUNCTION_ROUNDINGS * size + made.double().abs()), recorded
    )
