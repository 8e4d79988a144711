"""However a command ends, nothing is left: no worker, no half-written run, no broken answer."""

import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.hostile.job import documents, write
from tests.marks import quick_first
from tracekit.child_processes import run_command
from tracekit.errors import InputError
from tracekit.ingest import load
from tracekit.ingest.output_folder import refuse_foreign
from tracekit.locked_folders import locked, sweep, temporary

BUSY = """
import sys, time
from pathlib import Path
from tracekit.workers import Limits, do_all
def handler():
    def do(task):
        Path(task).write_text(str(__import__("os").getpid()))
        time.sleep(60)
    return do
list(do_all(sys.argv[1:], handler, 2, Limits(99, 1 << 32, 1, "", "", "")))
"""
BUILD = """
import signal, sys, time
from pathlib import Path
from tracekit_cli.program import end_politely, reported
from tracekit.ingest.output_folder import building
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may have both ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
end_politely()
with reported("tracekit"), building(Path(sys.argv[1])) as (folder, _):
    (folder / "events").mkdir()
    print(folder, flush=True)
    for _ in range(6000):  # a signal right before a system call does not end that
        time.sleep(0.01)
"""
DROPPED = """
import os, signal, time
from tracekit_cli.program import end_politely, reported
end_politely()
class Finalised:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
with reported("tracekit"):
    Finalised()
    for _ in range(500):
        time.sleep(0.01)
"""
TRAIN = """
import signal, sys, time
from pathlib import Path
from reftrain.rank.processes import Ranks
from tracekit_cli.program import end_politely, reported
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
end_politely()
def work(note):
    Path(note).write_text(str(__import__("os").getpid()))
    time.sleep(60)
ranks = Ranks()
with reported("reftrain"):
    try:
        for note in sys.argv[1:]:
            ranks.fork(lambda: work(note))
        ranks.wait()
    finally:
        ranks.end()
"""
WRITE = """
import signal, sys, time
from pathlib import Path
from reftrain.simulate.pool import in_parallel
from tracekit_cli.program import reported
signal.signal(signal.SIGINT, signal.default_int_handler)
class Slow:
    def write(self, rank):
        Path(sys.argv[1 + rank // 32]).write_text(str(__import__("os").getpid()))
        time.sleep(60)
with reported("reftrain"):
    in_parallel(Slow(), range(64), 2, lambda rank: rank)
"""
CAPTURE = """
import signal, sys
from tracekit_cli.numerics import main
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
trains = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
sys.argv = ["numerics", "capture", "--out", sys.argv[1] + "-run", "--", sys.executable, "-c", trains, sys.argv[1]]
main()
"""
SECONDS = 20.0


def until(condition):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_killed_parent_leaves_no_worker(tmp_path):
    notes = [tmp_path / "a", tmp_path / "b"]
    with subprocess.Popen([sys.executable, "-c", BUSY, *map(str, notes)]) as parent:
        assert until(lambda: all(n.exists() and n.read_text() for n in notes))
        parent.send_signal(signal.SIGKILL)
    workers = [int(n.read_text()) for n in notes]
    assert until(lambda: all(gone(w) for w in workers))


def ended(script, notes, number):
    """(exit code, words on stderr) of a script that a signal ends; its workers are gone as well."""
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, notes)], stderr=subprocess.PIPE, text=True
    ) as parent:
        assert until(lambda: all(n.exists() and n.read_text() for n in notes))
        parent.send_signal(number)
        _, err = parent.communicate(timeout=SECONDS)
    assert until(lambda: all(gone(int(n.read_text())) for n in notes))
    return parent.returncode, err


@pytest.mark.parametrize("number", quick_first(1, [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]))
def test_a_signal_ends_all_ranks(tmp_path, number):
    assert ended(TRAIN, [tmp_path / "a", tmp_path / "b"], number) == (130, "reftrain: interrupted\n")


@pytest.mark.parametrize("script", [TRAIN, WRITE], ids=["ranks", "writers"])
def test_a_killed_trainer_leaves_no_process(tmp_path, script):
    ended(script, [tmp_path / "a", tmp_path / "b"], signal.SIGKILL)


