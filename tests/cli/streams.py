"""Commands with standard streams that are closed, full, or without a reader: each in a fork of one process.

`python -P streams.py CALLS` prints, for each call and each state of its streams, the exit code and stderr (where the
state leaves it). A call is a list of words, the first of them a program.
"""

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile

CLOSED, FULL, LEFT = "closed", "full", "left"
STREAMS = {"stdin": 0, "stdout": 1, "stderr": 2}
STATES = [("stdin", CLOSED), *((s, how) for s in ("stdout", "stderr") for how in (CLOSED, FULL, LEFT))]
FLUSH_FAILED = 120
"""What Python exits with where stdout cannot be flushed at its end."""


def ends(calls, **settings):
    """(exit code, stderr) by call and state."""
    command = [sys.executable, "-P", __file__, json.dumps(calls)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _put(number, how):
    """Bring a stream into a state, as a shell would before the program starts."""
    if how == CLOSED:
        os.close(number)
    elif how == FULL:
        os.dup2(os.open("/dev/full", os.O_WRONLY), number)
    else:
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, number)


def _opened(number):
    """What Python makes of a stream at its start."""
    try:
        os.fstat(number)
    except OSError:
        return None
    return io.TextIOWrapper(io.BufferedWriter(io.FileIO(number, "w", closefd=False)), "utf-8")


def _child(words, stream, how, err):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(err, 2)
    _put(STREAMS[stream], how)
    sys.stdout = sys.__stdout__ = _opened(1)
    sys.stderr = sys.__stderr__ = _opened(2)
    sys.argv = list(words)
    code = 0
    try:
        importlib.import_module(f"tracekit_cli.{words[0]}").main()
    except SystemExit as left:
        code = int(left.code or 0)
    except BaseException:  # noqa: BLE001 - what escapes is what is looked for
        code = -1
    try:
        sys.stdout.flush()
    except Exception:  # noqa: BLE001
        code = FLUSH_FAILED
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(code & 0xFF)


def main():
    found = []
    for words in json.loads(sys.argv[1]):
        program = importlib.import_module(f"tracekit_cli.{words[0]}")
        with contextlib.suppress(KeyError):
            getattr(program, words[0]).entries[words[1]].load()
        for stream, how in STATES:
            with tempfile.TemporaryFile() as err:
                child = os.fork()
                if not child:
                    _child(words, stream, how, err.fileno())
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                err.seek(0)
                found.append((words, stream, how, code, err.read().decode()))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
