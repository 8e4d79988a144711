"""Digests of the state of a step: the weights that it starts from, a place's inputs, and its generator's state."""

from hashlib import blake2b

import torch

from numerics.local.recorded_step import Place, RecordedStep
from numerics.local.records.restored_steps import Digest, digests
from numerics.schema import RANDOM


def weights_digest(state: RecordedStep) -> Digest:
    """Return the digest of the weights that the ranks held at the start of a step."""
    recorded, at = state.recorded, (state.step, "init")
    if not recorded.names(*at, "param"):
        at = state.before
    rows = [row for name in recorded.names(*at, "param") for row in recorded.rows(*at, "param", name)]
    return digests(recorded.run, rows, "rank", "tensor", "boxes")


def inputs_digest(state: RecordedStep, place: Place) -> Digest:
    """Return the digest of the values that a place's model was called with, for any place in the batch."""
    recorded, at = state.recorded, (state.step, "forward", "input")
    found = set()
    for name in recorded.names(*at):
        for row in recorded.of_place(recorded.rows(*at, name), place) if name.startswith("in.") else ():
            value = recorded.local(row)
            raw = b"" if value is None else value.view(torch.uint8).numpy().tobytes()
            columns = (int(recorded.run[column][row]) for column in ("rank", "tensor"))
            found.add((*columns, int.from_bytes(blake2b(raw, digest_size=8).digest(), "big")))
    return frozenset(found)


def random_digest(state: RecordedStep, place: Place) -> Digest:
    """Return the digest of the states of the CPU's generators of a place's ranks before its forward."""
    recorded = state.recorded
    rows = recorded.of_place(recorded.rows(state.step, "forward", "input", f"{RANDOM}cpu"), place)
    return digests(recorded.run, rows, "rank")


def random_states(state: RecordedStep, place: Place) -> frozenset[int]:
    """Return the digests of the states of the CPU's generators before a place's forward, without their ranks."""
    return frozenset(digest for *_, digest in random_digest(state, place))
