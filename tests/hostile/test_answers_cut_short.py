"""A command that is ended while it works, or whose answer finds no room, leaves one sentence and the old answer."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hang.simulate import make
from tests.hostile.disk import needs_root, small_disk
from tests.hostile.job import documents, write
from tests.hostile.test_ends import SECONDS, command, full, until
from tests.marks import quick_first
from tracekit.ingest import load

WORKS = """
import signal, sys, time
from importlib import import_module
from pathlib import Path
from tracekit_cli.tracekit import main
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
def works(*_, **__):
    Path(sys.argv[-1] + ".note").write_text("works")
    for _ in range(600):  # in short pieces: a signal right before a system call does not end it
        time.sleep(0.1)
command = import_module("tracekit_cli.tracekit_commands." + sys.argv[1])
for name in {"analyse", "illustrated", "judge_evidence"} & vars(command).keys():
    setattr(command, name, works)
sys.argv[0] = "tracekit"
main()
"""
OLD = "an earlier answer"


def evidence(folder, name):
    """What a command reads: the traces or the dumps of a small job."""
    if name == "hang":
        return make(3, "host_stall", "tp", {"tp": 2, "cp": 2, "pp": 2, "dp": 2}).write(folder / "in")
    return write(folder / "in", documents())


ENDS = [(c, n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT) for c in ("slowrank", "hang")]


@pytest.mark.parametrize(("name", "number"), quick_first(1, ENDS))
def test_a_signal_leaves_the_old_answer(tmp_path, name, number):
    given, out = evidence(tmp_path, name), tmp_path / "answer.json"
    (tmp_path / "tmp").mkdir()
    out.write_text(OLD)
    with subprocess.Popen(
        [sys.executable, "-c", WORKS, name, str(given), "--quiet", "--json", str(out)],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert until(Path(f"{out}.note").exists)
        process.send_signal(number)
        _, said = process.communicate(timeout=SECONDS)
    assert (process.returncode, said.strip()) == (130, "tracekit: interrupted")
    assert out.read_text() == OLD
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("name", quick_first(1, ["hang", "slowrank"]))
def test_an_answer_without_room_leaves_the_old_one(tmp_path, name):
    given, out = evidence(tmp_path, name), tmp_path / "answer.json"
    if name == "slowrank":
        load([str(given)], out=tmp_path / "run")
        given = tmp_path / "run"
    out.write_text(OLD)
    done = command(name, given, "--quiet", "--json", out, preexec_fn=full(500))
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert f"{out}: cannot be written (File too large)" in done.stderr
    assert out.read_text() == OLD
    assert [p.name for p in tmp_path.iterdir() if "answer" in p.name] == ["answer.json"]


@pytest.mark.slow
@needs_root
def test_a_small_disk_is_told_at_every_stage(tmp_path):
    """While traces are read, and before any work where the disk is full already."""
    given = evidence(tmp_path, "slowrank")
    with small_disk(tmp_path / "disk", "64k") as disk:
        grown = command("ingest", given, "--out", disk / "run", "--quiet")
        assert list(disk.iterdir()) == []
        (disk / "full").write_bytes(bytes(1 << 16))
        begin = time.monotonic()
        tried = [
            grown,
            command("ingest", given, "--out", disk / "run", "--quiet"),
            command("slowrank", tmp_path / "none", "--json", disk / "a.json", "--quiet"),
            command("hang", tmp_path / "none", "--json", disk / "a.json", "--quiet"),
            command("capture", "--out", disk / "a", "--", "false", program="numerics"),
        ]
        assert time.monotonic() - begin < SECONDS
    for done in tried:
        assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
        assert "No space left on device" in done.stderr or "free some space" in done.stderr
