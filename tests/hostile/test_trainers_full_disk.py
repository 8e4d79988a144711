"""A trainer of somebody else whose capture fills the disk trains on, and what the disk held before is whole."""

import resource
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from numerics.record.watch import watch
from numerics.store import open_capture
from tests.hostile.disk import needs_root, small_disk
from tracekit.errors import InputError

STEPS = 6
ROOM = 1 << 15
"""Bytes of one file, or of the disk: more than the first step's values, less than all."""


@contextmanager
def short_files(folder):
    """Files that may hold ROOM bytes each, as a quota does; for whoever may not mount a disk."""
    folder.mkdir()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, old[1]))
    try:
        yield folder
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def trained(out, level):
    """The loss of each step of a small trainer that is watched, or of one that is not."""
    torch.manual_seed(0)
    model = nn.Linear(32, 32)
    optimizer = torch.optim.AdamW(model.parameters())
    watcher = watch(model, optimizer, out=out, level=level) if out else watch(model, optimizer)
    losses = []
    for _ in range(STEPS):
        loss = model(torch.randn(8, 32)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    watcher.close()
    return losses


DISKS = [
    pytest.param(lambda folder: small_disk(folder, ROOM), "No space left on device", marks=needs_root),
    (short_files, "File too large"),
]


@pytest.mark.parametrize("level", ["tensors", "digest"])
@pytest.mark.parametrize(("disk", "why"), DISKS, ids=["full disk", "quota"])
def test_training_goes_on_where_recording_cannot(tmp_path, capfd, monkeypatch, disk, why, level):
    monkeypatch.setattr("numerics.record.recorder.ROWS_PER_GROUP", 1)
    with disk(tmp_path / "disk") as folder:
        (folder / "checkpoint").write_bytes(b"old" * 100)
        assert trained(folder / "run", level) == trained(None, level)
        said = capfd.readouterr().err
        assert (said.count("\n"), why in said, "the training goes on" in said) == (1, True, True)
        assert (folder / "checkpoint").read_bytes() == b"old" * 100
        names = {p.name for p in (folder / "run" / "capture").iterdir()}
        assert names == {"stamp.json", "rank00000.parquet.partial"}
        with pytest.raises(InputError, match="cut short"):
            open_capture(folder / "run")
