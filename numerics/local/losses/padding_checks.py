"""Padding in a run's sequences: whether it counts in the loss and whether words see it, as far as records show."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import torch

from numerics.local.local_check import Doubt
from numerics.local.losses.loss_weights import ATTENTION_MASK, SETTLED, inputs_of
from numerics.local.losses.padding import (
    Padding,
    beyond_one,
    is_label,
    masked_out,
    repeated_id,
    runs_of,
    sequences_of,
    several_sequences,
    shows_padding,
)
from numerics.local.losses.padding_effect import reaches_others
from numerics.local.losses.token_weights import Weights
from numerics.local.recorded_step import Place, RecordedStep
from numerics.schema import TARGET

_SEEN_SETTLED: Final = "give every rank the mask of its own sequences, capture again and compare again"

Places = Mapping[Place, Padding]
"""Padding by place."""


@dataclass
class PaddingChecks:
    """What was found about padding in the first step that has any: doubts, open questions, and what was read."""

    doubts: list[Doubt] = field(default_factory=list)
    unseen: set[str] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)
    done: bool = False

    def add(self, state: RecordedStep, weights: Mapping[Place, Weights], *, declared: bool) -> None:
        """Add what a step's padding does; `declared` says that the loss was repeated by a given function."""
        found = {} if self.done else padding_of(state)
        if not found:
            given = [] if self.done else [inputs_of(state, p) for p in state.recorded.places(state.step)]
            if any(several_sequences(inputs) and shows_padding(inputs) for inputs in given):
                self.unseen.add(
                    "padding: several inputs hold ids of words, and which the loss counts is not recorded"
                )
            return
        self.done = True
        weighed = {
            place: one
            for place, one in found.items()
            if place in weights and weights[place].rows.shape == one.at.shape
        }
        if weighed:
            counted = sum(beyond_one(one.at & (weights[place].rows != 0)) for place, one in weighed.items())
            self._counted(state.step, next(iter(weighed.values())), counted, declared=declared)
            self._seen(state, weighed)
        others = {place: one for place, one in found.items() if place not in weighed}
        self._unweighed(state, others, set(weights))

    def _counted(self, step: int, one: Padding, counted: int, *, declared: bool) -> None:
        """Add how many positions of padding count, by the weights of positions in the loss."""
        if not counted:
            self.remarks.append(f"padding: none of it (id {one.token}) counts in the loss of step {step}")
        elif declared:
            how = "their labels were taken as recorded"
            self.unseen.add(
                f"padding: {counted} positions of it (id {one.token}) count in the loss, and {how}"
            )
        elif f"in.{one.mask}" != ATTENTION_MASK:  # of which the loss's own weights tell
            out = f", which in.{one.mask} leaves out," if one.mask else ""
            text = f"in step {step}, {counted} positions of padding (id {one.token}){out} count in the loss"
            self.doubts.append(Doubt(text, SETTLED, of_loss=True))

    def _seen(self, state: RecordedStep, found: Places) -> None:
        """Add whether words see padding that no mask leaves out; for the first place that has such."""
        mask = next((one.mask for one in found.values() if one.mask), "")
        place = next((place for place, one in found.items() if one.seen), None)
        if place is None:
            return
        one, where = found[place], f"data-parallel rank {place[0]}, micro-batch {place[1]}"
        reached = reaches_others(state, place, one)
        if reached is False:
            self.remarks.append(
                f"padding: outputs of words do not depend on it, where no mask leaves it out ({where})"
            )
        elif mask and reached:
            text = f"in step {state.step}, in.{mask} leaves out padding (id {one.token}), but not {one.seen} positions"
            text += f" of it of {where}, on which outputs of words depend"
            self.doubts.append(Doubt(text, _SEEN_SETTLED))
        else:
            self.unseen.add(f"padding: no mask leaves out {one.words} of {where}, and words may see them")

    def _unweighed(self, state: RecordedStep, found: Places, weighed: set[Place]) -> None:
        """Add whether padding counts if no weights of positions are known: by labels, or by the loss itself.

        The loss of the places `weighed` is one of whole sequences.
        """
        labels = {
            place: number
            for place, one in found.items()
            if (number := _labels(state, place, one)) is not None
        }
        counted = sum(labels.values())
        if counted:
            token = next(iter(found.values())).token
            text = f"in step {state.step}, {counted} positions of padding (id {token}) have labels that are not ignored"
            self.doubts.append(Doubt(text, SETTLED, of_loss=True))
            return
        for place, one in found.items():
            if reaches_others(state, place, one) is False:
                continue
            why = (
                "whether words see it was not checked"
                if place in labels or place in weighed
                else "the record shows no ignore_index or mask of the loss, so whether it counts was not checked"
            )
            self.unseen.add(f"padding: there are {one.words} in a micro-batch, and {why}")
            return


def padding_of(state: RecordedStep) -> dict[Place, Padding]:
    """Return the padding of a step's sequences by place; none where nothing shows which id it is."""
    inputs = {
        place: given for place in state.recorded.places(state.step) if (given := inputs_of(state, place))
    }
    ids = {place: held for place, given in inputs.items() if (held := sequences_of(given)) is not None}
    masks = {
        place: out for place, held in ids.items() if (out := masked_out(inputs[place], held)) is not None
    }
    tokens = [int(ids[place][out][0]) for place, (_, out) in masks.items()]
    tokens = tokens or [token for held in ids.values() if (token := repeated_id(held)) is not None]
    if not tokens:
        return {}
    token = max(set(tokens), key=lambda one: (tokens.count(one), -one))
    padded: dict[Place, Padding] = {}
    for place, held in ids.items():
        one = Padding(held, runs_of(held, token), token)
        if place in masks:
            name, left_out = masks[place]
            one = replace(one, at=one.at | left_out, mask=name, left_out=left_out)
        if bool(one.at.any()):
            padded[place] = one
    return padded


def _labels(state: RecordedStep, place: Place, one: Padding) -> int | None:
    """Return how many positions of padding have padding for a label, not an ignored one; None without labels."""
    labels = [value for name, value in inputs_of(state, place).items() if is_label(name, value)]
    targets = [n for n in state.recorded.names(state.step, "forward", "input") if n.startswith(TARGET)]
    labels += [value for name in targets if (value := state.given(place, "input", name)) is not None]
    for value in labels:
        if value.numel() == one.at.numel() and not value.is_floating_point():
            return beyond_one(one.at & (value.reshape(one.at.shape) == torch.tensor(one.token)))
    return None
