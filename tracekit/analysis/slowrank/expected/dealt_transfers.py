"""All-to-alls of uneven size, made comparable: a transfer takes the time of the member with most elements."""

from collections import Counter

import numpy as np

from tracekit.matching.message_order import UNKNOWN_SIZE
from tracekit.steps.steps import F64
from tracekit.timing.measured import Measured


def message_of(run: Measured) -> tuple[list[str], F64]:
    """(the message of each instance, its size over the usual one), by instance.

    Instances of the same message are comparable. All-to-alls of one type are one message whatever their known size; for
    other operations the size is part of the message, and the ratio is 1.0. Where the size is unknown, groups with
    equally many calls of the kind in a step carry the same message.
    """
    ops, first = run.ops, run.waits.first_row
    message = _of_unknown_size(run, ops.token[first].astype(str).tolist())
    scale = np.ones(len(first))
    dealt = np.flatnonzero(ops.op[first] == "all_to_all")
    if not len(dealt):
        return message, scale
    elements = np.concatenate([ops.per_rank[rank].nelems for rank in ops.ranks])
    most = np.zeros(len(first), np.int64)
    rows = np.flatnonzero(ops.instance >= 0)
    np.maximum.at(most, ops.instance[rows], elements[rows])
    dealt = dealt[most[dealt] > 0]
    for number in dealt.tolist():
        message[number] = message[number].rpartition("/")[0]
    for kind in sorted({message[number] for number in dealt.tolist()}):
        mine = np.array([number for number in dealt.tolist() if message[number] == kind])
        scale[mine] = most[mine] / np.median(most[mine])
    return message, scale


def _of_unknown_size(run: Measured, told: list[str]) -> list[str]:
    """The messages (by instance) with the number of calls of the kind in the group's step where the size is unknown."""
    ops, first = run.ops, run.waits.first_row
    keys = list(
        zip(ops.op[first].tolist(), ops.channel[first].tolist(), ops.step[first].tolist(), strict=True)
    )
    calls = Counter(keys)
    return [
        f"{token} of {calls[key]}" if token.endswith(UNKNOWN_SIZE) else token
        for token, key in zip(told, keys, strict=True)
    ]
