"""Commands in installations that lack extras: their packages are hidden from Python, one process for each set of them.

`python -P extras.py MODULES CALLS` runs every call of CALLS, a JSON list of lists of words, while MODULES
cannot be imported, and prints how each ended: exit code, stderr, and modules of extras that were imported. The first
word of a call is a program; where it begins with `_`, the rest of the words are to be completed.
"""

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys

MODULES = {
    "train": ("torch",),
    "fast": ("numba", "llvmlite"),
    "report": ("jinja2",),
    "ray": ("ray",),
    "prometheus": ("prometheus_client",),
    "perfetto": ("perfetto",),
}
"""What each extra lets a command import."""
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
    names = ",".join(name for extra in missing for name in MODULES[extra])
    command = [*map(str, python), __file__, names, json.dumps(calls)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **settings)
    assert done.returncode == 0, done.stderr
    return [(code, err, set(modules)) for code, err, modules in json.loads(done.stdout)]


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


def main():
    hidden = frozenset(filter(None, sys.argv[1].split(",")))
    calls = json.loads(sys.argv[2])
    sys.meta_path[:] = [_Hidden(finder, hidden) for finder in sys.meta_path]
    known = {name for names in MODULES.values() for name in names}
    print(json.dumps([(*_called(words), sorted(known & set(sys.modules))) for words in calls]))


if __name__ == "__main__":
    main()
