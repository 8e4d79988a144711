"""The sequences that two runs read, as a set."""

import torch

from numerics.columns import Names, read_columns
from numerics.comparison.proofs.other_inputs import other_inputs
from numerics.record.recorder import Box, Recorder
from numerics.store import open_capture

WORDS = torch.arange(24).view(6, 4)


def read(folder, order, ranks=1):
    """Columns of a run whose ranks read these sequences, one after another."""
    share = len(order) // ranks
    for rank in range(ranks):
        with Recorder(folder, rank, ranks, {"dp": rank}, level="tensors") as recorder:
            given = WORDS[order[rank * share : (rank + 1) * share]]
            place = {"global_shape": (6, 4), "boxes": [Box((rank * share, 0), (share, 4))]}
            more = {"step": 0, "phase": "forward", "micro_batch": 0}
            recorder.record("in.0", given, kind="input", **more, **place)
            recorder.record("out", given.float(), kind="activation", **more, **place)
    return read_columns(open_capture(folder), Names())


def test_sequences_dealt_otherwise_are_the_same_data(tmp_path):
    run = read(tmp_path / "a", [0, 3, 1, 4, 2, 5], ranks=3)
    assert other_inputs(run, read(tmp_path / "b", range(6))) is None


def test_other_sequences_are_told(tmp_path):
    run = read(tmp_path / "a", [0, 1, 2, 0, 1, 2], ranks=2)
    found = other_inputs(run, read(tmp_path / "b", list(range(6))))
    assert found.startswith("3 of 6 sequences of in.0 in step 0 are not the baseline's")
