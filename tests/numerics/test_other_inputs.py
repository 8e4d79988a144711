"""The sequences that two runs read, as a set."""

from dataclasses import replace

import torch

from numerics.columns import Names, read_columns
from numerics.comparison.proofs.other_inputs import other_inputs
from numerics.comparison.resumed import resumed
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


def test_a_baseline_without_steps_is_no_earlier_start(tmp_path):
    run = read(tmp_path / "a", list(range(6)))
    for folder in ("b", "c"):
        with Recorder(tmp_path / folder, 0, 1) as recorder:
            recorder.record("w", WORDS.float(), step=-1, phase="init", kind="param")
            if folder == "b":
                recorder.record("in.0", WORDS, step=0, phase="forward", kind="input", micro_batch=0)
    started, empty = (read_columns(open_capture(tmp_path / one), run.names) for one in ("b", "c"))
    changed = replace(started, digest=started.digest + (started["step"] < 0).astype(started.digest.dtype))
    assert resumed(changed, empty) is None
