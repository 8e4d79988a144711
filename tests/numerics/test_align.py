"""The tensors of two captures, joined."""

import numpy as np
import torch

from numerics.columns import Names, read_columns
from numerics.comparison.joins.tensor_table import by_tensor
from numerics.record.recorder import Recorder
from numerics.store import open_capture
from tests.numerics.synthetic import Plan, write


def test_the_first_part_to_run_represents_a_tensor(tmp_path):
    plan = Plan(tp=2, dp=2, micro_batches=2)
    names = Names()
    runs = [read_columns(open_capture(write(tmp_path / name, plan)), names) for name in ("a", "b")]
    table = by_tensor(*runs)
    parts = []
    for run, rows in zip(runs, (table.left, table.right), strict=True):
        for row in rows:
            same = (run["replica"] == 0) & (run["partial"] < 0)
            for column in ("step", "phase", "kind", "tensor"):
                same &= run[column] == run[column][row]
            parts.append(len(np.unique(run["order"][same])))
            assert run["order"][row] == run["order"][same].min()
    assert max(parts) > 1


def test_hundreds_of_micro_batches_are_joined(tmp_path):
    """Numbers of micro-batches enter keys; they are hashed, never shifted beyond 64 bits."""
    names = Names()
    runs = []
    for name in ("a", "b"):
        recorder = Recorder(tmp_path / name, 0, 1)
        for micro_batch in (0, 200, 2**31 - 2):
            recorder.record(
                "loss", torch.tensor(1.0), step=0, phase="forward", kind="scalar", micro_batch=micro_batch
            )
        recorder.close()
        runs.append(read_columns(open_capture(tmp_path / name), names))
    table = by_tensor(*runs)
    assert table.status.tolist() == [0, 0, 0]
