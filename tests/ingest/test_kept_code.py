"""When the compiled scanner is loaded, compiled or left alone, and whose code is run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ingest.sample import document, put
from tracekit.files.source import Source
from tracekit.ingest import load
from tracekit.ingest.kineto import trace
from tracekit.ingest.kineto.compiled import scanner_code
from tracekit.thresholds.ingest import WORTH_COMPILING, WORTH_SCANNING

pytest.importorskip("numba")
SAMPLES = Path(__file__).parents[2] / "sample_traces"


def test_code_is_kept_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = scanner_code.code_folder() / "code.o"
    scanner_code.write_code(path, b"code")
    assert scanner_code.read_code(path) == b"code"
    path.write_bytes(path.read_bytes()[:-1])
    assert scanner_code.read_code(path) is None
    assert [p.name for p in path.parent.iterdir()] == ["code.o"]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_code_of_a_shared_folder_is_never_run(mode, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "tracekit").mkdir()
    (tmp_path / "tracekit").chmod(mode)
    assert scanner_code.code_folder() is None
    (tmp_path / "tracekit").chmod(0o700)
    tmp_path.chmod(mode)
    assert scanner_code.code_folder() is None


def test_code_that_others_may_write_is_never_run(tmp_path):
    path = tmp_path / "code.o"
    scanner_code.write_code(path, b"code")
    path.chmod(0o666)
    assert scanner_code.read_code(path) is None
    link = tmp_path / "link.o"
    path.chmod(0o600)
    link.symlink_to(path)
    assert scanner_code.read_code(link) is None


def test_without_numba_the_general_reader_serves(tmp_path, monkeypatch):
    monkeypatch.setattr(scanner_code, "_loaded", [])
    monkeypatch.setattr(scanner_code, "_installed", lambda _name: False)
    scanner_code.prepare(1 << 40)
    assert scanner_code.scanner() is None
    assert load([put(tmp_path / "rank_0.json", document())]).ranks[0].events == 6


def test_small_inputs_load_nothing():
    code = "import sys; from tracekit.ingest import load; load(sys.argv[1:]); print(*sys.modules)"
    path = min((SAMPLES / "healthy" / "trace").iterdir())
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert not {"numba", "llvmlite", "fsspec"} & set(done.stdout.split())


def test_without_kept_code_nothing_is_loaded(tmp_path):
    """To ask the processor takes longer than to read what is not worth compiling for."""
    asked = f"from {scanner_code.__name__} import prepare; prepare({WORTH_COMPILING - 1})"
    code = f"import sys; {asked}; print(*sys.modules)"
    found = {}
    for kept in ("nothing", "of another version"):
        here = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
        if kept != "nothing":
            scanner_code.write_code(tmp_path / "tracekit" / "scanner-0.o", b"code")
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=here
        )
        found[kept] = "llvmlite" in done.stdout.split()
    assert found == {"nothing": False, "of another version": True}


@pytest.mark.parametrize(
    ("name", "size", "worth"),
    [
        ("rank_0.json", WORTH_SCANNING - 1, False),
        ("rank_0.json", WORTH_SCANNING, True),
        ("rank_0.json.gz", WORTH_SCANNING // 4, True),
        ("rank_0.json.gz", WORTH_SCANNING // 100, False),
    ],
)
def test_size_of_the_json_decides(name, size, worth, monkeypatch):
    monkeypatch.setattr(scanner_code, "_loaded", [print])
    assert (trace.compiled_reader(Source(name, name, size)) is not None) == worth


def test_compiling_is_announced_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(scanner_code, "_loaded", [])
    monkeypatch.setattr(scanner_code, "_compiled", lambda: b"no code")
    monkeypatch.setattr("tracekit.ingest.kineto.compiled.machine.loaded", lambda found: found)
    told = []
    scanner_code.prepare(WORTH_COMPILING - 1, told.append)
    assert (told, scanner_code.scanner()) == ([], None)
    for _ in range(2):
        scanner_code._loaded.clear()
        scanner_code.prepare(WORTH_COMPILING, told.append)
    assert (told, scanner_code.scanner()) == ([scanner_code.SAID], b"no code")
