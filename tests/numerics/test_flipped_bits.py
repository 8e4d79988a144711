"""One flipped bit of a run is named beside its matched replay, by fingerprints alone or by values."""

import pytest
import torch

from numerics.columns import Names, read_columns
from numerics.comparison.explanations.rules import explain
from numerics.comparison.first_divergence import first_divergence
from numerics.comparison.joins.row_pairs import RowPairs
from numerics.comparison.joins.row_table import by_row
from numerics.record.recorder import Recorder
from numerics.store import open_capture

BYTES = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def turned(value, at, bit):
    """A tensor with one bit flipped."""
    out, width = value.clone(), 8 * value.element_size()
    out.view(BYTES[value.element_size()]).view(-1)[at] ^= -(1 << bit) if bit == width - 1 else 1 << bit
    return out


def captured(out, value, level):
    """A capture of one tensor on three ranks, the middle one with its own value."""
    for rank in range(3):
        recorder = Recorder(out, rank, 3, {"tp": 0, "cp": 0, "pp": 0, "dp": rank}, level=level)
        recorder.record("layer.out", value[rank], step=0, phase="forward", kind="activation", micro_batch=0)
        recorder.close()
    return open_capture(out)


def explained(folder, level, change, dtype=torch.float32):
    """How the run's first divergence from its replay is explained, changed on rank 1."""
    value = torch.randn(12, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    names = Names()
    run = read_columns(captured(folder / "run", [value, change(value), value], level), names)
    right = read_columns(captured(folder / "replay", [value] * 3, level), names)
    table = by_row(run, right)
    return explain(RowPairs(run, right, table), first_divergence(run, right, table))


CASES = [
    ("digest", torch.float32, 12),
    ("digest", torch.float32, 30),
    ("digest", torch.bfloat16, 3),
    ("digest", torch.bfloat16, 15),
    ("tensors", torch.float32, 20),
    ("tensors", torch.float32, 31),
    ("tensors", torch.bfloat16, 15),
    ("tensors", torch.float64, 50),
]


@pytest.mark.parametrize(("level", "dtype", "bit"), CASES)
@pytest.mark.quick(2)
def test_flipped_bit_is_named(tmp_path, level, dtype, bit):
    found = explained(tmp_path, level, lambda value: turned(value, 21, bit), dtype)
    assert found.text == f"one flipped bit: bit {bit} of element (2, 5), all others are equal"
    assert not found.rounding


def test_lowest_bit_may_be_a_rounding(tmp_path):
    found = explained(tmp_path, "digest", lambda value: turned(value, 21, 0))
    assert found.text.endswith("a rounding that turned over, or a fault")
    assert found.rounding


@pytest.mark.parametrize(
    "change",
    [
        lambda v: turned(turned(v, 21, 12), 40, 12),
        lambda v: v * (1 + 1e-6),
        lambda v: v + (torch.arange(8) == 3),
    ],
)
def test_more_than_a_bit_is_no_flipped_bit(tmp_path, change):
    found = explained(tmp_path, "tensors", change)
    assert found is None or "flipped" not in found.text
