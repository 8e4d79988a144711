"""Commands in installations that lack extras: their packages are hidden from Python, one process for each set of them.

`python -P extras.py` reads [SETS, CALLS] and runs every call of CALLS, a list of lists of words, while the modules of
each set of SETS cannot be imported, and prints for each set how each call ended: exit code, stderr, and modules of
extras that were imported. The first word of a call is a program; where it begins with `_`, the rest are to be
completed. Several sets are tried in forks of one process, which has loaded what every installation holds.
"""

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile

MODULES = {
    "train": ("torch",),
    "fast": ("numba", "llvmlite"),
    "report": ("jinja2",),
    "ray": ("ray",),
    "prometheus": ("prometheus_client",),
    "perfetto": ("perfetto",),
}
"""What each extra lets a command import."""
SHARED = ("click", "fsspec", "msgspec", "numpy", "pyarrow.parquet", "rich.console", "scipy.stats")
LONGEST_S = 1800
PROGRAMS = ("tracekit", "numerics", "reftrain")


class _Hidden:
    """A finder of modules that does not see some of them."""

    def __init__(self, finder, names):
        self._finder, self._names = finder, names

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in self._names else self._finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self._finder, name)


def commands(program):
    """Names of a program's commands."""
    module = importlib.import_module(f"tracekit_cli.{program}")
    return sorted(getattr(module, program).entries)


def entry(program, name):
    """A command of a program, loaded."""
    module = importlib.import_module(f"tracekit_cli.{program}")
    return getattr(module, program).entries[name].load()


def helps():
    """Calls that every installation answers: `--version`, `--help` of all commands, and completion of their options."""
    calls = []
    for program in PROGRAMS:
        calls += [[program, "--version"], [program, "--help"], [f"_{program}", ""]]
        for name in commands(program):
            calls += [[program, name, "--help"], [f"_{program}", name, "--"]]
    return calls


def uses(sample, capture, folder):
    """(extra that it needs, or None; call) of every command that can say something of small input."""
    mesh = ("--preset", "tiny", "--mesh", "tp=2,dp=2")
    traces = ("slowrank", str(sample), "--quiet")
    runs = ("--parallel", str(capture / "a"), "--baseline", str(capture / "b"))
    schedule = ("schedule", "1f1b", "--stages", "2", "--micro-batches", "4")
    sizes = ("--preset", "tiny", "--gpus", "4", "--tokens", "4K", "--seq", "256", "--quiet")
    return [
        (None, ["reftrain", "plan", *sizes]),
        (None, ["reftrain", "memory", *mesh]),
        (None, ["reftrain", *schedule]),
        (None, ["reftrain", "simulate", *mesh, "--quiet", "--out", str(folder / "simulated")]),
        (None, ["reftrain", "schema", "plan"]),
        (None, ["numerics", "schema", "compare"]),
        (None, ["numerics", "compare", *runs]),
        (None, ["numerics", "advise", str(capture / "a")]),
        (None, ["tracekit", "doctor"]),
        ("train", ["numerics", "compare", *runs, "--model", "model.py:model"]),
        ("train", ["reftrain", "faults"]),
        ("train", ["reftrain", "run", "--preset", "tiny", "--dry-run", "--out", str(folder / "run")]),
        ("train", ["reftrain", "demo", "--out", str(folder / "demo")]),
        ("train", ["reftrain", "calibrate"]),
        ("report", ["tracekit", *traces, "--html", str(folder / "page.html")]),
        ("report", ["numerics", "compare", *runs, "--html", str(folder / "compare.html")]),
        ("prometheus", ["tracekit", *traces, "--prometheus", str(folder / "metrics.prom")]),
        ("perfetto", ["tracekit", *traces, "--perfetto", str(folder / "trace.pftrace")]),
        ("perfetto", ["tracekit", "open", str(sample), "--no-browser", "--quiet"]),
        ("ray", ["tracekit", *traces, "--engine", "ray", "--address", "127.0.0.1:1"]),
    ]


def ends(missing, calls, python=(sys.executable, "-P"), **settings):
    """How each call ends where the extras `missing` are not installed: (exit code, stderr, modules imported)."""
    return ends_of_each([missing], calls, python, **settings)[0]


def ends_of_each(sets, calls, python=(sys.executable, "-P"), **settings):
    """What `ends` returns, for each set of missing extras."""
    names = [[name for extra in missing for name in MODULES[extra]] for missing in sets]
    command = [*map(str, python), __file__]
    given = json.dumps([names, calls])  # longer than an argument may be
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, timeout=LONGEST_S, **settings
    )
    assert done.returncode == 0, done.stderr
    return [[(code, err, set(held)) for code, err, held in found] for found in json.loads(done.stdout)]


def _called(words):
    """Run a call in this process; returns (exit code, stderr)."""
    program = words[0].removeprefix("_")
    sys.argv = [program, *words[1:]]
    completion = f"_{program}_COMPLETE".upper()
    os.environ.pop(completion, None)
    if words[0].startswith("_"):
        given = {completion: "bash_complete", "COMP_WORDS": " ".join(sys.argv)}
        os.environ |= {**given, "COMP_CWORD": str(len(words) - 1)}
        sys.argv = [program]
    err, code = io.StringIO(), None
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())), contextlib.redirect_stderr(err):
        try:
            importlib.import_module(f"tracekit_cli.{program}").main()
        except SystemExit as left:
            code = int(left.code or 0)
    return code, err.getvalue()


def _tried(hidden, calls):
    """How each call ends in this process without some modules."""
    sys.meta_path[:] = [_Hidden(finder, frozenset(hidden)) for finder in sys.meta_path]
    known = {name for names in MODULES.values() for name in names}
    return [(*_called(words), sorted(known & set(sys.modules))) for words in calls]


def _tried_in_fork(hidden, calls):
    """How each call ends in a fork of this process without some modules."""
    with tempfile.TemporaryFile("w+") as answer:
        child = os.fork()
        if not child:
            json.dump(_tried(hidden, calls), answer)
            answer.flush()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, hidden
        answer.seek(0)
        return json.load(answer)


def main():
    sets, calls = json.load(sys.stdin)
    if len(sets) == 1:
        print(json.dumps([_tried(sets[0], calls)]))
        return
    for name in SHARED:
        importlib.import_module(name)
    print(json.dumps([_tried_in_fork(hidden, calls) for hidden in sets]))


if __name__ == "__main__":
    main()
