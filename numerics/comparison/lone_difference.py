"""Differences that no change of kernel makes: on one rank alone among equals, or in one element of many."""

import numpy as np

from numerics.columns import Columns
from numerics.comparison.joins.row_table import RowTable
from numerics.formats import unit_roundoff
from numerics.keys import Ints
from numerics.local.draws.chance import no_accident
from numerics.thresholds.local import LONE_ELEMENT_OF, LONE_ELEMENT_ULP


def lone_ranks(run: Columns, rows: RowTable, different: Ints) -> list[int]:
    """Return the differing rows of ranks that differ alone, though their peers do the same.

    Peers record the same tensors in the same sizes. Where one of them has all rows that differ, chance decides: all
    rows alike, would they fall on one rank?
    """
    peers = _peers(run)
    wrong = np.zeros(len(run), bool)
    wrong[different] = True
    matched = rows.match >= 0
    found: list[int] = []
    for number in np.unique(peers[different]):
        here = matched & (peers == number)
        ranks = np.unique(run["rank"][here & wrong])
        if len(ranks) != 1 or len(np.unique(run["rank"][here])) == 1:
            continue
        bad = np.flatnonzero(here & wrong)
        own = int((here & (run["rank"] == ranks[0])).sum())
        if no_accident(own, int(here.sum()), len(bad)):
            found += bad.tolist()
    return found


def _peers(run: Columns) -> Ints:
    """Return for each row the number of the set of ranks that record the same tensor in the same size."""
    key = np.stack([run["tensor"], run["kind"], run["numel"]])
    _, tensor = np.unique(key, axis=1, return_inverse=True)
    tensor = tensor.reshape(-1)
    pairs = np.unique(np.stack([tensor, run["rank"]]), axis=1)
    sets: dict[int, list[int]] = {}
    for one, rank in pairs.T.tolist():
        sets.setdefault(one, []).append(rank)
    numbers: dict[tuple[int, ...], int] = {}
    of_tensor = np.array(
        [numbers.setdefault(tuple(ranks), len(numbers)) for _, ranks in sorted(sets.items())], np.int64
    )
    return np.asarray(of_tensor[tensor])


def lone_element(run: Columns, forced: Columns, row: int, match: int) -> bool:
    """Return whether one element of many differs alone, by more than the next numbers of its or the usual size."""
    mine, other = run.values_key(row), forced.values_key(match)
    if mine is None or other is None or int(run["numel"][row]) < LONE_ELEMENT_OF:
        return False
    a = run.capture.read_values(int(run["rank"][row]), mine).astype(np.float64)
    b = forced.capture.read_values(int(forced["rank"][match]), other).astype(np.float64)
    if len(a) != len(b) or int((a != b).sum()) != 1:
        return False
    at = int(np.argmax(a != b))
    size = max(abs(b[at]), float(np.sqrt(np.mean(b * b))))
    last_place = 2 * unit_roundoff(run.name("dtype", row)) * size
    return bool(abs(a[at] - b[at]) > LONE_ELEMENT_ULP * last_place)
