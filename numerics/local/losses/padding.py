"""Padding in recorded sequences: positions that a mask leaves out, or one id that ends (or begins) many sequences."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log10

import torch

from numerics.thresholds.local import ALSO_WORDS, MOSTLY_COUNTED, PAD_RUN, PADDING_BY_CHANCE

Inputs = Mapping[str, torch.Tensor]
"""What a model was called with, by name; positional ones by their number."""


@dataclass(frozen=True)
class Padding:
    """Padding of the sequences of one place.

    `at` marks its positions, (sequences, length) bool; all hold the id `token`. `mask` is the name of the input that
    leaves positions out, "" where none does here, and `left_out` marks these.
    """

    ids: torch.Tensor
    at: torch.Tensor
    token: int
    mask: str = ""
    left_out: torch.Tensor | None = None

    @property
    def seen(self) -> int:
        """How many of its positions no mask leaves out, but one a sequence, which may be its end."""
        unmarked = self.at if self.left_out is None else self.at & ~self.left_out
        return beyond_one(unmarked)

    @property
    def words(self) -> str:
        """What the padding is, in words."""
        return f"{int(self.at.sum())} positions of padding (id {self.token})"


def beyond_one(marked: torch.Tensor) -> int:
    """Return how many positions are marked, but one in each sequence: its end, or the one before its first word."""
    return int((marked.sum(-1) - 1).clamp_min(0).sum())


def sequences_of(inputs: Inputs) -> torch.Tensor | None:
    """Return the ids of words among a model's inputs; None without any, and where several may be the output's."""
    found = _ids(inputs)
    return found[0] if found and not several_sequences(inputs) else None


def several_sequences(inputs: Inputs) -> bool:
    """Return whether two inputs hold ids of words, as those of an encoder and a decoder: a mask is of one of them."""
    varied = [len(torch.unique(ids)) for ids in _ids(inputs)]
    return len(varied) > 1 and varied[1] > ALSO_WORDS * varied[0]


def shows_padding(inputs: Inputs) -> bool:
    """Return whether any input that may hold ids of words has padding by a mask or by an id that ends sequences."""
    return any(masked_out(inputs, ids) is not None or repeated_id(ids) is not None for ids in _ids(inputs))


def _ids(inputs: Inputs) -> list[torch.Tensor]:
    """Return the whole numbers by sequence and position that may be ids of words, the most varied first."""
    found = [
        value
        for name, value in inputs.items()
        if _whole(value) and not is_label(name, value) and not _positions(value)
    ]
    return sorted(found, key=lambda t: -len(torch.unique(t)))


def is_label(name: str, value: torch.Tensor) -> bool:
    """Return whether an input holds labels: its name says so, or whole numbers below 0, which are no ids of words."""
    return "label" in name or "target" in name or (_whole(value) and bool((value < 0).any()))


def _whole(value: torch.Tensor) -> bool:
    return value.dim() == 2 and value.shape[1] > PAD_RUN and value.dtype in {torch.int64, torch.int32}


def _positions(value: torch.Tensor) -> bool:
    """Return whether whole numbers count positions: most are one more than the one before."""
    return bool((value.diff() == 1).float().mean() > MOSTLY_COUNTED)


def masked_out(inputs: Inputs, ids: torch.Tensor) -> tuple[str, torch.Tensor] | None:
    """Return the first mask that leaves out one id at an end of each sequence, its name and what it leaves out.

    A mask is of truths, or of zeros and ones under a name that says so; either value may be the one left out.
    """
    for name, mask in inputs.items():
        truths = mask.dtype == torch.bool or ("mask" in name and bool(((mask == 0) | (mask == 1)).all()))
        if mask.shape != ids.shape or not truths:
            continue
        for out in (mask == 0, mask != 0):
            held = torch.unique(ids[out])
            if len(held) == 1 and not bool(out.all()) and torch.equal(out, _ends(out) | _starts(out)):
                return name, out
    return None


def _ends(marked: torch.Tensor) -> torch.Tensor:
    """Return the marked positions that nothing but marked ones follow."""
    return marked.flip(-1).to(torch.int64).cumprod(-1).flip(-1).bool()


def _starts(marked: torch.Tensor) -> torch.Tensor:
    """Return the marked positions that nothing but marked ones precede."""
    return marked.to(torch.int64).cumprod(-1).bool()


def runs_of(ids: torch.Tensor, token: int) -> torch.Tensor:
    """Return the positions of `PAD_RUN` or more equal ids at the end or the start of a sequence."""
    at = torch.zeros_like(ids, dtype=torch.bool)
    for run in (_ends(ids == token), _starts(ids == token)):
        at |= run & (run.sum(-1, keepdim=True) >= PAD_RUN)
    return at & ~at.all(-1, keepdim=True)


def repeated_id(ids: torch.Tensor) -> int | None:
    """Return the id that ends or starts sequences in runs longer than chance makes them; None without one.

    Chance repeats an id as often as it occurs among the other positions. An id that also runs within sequences (a
    space, a silence) does not count.
    """
    best, found = PADDING_BY_CHANCE, None
    for token in torch.unique(torch.cat([ids[:, 0], ids[:, -1]])).tolist():
        at = runs_of(ids, token)
        within = (ids == token) & ~at
        if bool((within[:, 1:] & within[:, :-1]).any()):
            continue
        others = ids[~at]
        share = (int((others == token).sum()) + 1) / (others.numel() + 1)
        chance = beyond_one(at) * log10(share)
        if chance < best:
            best, found = chance, int(token)
    return found
