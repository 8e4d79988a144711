"""Orders a step's tensors as data flow, whichever rank computed them.

Each rank's rows are in its own execution order, which says nothing of other pipeline stages. Within one slot (a step,
phase and micro-batch) the chains of all ranks are merged into one topological order. Where chains do not decide,
layers do: upwards in the forward, downwards in the backward. Slots follow one another as data flow: forward, backward,
reduce, step, micro-batch by micro-batch, because weights do not change within a step.
"""

import heapq
import re
from typing import Final

import numpy as np

from numerics.columns import Columns
from numerics.keys import Ints, Keys, keys_of, occurrence
from numerics.schema import PHASES
from numerics.thresholds.reading import MAX_LAYER_DIGITS

_LAYER: Final = re.compile(r"\.(\d+)(?:\.|$)")
_LAST: Final = 1 << 40


def phase_index(run: Columns) -> Ints:
    """Return the position of each row's phase within a step, (rows,)."""
    found = np.full(len(run), len(PHASES), np.int64)
    for number, phase in enumerate(PHASES):
        found[run.named("phase", phase)] = number
    return found


def slots(run: Columns) -> Keys:
    """Return a number for each row's slot that sorts by step, phase and micro-batch, (rows,) uint64.

    Rows of no micro-batch come last in the backward, else first. Inputs come before anything computed, whenever they
    were recorded.
    """
    micro_batch, phase = run["micro_batch"], phase_index(run) * 2
    phase = np.where(run.named("kind", "input") & run.named("phase", "forward"), phase - 1, phase)
    backward = run.named("phase", "backward")
    placed = np.where(micro_batch >= 0, micro_batch + 1, np.where(backward, (1 << 24) - 1, 0))
    base = ((run["step"] + 1) * 16 + phase).astype(np.uint64) * np.uint64(1 << 24)
    return base + placed.astype(np.uint64)


def layer_of(name: str) -> int:
    """Return the first part of a dotted name that is a number, -1 without one."""
    found = _LAYER.search(f".{name}")
    return int(found[1]) if found and len(found[1]) <= MAX_LAYER_DIGITS else -1


def node_keys(run: Columns, rows: Ints) -> Keys:
    """Return the identity of the tensor that each row records, the same on every rank; repetitions count up."""
    columns = [run[c][rows] for c in ("kind", "tensor", "axis", "op", "label")]
    base = keys_of(*columns)
    return keys_of(base, occurrence(keys_of(base, run["rank"][rows], run["boxes"][rows]), run["order"][rows]))


def topological(run: Columns, rows: Ints) -> Ints:
    """Return the position of each of `rows` (all of one slot) in the merged order, (rows,) int64."""
    if not len(rows):
        return np.zeros(0, np.int64)
    keys, first, node = np.unique(node_keys(run, rows), return_index=True, return_inverse=True)
    count = len(keys)
    followers: list[set[int]] = [set() for _ in range(count)]
    waiting = [0] * count
    for before, after in [*_chains(run, rows, node), *_messages(run, rows, node)]:
        if after not in followers[before]:
            followers[before].add(after)
            waiting[after] += 1
    backward = bool(run.named("phase", "backward")[rows[0]])
    priority = [_priority(run, int(rows[f]), backward=backward) for f in first]
    return np.array(_sorted(followers, waiting, priority), np.int64)[node]


def _chains(run: Columns, rows: Ints, node: Ints) -> list[tuple[int, int]]:
    by = np.lexsort((run["order"][rows], run["rank"][rows]))
    same = run["rank"][rows][by][1:] == run["rank"][rows][by][:-1]
    before, after = node[by][:-1][same], node[by][1:][same]
    return [(int(b), int(a)) for b, a in zip(before, after, strict=True) if b != a]


def _messages(run: Columns, rows: Ints, node: Ints) -> list[tuple[int, int]]:
    """Return the edges from a tensor sent by a pipeline stage to the same tensor received by the next."""
    op, tensor = run["op"][rows], run["tensor"][rows]
    pipeline = run["axis"][rows] == run.names.number("pp")
    send, receive = run.names.number("send"), run.names.number("recv")
    sources = {int(tensor[i]): int(node[i]) for i in np.flatnonzero(pipeline & (op == send))}
    pairs = [
        (sources.get(int(tensor[i]), -1), int(node[i])) for i in np.flatnonzero(pipeline & (op == receive))
    ]
    return [(b, a) for b, a in pairs if b >= 0 and b != a]


def _priority(run: Columns, row: int, *, backward: bool) -> tuple[int, int, int]:
    layer = max(layer_of(run.name("tensor", row)), layer_of(run.name("label", row)))
    if layer < 0:
        place = -_LAST
    elif run.name("phase", row) in {"forward", "backward"}:
        place = -layer if backward else layer
    else:
        place = 0
    return place, int(run["order"][row]), int(run["rank"][row])


def _sorted(followers: list[set[int]], waiting: list[int], priority: list[tuple[int, int, int]]) -> list[int]:
    """Return each node's position in the topological order, the smallest priority first (Kahn's algorithm).

    A cycle (ranks that disagree) is cut at its node with the earliest row.
    """
    ready = [(priority[n], n) for n, w in enumerate(waiting) if not w]
    heapq.heapify(ready)
    left = sorted((priority[n][1:], n) for n in range(len(waiting)))
    place = [-1] * len(waiting)
    done, oldest = 0, 0
    while done < len(waiting):
        if not ready:
            while place[left[oldest][1]] >= 0:
                oldest += 1
            ready.append((priority[left[oldest][1]], left[oldest][1]))
        _, number = heapq.heappop(ready)
        if place[number] >= 0:
            continue
        place[number] = done
        done += 1
        for after in followers[number]:
            waiting[after] -= 1
            if not waiting[after] and place[after] < 0:
                heapq.heappush(ready, (priority[after], after))
    return place
