"""A process that no longer ran while its peers waited is named by the last sign of life in each dump."""

import pickle

import pytest

from tests.hang.test_comparable import entry, pg_config
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps

SECOND = 1_000_000_000
ALL = {"0": range(5)}


def answered(folder, lived, skew=(0, 0, 0, 0, 0)):
    """The finding where all ranks wait in their last call, and recorders ran on so many seconds (or it is unknown)."""
    for rank, seconds in enumerate(lived):
        entries = [entry(at, "0", at + 1, at < 4, at) for at in range(5)]
        for row in entries:
            row["time_created_ns"] += int(skew[rank] * SECOND)
        dump = {"version": "2.4", "pg_config": pg_config(rank, ALL), "entries": entries}
        if seconds is not None:
            dump["heartbeat_ns"] = entries[-1]["time_created_ns"] + int(seconds * SECOND)
        (folder / f"rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return analyse(load_dumps([str(folder)]))


@pytest.mark.parametrize("lived", [(12, 12, 0.2, 13, 11), (600, 601, 1.4, 590, 480), (8, 92, 0.2, 7, 9)])
def test_the_process_that_ran_no_longer_is_named(tmp_path, lived):
    found = answered(tmp_path, lived)
    assert [(c.rank, c.kind) for c in found.culprits] == [(2, "host_stalled")]
    assert "its process last ran" in found.reason
    assert found.victims == (0, 1, 3, 4)


@pytest.mark.parametrize(
    "lived",
    [
        (12, 12, 5, 13, 11),
        (3, 3, 0.2, 3, 3),
        (12, 12, 0.2, None, 11),
        (12, 0.1, 0.2, 0.3, 11),
        (12, 12, 12, 12, 12),
    ],
    ids=["ended early", "too short", "one unknown", "most", "all alike"],
)
def test_other_signs_of_life_name_no_process(tmp_path, lived):
    found = answered(tmp_path, lived)
    assert (found.verdict, found.culprits) == ("inconclusive", ())


def test_a_clock_that_goes_ahead_is_no_sign(tmp_path):
    """Its peers' last signs are no later than its own: it may have gone on, with less to wait for."""
    assert not answered(tmp_path, (12, 12, 0.2, 13, 11), skew=(0, 0, 30, 0, 0)).culprits
