"""Helpers of the hang tests: cases to findings, and the real recordings where present."""

import os
from pathlib import Path

import pytest

from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps

REAL = {"gpu_error_1st": ({12, 14}, "device_stalled"), "lock_gil_2nd": ({10, 15}, "host_stalled")}


@pytest.fixture
def judge(tmp_path):
    def run(case, name="nccl_trace_rank_{}", drop=()):
        folder = case.write(tmp_path / f"c{len(list(tmp_path.iterdir()))}", name)
        for rank in drop:
            (folder / name.format(rank)).unlink()
        return analyse(load_dumps([str(folder)]))

    return run


@pytest.fixture
def real():
    """Folder of the real recordings; skips where they are absent."""
    shared = os.environ.get("TRACEKIT_SHARED_DATA") or Path(__file__).parents[2] / ".." / "shared" / "data"
    folder = Path(shared) / "flight_recorder"
    if not folder.is_dir():
        pytest.skip(f"real flight-recorder dumps absent: {folder}")
    return folder