@pytest.mark.parametrize("number", quick_first(2, [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
def test_a_captured_command_ends_with_numerics(tmp_path, number):
    code, said = ended(CAPTURE, [tmp_path / "a"], number)
    assert (code, said.strip()) in [(130, "numerics: interrupted"), (-signal.SIGKILL, "")]


def test_interrupted_writers_end_at_once(tmp_path):
    code, said = ended(WRITE, [tmp_path / "a", tmp_path / "b"], signal.SIGINT)
    assert (code, said) == (130, "reftrain: interrupted\n")


@pytest.mark.parametrize("number", quick_first(1, [signal.SIGHUP, signal.SIGTERM, signal.SIGINT]))
def test_a_signal_is_ctrl_c(tmp_path, number):
    with subprocess.Popen(
        [sys.executable, "-c", BUILD, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        folder = Path(process.stdout.readline().strip())
        assert folder.is_dir()
        process.send_signal(number)
        _, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err.count("\n")) == (130, 1)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_of_a_finaliser_is_not_lost():
    done = subprocess.run(
        [sys.executable, "-c", DROPPED], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert (done.returncode, done.stderr) == (130, "tracekit: interrupted\n")


def test_a_signal_that_another_thread_meets_ends_a_command(tmp_path):
    note, begin = tmp_path / "note", time.monotonic()

    def meet():
        until(note.exists)
        time.sleep(0.3)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=meet)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_command(["sh", "-c", 'touch "$0"; exec sleep 15', str(note)], os.environ)
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begin < 14


def test_the_next_call_removes_what_a_kill_left(tmp_path):
    traces = write(tmp_path / "traces", documents()[:2] + [None] * 6)
    out = tmp_path / "run"
    load([str(traces)], out=out)
    before = (out / "manifest.json").read_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", BUILD, str(out)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert Path(process.stdout.readline().strip()).is_dir()
        process.send_signal(signal.SIGKILL)
    assert (out / "manifest.json").read_bytes() == before
    load([str(traces)], out=out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "traces"]


def test_folders_of_killed_processes_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, used = tmp_path / "x-left", tmp_path / "x-used"
    for folder in (left, used, tmp_path / "x-mine"):
        folder.mkdir()
    os.close(locked(left))
    lock = locked(used)
    with temporary("x-") as mine:
        assert mine.is_dir()
        assert {p.name for p in tmp_path.iterdir()} == {"x-used", "x-mine", mine.name}
    os.close(lock)
    assert not mine.exists()


def test_a_folder_without_its_lock_yet_is_left(tmp_path, monkeypatch):
    """Another process looks for what was left at the very moment before the lock is held."""
    folder = tmp_path / "x-new"
    folder.mkdir()
    hold = fcntl.flock

    def later(file, how):
        monkeypatch.setattr("fcntl.flock", hold)
        sweep(tmp_path, "x-")
        hold(file, how)

    monkeypatch.setattr("fcntl.flock", later)
    os.close(locked(folder))
    assert folder.is_dir()


def full(bytes_):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))


def command(*arguments, program="tracekit", **options):
    call = f"from tracekit_cli.{program} import main; import sys; sys.argv[0] = '{program}'; main()"
    run = [sys.executable, "-c", call, *map(str, arguments)]
    return subprocess.run(run, capture_output=True, text=True, check=False, timeout=120, **options)


def test_a_full_disk_is_one_sentence(tmp_path):
    traces = write(tmp_path / "traces", documents()[:2] + [None] * 6)
    done = command("ingest", traces, "--out", tmp_path / "run", preexec_fn=full(2000))
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "File too large" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["traces"]


@pytest.mark.slow
def test_a_full_stdout_is_one_sentence(tmp_path):
    traces = write(tmp_path / "traces", documents())
    call = "from tracekit_cli.tracekit import main; import sys; sys.argv[0] = 'tracekit'; main()"
    with Path("/dev/full").open("w") as sink:
        done = subprocess.run(
            [sys.executable, "-c", call, "slowrank", str(traces), "--quiet"],
            stdout=sink,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "standard output cannot be written (No space left on device); redirect it" in done.stderr


@pytest.mark.parametrize("name", quick_first(2, ["/proc/a.json", "link.json", "folder", "none/a.json"]))
@pytest.mark.slow
def test_an_answer_that_cannot_be_written_is_told_first(tmp_path, name):
    (tmp_path / "link.json").symlink_to(tmp_path / "target")
    (tmp_path / "folder").mkdir()
    done = command("slowrank", tmp_path / "no traces here", "--json", tmp_path / name)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "cannot be written" in done.stderr
    assert not (tmp_path / "target").exists()


def test_a_folder_that_takes_nothing_is_told_first(tmp_path):
    for refused in (
        command("ingest", tmp_path / "no traces here", "--out", "/proc/run"),
        command("capture", "--out", "/proc/run", "--", "touch", tmp_path / "ran", program="numerics"),
    ):
        assert (refused.returncode, refused.stderr.count("\n")) == (3, 1)
        assert "/proc/run: cannot be written" in refused.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_a_device_is_written_to_and_not_replaced(tmp_path):
    traces = write(tmp_path / "traces", documents())
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE, text=True) as reader:
        done = command("slowrank", traces, "--json", tmp_path / "pipe")
        got, _ = reader.communicate(timeout=SECONDS)
    assert done.returncode == 0
    assert got.startswith("{")
    assert (tmp_path / "pipe").is_fifo()


def test_files_of_others_are_never_deleted(tmp_path):
    traces = write(tmp_path / "traces", documents()[:2] + [None] * 6)
    load([str(traces)], out=tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        load([str(traces)], out=tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with pytest.raises(InputError, match="symbolic link"):
        refuse_foreign(tmp_path / "link")


def test_a_run_that_nobody_holds_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        run = load([str(write(tmp_path / "traces", documents()[:2] + [None] * 6))])
        folder = run.folder
        assert folder.is_dir()
        del run
        assert not folder.exists()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_messages_of_ingest_carry_no_escape_codes(tmp_path):
    traces = write(tmp_path / "traces", documents()[:2] + [None] * 6)
    (traces / "rank9\x1b[2J.json").write_text("<html>")
    done = command("ingest", traces, "--out", tmp_path / "run")
    assert done.returncode == 0
    assert "rejected" in done.stderr
    assert "\x1b" not in done.stderr + done.stdout
