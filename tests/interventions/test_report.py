"""What a planted fault costs, and where the measured gain lies beside the promise."""

import json

import pytest

from tests.interventions.__main__ import measured
from tests.interventions.planted import FAULTS, blocks
from tests.interventions.report import counted, lies, resolution

ROW = {
    "mesh": "tp=2,dp=2", "fault": "pauses:rank=3", "blocks_ms": [100.0, 130.0, 102.0, 131.0, 100.0],
    "gains_ms": [29.0, 30.0], "low_ms": 25.0, "high_ms": 35.0, "promised_ms": 30.0, "right": True,
}  # fmt: skip


def test_struck_blocks_lie_between_others():
    steps = [step for block in blocks() for step in block]
    assert steps == list(range(steps[0], steps[-1] + 1))
    assert FAULTS[0].options()[1].endswith(f"steps={blocks()[1].start}:{blocks()[1].stop}")


def test_the_gain_is_the_step_beyond_its_neighbours(tmp_path):
    (tmp_path / "metrics").mkdir()
    step_s = [0.2 if block in blocks()[1::2] else 0.1 for block in blocks() for _ in block]
    rows = [{"step": blocks()[0].start + at, "step_s": s} for at, s in enumerate(step_s)]
    (tmp_path / "metrics" / "rank0.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert measured(tmp_path)["gains_ms"] == pytest.approx([100, 100])


@pytest.mark.parametrize(
    ("low", "high", "where"),
    [
        (25, 35, "inside"),
        (30, 35, "within the resolution"),
        (40, 50, "outside"),
        (None, None, "no interval"),
    ],
)
def test_a_gain_lies_in_or_beside_its_interval(low, high, where):
    assert lies({**ROW, "low_ms": low, "high_ms": high}, 0.02) == where


def test_the_resolution_is_the_drift_without_a_fault():
    assert resolution([ROW]) == pytest.approx((0.02 + 2 / 102) / 2)
    assert "right: 1 of 2" in counted([ROW, {"mesh": "tp=2", "fault": "x", "error": "ended"}], 0.02)
