"""Which elements a run's dropout layers dropped: read from each layer's recorded output beside its recorded input.

What is zero in the output and not in the input was dropped, whatever generator it was drawn from: a card's, a fork's,
a tracker's. Where the recorded state of the generator draws other elements, the forced pass drops those of the run, so
that values and gradients after it are judged as everywhere.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import nn

from numerics.local.bounds.bounded import Bounded, bounded, exact
from numerics.local.own_hooks import register_before_own
from numerics.local.records.recorded import Reading
from numerics.record.wrapped_models import clean_name, in_backward
from numerics.thresholds.local import MASK_ELEMENTS, MASK_SIGMAS

Recorded = Callable[[str, int, tuple[int, ...]], list[Reading]]
"""Maps a tensor's name, the number of the module's call, and the shape to readings."""


@dataclass(frozen=True)
class Dropped:
    """What one call of a dropout layer dropped, of its first elements.

    `kept` and `nonzero` are (elements,) bool: the elements in the output, and elements that were not zero before and
    therefore show whether they were dropped. `chance` is the layer's p, `elements` the number of the whole output.
    `replayed` says that the recorded state of the generator draws the same.
    """

    tensor: str
    module: str
    call: int
    chance: float
    kept: np.ndarray
    nonzero: np.ndarray
    replayed: bool
    elements: int = 0


class DropoutMasks:
    """Hooks on the dropout layers of a model for one forced pass; `found` holds what each call dropped in the run.

    `judged` names the layers with outputs that are judged for any generator they drew from.
    """

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self._kept: dict[str, list[torch.Tensor | None]] = {}
        self._again: Counter[str] = Counter()
        self.found: list[Dropped] = []
        self.judged: set[str] = set()

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Let the dropout layers of `model` drop what they dropped in the run, for a while."""
        handles = [
            register_before_own(module, partial(self._hook, clean_name(name)))
            for name, module in model.named_modules()
            if type(module).forward is nn.Dropout.forward and 0 < module.p < 1 and not module.inplace
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, name: str, layer: nn.Dropout, given: tuple[Any, ...], computed: Any) -> Any:
        if not layer.training or not given or not isinstance(computed, torch.Tensor):
            return None
        before, drawn = exact(given[0].detach()), exact(computed.detach()) != 0
        kept = self._kept_again(name) if in_backward() else self._kept_in_run(name, layer, before, drawn)
        if kept is None or (bool((drawn == kept)[before != 0].all()) and not isinstance(computed, Bounded)):
            return None
        return dropped_as(given[0], kept, layer.p)

    def _kept_again(self, name: str) -> torch.Tensor | None:
        """Return what a call kept that is computed again in the backward."""
        kept = self._kept.get(name) or [None]
        self._again[name] += 1
        return kept[(self._again[name] - 1) % len(kept)]

    def _kept_in_run(
        self, name: str, layer: nn.Dropout, before: torch.Tensor, drawn: torch.Tensor
    ) -> torch.Tensor | None:
        """Return which elements a call kept in the run: as drawn again where no draw gives the record, None unknown."""
        calls = self._kept.setdefault(name, [])
        readings = self._recorded(f"{name}.out", len(calls), tuple(before.shape))
        first = next((r for r in readings if r.tensor.shape == before.shape), None)
        calls.append(None)
        if first is None:
            return None
        nonzero, kept = before != 0, first.tensor != 0
        if not plausible(int((nonzero & ~kept).sum()), int(nonzero.sum()), layer.p):
            if first.how:
                return None  # a sum of ranks' addends shows nothing
            self.judged.add(name)
            return drawn  # no draw is so
        self.judged.add(name)
        calls[-1] = kept
        sample = [t.reshape(-1)[:MASK_ELEMENTS].numpy() for t in (kept, nonzero)]
        same = bool((drawn == kept)[nonzero].all())
        one = Dropped(f"{name}.out", name, len(calls) - 1, layer.p, sample[0], sample[1], same, kept.numel())
        self.found.append(one)
        return kept


def plausible(dropped: int, of: int, chance: float) -> bool:
    """Return whether a layer that drops each element with probability `chance` may have dropped so many of them."""
    spread = sqrt(of * chance * (1 - chance))
    return of > 0 and abs(dropped - of * chance) <= MASK_SIGMAS * spread + 1


def dropped_as(given: torch.Tensor, kept: torch.Tensor, chance: float) -> torch.Tensor:
    """Return what is left of a layer's input where the elements outside of `kept` are dropped."""
    if isinstance(given, Bounded):
        return given * bounded(kept.double() / (1 - chance), 0.0, given.dtype)
    return given * kept.to(given.dtype).div_(1 - chance)
