"""Every command and every mistake: wrong numbers, words, files and options end in a refusal, never in a fault."""

import os

import click
import pytest

from tests.house.source import ROOT
from tests.numerics.synthetic import Plan, write
from tests.wheel.extras import PROGRAMS, commands, ends, entry

SLOW, HUNG = (str(ROOT / "sample_traces" / name) for name in ("slow_compute", "hang_host_stall"))
SIZES = ("--preset", "tiny", "--gpus", "4", "--tokens", "4K", "--seq", "256", "--quiet")
NUMBERS = ("nan", "1e308", "-1e300", "9" * 400, "x", "", "0x10", "1_0;", "\uff11e")
WORDS = ("", "=,=:", "\x1b[31m", "9" * 5000, "no_such_name")
SHARE = 300
"""One mistake in so many is made by default."""
REFUSALS = {1, 2, 3}
WAITS = {"tracekit open", "reftrain demo", "reftrain calibrate", "reftrain reproduce"}
"""Commands that do long work where a word is taken; their numbers are tried all the same."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two captures, and everything that is no input."""
    folder = tmp_path_factory.mktemp("mistakes")
    for name, tp in (("a", 2), ("b", 1)):
        write(folder / name, Plan(tp=tp, micro_batches=1, steps=1, level="digest"))
    os.mkfifo(folder / "pipe.json")
    (folder / "zero.json").symlink_to("/dev/zero")
    (folder / "noise.json").write_bytes(bytes(range(256)) * 16)
    (folder / "none.json").write_bytes(b"")
    (folder / "folder").mkdir()
    return folder


def bases(place):
    """Words of a call of each command that would be answered."""
    runs = ("--parallel", f"{place}/a", "--baseline", f"{place}/b")
    mesh = ("--preset", "tiny", "--mesh", "dp=2")
    given = {
        "tracekit diff": (SLOW, SLOW), "tracekit hang": (HUNG,), "tracekit triage": (HUNG,),
        "tracekit ingest": (SLOW, "--out", f"{place}/folder/run"), "tracekit doctor": (),
        "tracekit schema": ("slowrank",), "tracekit open": (SLOW, "--no-browser"),
        "numerics compare": runs, "numerics ladder": runs, "numerics advise": (f"{place}/a",),
        "numerics schema": ("compare",), "numerics replay": (f"{place}/a",),
        "numerics plan": (f"{place}/a", f"{place}/b"), "numerics bisect": (), "numerics capture": (),
        "reftrain run": (*mesh, "--dry-run", "--out", f"{place}/folder/run"), "reftrain plan": SIZES,
        "reftrain memory": mesh, "reftrain simulate": (*mesh, "--quiet"), "reftrain schema": ("plan",),
        "reftrain schedule": ("1f1b", "--stages", "2", "--micro-batches", "4"),
    }  # fmt: skip
    called = [f"{program} {name}" for program in PROGRAMS for name in commands(program)]
    tracing = [name for name in called if name.startswith("tracekit") and name not in given]
    return {name: given.get(name, (SLOW,) if name in tracing else ()) for name in called}


def mistaken(name, base, place):
    """(kind of mistake, words) of each mistake in the call of a command."""
    words = [*name.split(), *base]
    yield "option", [*words, "--no-such-option"]
    files = [
        str(place / f) for f in ("nowhere", "pipe.json", "zero.json", "noise.json", "none.json", "folder")
    ]
    for parameter in entry(*name.split()).params:
        if not isinstance(parameter, click.Option):
            yield from (("file", [*name.split(), file]) for file in files)
            continue
        if parameter.is_flag or parameter.count or parameter.name == "help":
            continue
        option = max(parameter.opts, key=len)
        yield "no value", [*words, option]
        if isinstance(parameter.type, click.types.IntParamType | click.types.FloatParamType):
            yield from (("number", [*words, option, value]) for value in NUMBERS)
        elif isinstance(parameter.type, click.Choice):
            yield from (("choice", [*words, option, value]) for value in WORDS)
        elif name not in WAITS:
            output = {"--out", "--json", "--html", "--markdown", "--perfetto", "--prometheus"}
            values = files if "file" in option or option == "--hardware" else WORDS[:3]
            yield from (("word", [*words, option, value]) for value in values if option not in output)


def judged(mistakes, place):
    """Calls that end otherwise than a refusal does."""
    wrong = []
    for (kind, words), (code, err, _) in zip(
        mistakes, ends((), [w for _, w in mistakes], cwd=place), strict=True
    ):
        accepted = code == 0 and kind in {"word", "file"}
        refused = code in REFUSALS and err.strip() and err.count("\n") < 30 and len(err) < 8000
        polite = "Traceback" not in err and "fault of ours" not in err and "Warning" not in err
        if not (accepted or refused) or not polite or "\x1b" in err:
            wrong.append((kind, [w[:40] for w in words], code, err[:300]))
    return wrong


def every(place, kinds):
    return [m for name, base in bases(place).items() for m in mistaken(name, base, place) if m[0] in kinds]


def test_wrong_numbers_and_options_are_refused(place):
    some = every(place, {"number", "option", "choice", "no value"})
    assert judged(some[::SHARE], place) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["number", "option", "choice", "no value", "file", "word"])
def test_every_mistake_of_every_command_is_refused(place, kind):
    assert judged(every(place, {kind}), place) == []
