"""Every number on a command line and in TOML has bounds, and the refusal says them."""

import dataclasses
import importlib
import re
from typing import get_args, get_type_hints

import click
import pytest
from click.testing import CliRunner

from reftrain.config.file import from_tables
from reftrain.config.run import RunConfig
from reftrain.cost.hardware import load_hardware, parse_hardware
from reftrain.errors import ConfigError
from tests.fuzz.outcome import outcome
from tests.hostile.test_toml import H100
from tests.house.source import ROOT
from tests.wheel.extras import PROGRAMS

SAMPLE = str(ROOT / "sample_traces" / "slow_compute")
ABSURD = 10**30
RUN = ["--preset", "tiny", "--mesh", "dp=2"]
PLAN = ["--preset", "tiny", "--gpus", "4", "--quiet"]
TABLE = ["1f1b", "--stages", "2", "--micro-batches", "4"]
TEXTS = {
    "--mesh": f"tp={ABSURD}",
    "--to-mesh": f"tp={ABSURD}",
    "--steps": f"3:{ABSURD}",
    "--job": f"1,{ABSURD}",
    "--fix": f"rank={ABSURD}",
    "--fault": f"slow_compute:rank=0,factor=2,steps={ABSURD}",
    "--trace": f"0:{ABSURD}",
    "--tokens": str(ABSURD),
    "--seq": f"{ABSURD}G",
    "--cost": f"f={ABSURD}",
    "--ranks": f"0-{ABSURD}",
    "--model": f"parameters=8e9,tokens={ABSURD}",
    "--hardware": f"peak_tflops={ABSURD}",
    "--hosts": f"{ABSURD}.csv",
}
"""What an option whose text holds a number refuses; `SAME` are those whose digits are no quantity."""
SAME = {"--fail-on", "--preset", "--variant"}
MORE = {
    ("tracekit", "whatif", "--fix"): [SAMPLE, "--quiet"],
    ("tracekit", "diff", "--job"): [SAMPLE, SAMPLE, "--quiet"],
    ("reftrain", "run", "--fault"): [*RUN, "--dry-run"],
    ("reftrain", "run", "--trace"): [*RUN, "--dry-run"],
    ("reftrain", "run", "--mesh"): ["--dry-run"],
    ("reftrain", "simulate", "--fault"): RUN,
    ("reftrain", "simulate", "--ranks"): RUN,
    ("reftrain", "plan", "--tokens"): [*PLAN, "--seq", "256"],
    ("reftrain", "plan", "--seq"): [*PLAN, "--tokens", "4K"],
    ("reftrain", "schedule", "--cost"): TABLE,
}
"""What a command needs beside the option to come to its number."""


def options():
    """(program, command, its options) of every command."""
    for program in PROGRAMS:
        group = getattr(importlib.import_module(f"tracekit_cli.{program}"), program)
        for name, entry in group.entries.items():
            command = entry.load()
            yield from ((program, name, command, p) for p in command.params if isinstance(p, click.Option))


NUMBERS = (click.types.IntParamType, click.types.FloatParamType)
TOLD = [
    (program, name, option.opts[0])
    for program, name, _, option in options()
    if isinstance(option.type, click.types.StringParamType)
    and re.search(r"\d", f"{option.metavar} {option.help}")
    and option.opts[0] not in SAME
]


def test_no_number_of_a_command_is_without_bounds():
    bare = [
        (program, name, option.opts[0])
        for program, name, _, option in options()
        if isinstance(option.type, NUMBERS)
        and (getattr(option.type, "min", None) is None or getattr(option.type, "max", None) is None)
    ]
    assert bare == []


@pytest.mark.quick(20)
@pytest.mark.parametrize(("program", "name", "option"), TOLD)
def test_absurd_numbers_in_texts_are_refused(program, name, option, tmp_path):
    """A text with a number that is not known here fails: give it bounds, and an entry in TEXTS."""
    command = getattr(importlib.import_module(f"tracekit_cli.{program}"), program).entries[name].load()
    arguments = [option, TEXTS[option], *MORE.get((program, name, option), [])]
    needed = sum(isinstance(p, click.Argument) and p.required for p in command.params)
    if (program, name, option) not in MORE:
        arguments += [str(tmp_path / "nowhere")] * needed
    end, said = outcome(command, arguments, tmp_path)
    assert end in {"refused", "nameless"}, said
    assert "nowhere" not in said
    assert len(said) < 400


@pytest.mark.parametrize("text", ["9" * 5000, "²", "-1", "1e9", "nan"])
def test_texts_that_are_no_counts_are_refused(text):
    for arguments in (["--tokens", text, "--seq", "256"], ["--tokens", "4K", "--seq", text]):
        with pytest.raises(ConfigError, match="is not a count"):
            run_of("plan", [*PLAN, *arguments])
    with pytest.raises(ConfigError, match="is not a step or range"):
        run_of("run", [*RUN, "--dry-run", "--trace", text])


def run_of(name, arguments):
    reftrain = importlib.import_module("tracekit_cli.reftrain").reftrain
    CliRunner().invoke(reftrain.entries[name].load(), arguments, catch_exceptions=False)


def numbers():
    """(table, field, least, most, a value as written of it) of every number of a configuration."""
    for table, kind in {**get_type_hints(RunConfig), "run": RunConfig}.items():
        for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
            hint = get_type_hints(kind)[field.name]
            inner = get_args(hint)[0] if get_args(hint) else hint
            if inner in {int, float}:
                yield table, field, (lambda v: [v]) if get_args(hint) else (lambda v: v), inner


def test_every_number_of_a_configuration_says_its_bounds():
    seen = 0
    for table, field, written, kind in numbers():
        assert "least" in field.metadata, f"{table}.{field.name}"
        for value in (field.metadata["least"] - 1, field.metadata["most"] * 2 + 1):
            with pytest.raises(ConfigError, match=r"give (.* to |a number below )|no ZeRO stage"):
                from_tables({table: {field.name: written(kind(value))}})
            seen += 1
    assert seen > 60


@pytest.mark.parametrize("value", [-1.0, 1e13])
def test_every_number_of_a_machine_says_its_bounds(value):
    for name in load_hardware("h100").constants():
        table, _, field = name.partition(".")
        text = re.sub(rf"(\[{table}\][^\[]*?\n{field} = )[^\s#]+", rf"\g<1>{value}", H100, count=1)
        if text != H100:
            with pytest.raises(ConfigError, match="give 0"):
                parse_hardware(text, "x")
