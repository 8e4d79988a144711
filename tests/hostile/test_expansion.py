"""A small file that expands beyond reason is refused early, and a disk without room is reported before the reading."""

import gzip
import shutil
from types import SimpleNamespace

import pytest
import zstandard

from tests.hostile.job import documents, write
from tracekit.errors import InputError, OutputError
from tracekit.files import source
from tracekit.ingest import load
from tracekit.ingest.readers import read_file

HEAD = b'{"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": ['
EVENT = b'{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1000.0, "dur": 5.0},'
PACK = {"gz": lambda data: gzip.compress(data, 9), "zst": zstandard.ZstdCompressor().compress}


@pytest.fixture
def small(monkeypatch):
    """A bound that a test reaches at once."""
    monkeypatch.setattr(source, "LEAST_EXPANDED", 1 << 20)


@pytest.mark.parametrize("form", PACK)
def test_equal_events_beyond_any_ratio_are_refused(small, tmp_path, form):
    path = tmp_path / f"rank0.json.{form}"
    path.write_bytes(PACK[form](HEAD + EVENT * 200_000 + EVENT[:-1] + b"]}"))
    result = read_file(source.Source(str(path), path.name, path.stat().st_size), tmp_path / "table")
    assert (result.status, "more than 200 times its size" in result.reason) == ("rejected", True)
    with pytest.raises(InputError, match="more than 200 times its size"):
        load([str(path)])


def test_an_expanded_file_has_a_largest_size(monkeypatch, tmp_path):
    monkeypatch.setattr(source, "LARGEST_EXPANDED", 1 << 16)
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(HEAD + EVENT * 2000 + EVENT[:-1] + b"]}"))
    with pytest.raises(InputError, match="expands to more than"):
        load([str(path)])


def test_a_disk_without_room_is_told_before_reading(monkeypatch, tmp_path):
    folder = write(tmp_path / "in", documents())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(OutputError, match=r"takes about .* GB there for a while"):
        load([str(folder)])
    with pytest.raises(OutputError, match="name another folder"):
        load([str(folder)], out=tmp_path / "run")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
