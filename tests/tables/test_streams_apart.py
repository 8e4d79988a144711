"""A stream that carries several groups is taken apart where one kind leaves together more widely than the rest."""

from dataclasses import replace

import numpy as np
import pytest

from tests.tables.rows import gemm, recorded, row
from tracekit.inference.groups.places_apart import streams_apart

KINDS = ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "ncclDevKernel_AllGather_RING_LL")
PAIRS = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}


def ranks(all_reduce, calls=4):
    """Four ranks whose pairs gather on the stream on which the groups by rank in `all_reduce` reduce, µs."""
    rng = np.random.default_rng(5)
    lines = {r: [] for r in PAIRS}
    for call in range(calls):
        for kind, groups, at in ((KINDS[0], all_reduce, 0), (KINDS[1], PAIRS, 1000)):
            begins = {r: 4000.0 * call + at + rng.uniform(0, 400) for r in PAIRS}
            for rank, group in groups.items():
                end = max(begins[r] for r in group) + 100 + rng.uniform(0, 0.5)
                lines[rank].append(row("kernel", kind, begins[rank], end - begins[rank], stream=7))
                lines[rank].append(gemm(end + 1, 90))
    return [recorded(r, *lines[r]) for r in PAIRS]


@pytest.mark.parametrize(
    ("groups", "apart"),
    [(dict.fromkeys(PAIRS, (0, 1, 2, 3)), True), (PAIRS, False)],
    ids=["everybody reduces", "pairs reduce"],
)
def test_a_kind_of_wider_groups_gets_a_number(groups, apart):
    given = ranks(groups)
    for old, new in zip(given, streams_apart(given), strict=True):
        wider = np.array(old.op) == "all_reduce"
        assert (new.stream[~wider] == 7).all()
        assert (new.stream[wider] == 7).all() == (not apart)
        assert len(set(new.stream[wider].tolist())) == 1


def test_few_ends_and_streams_without_a_number_stay():
    short = ranks(dict.fromkeys(PAIRS, (0, 1, 2, 3)), calls=2)
    untold = [replace(r, stream=None) for r in short]
    for given in (short, untold):
        for old, new in zip(given, streams_apart(given), strict=True):
            assert np.array_equal(old.stream, new.stream) if old.stream is not None else new.stream is None
