"""Pipes and devices under the names of files that a folder holds: refused at once, without waiting or reading."""

import os
import shutil

import pytest

from numerics.errors import CaptureError
from numerics.order.order_plan import FILE, read_plan
from numerics.precision.shadow_sums import _document
from numerics.store import STAMP, open_capture
from numerics.values_file import ValuesFile
from reftrain.data.sequences import _document as text_of
from reftrain.errors import ConfigError
from reftrain.record import manifest as recorded
from reftrain.replay import manifest as replayed
from tests.hostile.job import documents, write
from tracekit.errors import InputError
from tracekit.files.discover import recorded_run
from tracekit.ingest import load
from tracekit.store import is_run, verify


@pytest.fixture(params=["pipe", "zero"])
def device(request, tmp_path):
    """Puts a pipe that nothing writes into, or /dev/zero, at a name of a folder."""

    def put(name):
        path = tmp_path / name
        path.unlink(missing_ok=True)
        os.mkfifo(path) if request.param == "pipe" else path.symlink_to("/dev/zero")
        return path

    return put


def test_no_device_is_a_run(device):
    path = device("manifest.json")
    assert not is_run(path.parent)
    with pytest.raises(InputError):
        verify(path, "")
    assert recorded_run(device("run.json").parent) is None
    assert recorded.read_manifest(path.parent) is None
    with pytest.raises(replayed.ReplayError):
        replayed.read_manifest(path.parent)


def test_no_device_is_a_capture(device):
    with pytest.raises(InputError):
        open_capture(device(STAMP).parent)
    with pytest.raises(CaptureError):
        read_plan(device(FILE).parent)
    with pytest.raises(InputError):
        _document(device("rank00000.json"), 0)
    with pytest.raises(CaptureError):
        ValuesFile(device("values"))


def test_no_device_is_a_text(device):
    with pytest.raises(ConfigError):
        text_of(device("text"))


def test_a_run_whose_tables_are_devices_is_refused(device, tmp_path):
    load([str(write(tmp_path / "in", documents()))], out=tmp_path / "run")
    for name in ("groups.parquet", "files.json"):
        copy = shutil.copytree(tmp_path / "run", tmp_path / name.partition(".")[0])
        device(f"{copy.name}/{name}")
        with pytest.raises(InputError):
            load([str(tmp_path / "in"), str(tmp_path / "in")], out=copy, append=True)
