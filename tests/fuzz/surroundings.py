"""What surrounds a command, damaged: its standard streams, devices in place of files, numbers, compressed files."""

import gzip
import importlib
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryFile

import click
import zstandard
from tracekit_cli.reftrain_commands.plan import memory
from tracekit_cli.tracekit_commands.slowrank import slowrank

from tests.cli.streams import FLUSH_FAILED, STATES, _child
from tests.fuzz.mutate import BOUNDS
from tests.fuzz.outcome import DOCUMENTED
from tests.fuzz.readers import Damage, Input, kept
from tests.wheel.extras import PROGRAMS

NUMBERS = (click.types.IntParamType, click.types.FloatParamType)
ABSURD = (*BOUNDS, "nan", "inf", "-inf", "1e308", "-1e-308", "9" * 5000, "²", "", "1_0", "0x10", "1e9", " 3")
TEXTS = (
    "tp={0}", "tp={0},dp={0}", "{0}:{0}", "3:{0}", "{0},2", "rank={0}", "stage={0},axis=tp",
    "slow_compute:rank=0,factor={0}",
    "slow_compute:rank={0},steps={0}:", "pauses:rank=0,ms={0}", "f={0},b=1/{0}", "{0}K", "{0}-{0}", "{0}",
)  # fmt: skip
"""Texts that hold numbers, as options of any command take them."""
SLOW = {("tracekit", "open"), ("reftrain", "demo"), ("reftrain", "calibrate"), ("numerics", "bisect")}
"""Commands that serve, train or start others where nothing refuses them."""


@cache
def _commands() -> tuple[tuple[str, str, click.Command], ...]:
    """(program, name, command) of every command that ends by itself."""

    def found() -> Iterator[tuple[str, str, click.Command]]:
        for program in PROGRAMS:
            group = getattr(importlib.import_module(f"tracekit_cli.{program}"), program)
            yield from ((program, name, entry.load()) for name, entry in group.entries.items())

    return tuple(c for c in found() if c[:2] not in SLOW)


def _files(command: click.Command, rng: Random, folder: Path) -> list[str]:
    """A thing that is no such file for each argument of a command: a pipe, a device, a folder, or nothing."""
    given = []
    for number, argument in enumerate(p for p in command.params if isinstance(p, click.Argument)):
        path = folder / f"given{number}{rng.choice(('', '.toml', '.csv', '.json', '.json.gz'))}"
        kind = rng.choice(("pipe", "/dev/zero", "/dev/full", "/dev/null", "folder", "nothing"))
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind != "nothing":
            path.symlink_to(kind)
        given.append(str(path))
        del argument
    return given


def devices(rng: Random, folder: Path) -> Input:
    """Any command on pipes, devices and folders in place of files, of folders' manifests, and of its outputs."""
    program, name, command = rng.choice(_commands())
    arguments = _files(command, rng, folder)
    paths = [p for p in command.params if isinstance(p, click.Option) and isinstance(p.type, click.Path)]
    for option in rng.sample(paths, min(len(paths), rng.choice((0, 1, 2)))):
        arguments += [
            option.opts[0],
            str(rng.choice((folder, "/dev/zero", "/dev/null", folder / "no" / "where"))),
        ]
    if (program, name) == ("reftrain", "run"):
        arguments.append("--dry-run")
    return Input(command, arguments, unnamed=True)


def numbers(rng: Random, folder: Path) -> Input:
    """Any command with absurd numbers in its options."""
    program, name, command = rng.choice(_commands())
    run = str(kept()) if program == "tracekit" else str(folder / "run")
    arguments = [run for p in command.params if isinstance(p, click.Argument)]
    told = [
        p
        for p in command.params
        if isinstance(p, click.Option) and isinstance(p.type, (*NUMBERS, click.types.StringParamType))
    ]
    for option in rng.sample(told, min(len(told), rng.choice((1, 1, 2, 4)))):
        value = str(rng.choice(ABSURD))[:5000]
        if not isinstance(option.type, NUMBERS):
            value = rng.choice(TEXTS).format(value)
        if option.opts[0] not in {"--json", "--markdown", "--html", "--prometheus", "--perfetto", "--out"}:
            arguments += [option.opts[0], value]
    if (program, name) == ("reftrain", "run"):
        arguments.append("--dry-run")
    return Input(command, arguments, unnamed=True)


EVENT = b'{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": %d.0, "dur": 5.0},'


def ratios(rng: Random, folder: Path) -> Input:
    """A compressed trace of equal events: of any ratio, now and then in several members, or cut."""
    block = b"".join(EVENT % (1000 + n % rng.choice((1, 7, 4096))) for n in range(4096))
    many = rng.choice((1, 5, 40))
    path = folder / rng.choice(("rank0.json.gz", "rank0.json.zst"))
    head = b'{"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": ['
    pack = gzip.compress if path.suffix == ".gz" else zstandard.ZstdCompressor().compress
    data = b"".join(pack(part) for part in (head, block * many, block[:-1] + b"]}"))
    path.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.1 else data)
    return Input(slowrank, [str(path), "--quiet", "--json", "-"])


def streams(rng: Random, folder: Path) -> Input:
    """Any command on a good run or none, in a process whose standard streams are closed, full or left."""
    program, name, command = rng.choice(_commands())
    words = [program, name, *(str(kept()) for p in command.params if isinstance(p, click.Argument))]
    if (program, name) == ("reftrain", "run"):
        words.append("--dry-run")
    if rng.random() < 0.3:
        words = [program, name, "--help"]
    stream, how = rng.choice(STATES)
    del folder
    return Input(_in_state(words, stream, how), [], unnamed=True)


def _in_state(words: list[str], stream: str, how: str) -> click.Command:
    """A command that runs another one in a fork whose stream is in a state, and fails where that ends in a fault."""

    @click.command()
    def forked() -> int:
        with TemporaryFile() as err:
            child = os.fork()
            if not child:
                _child(words, stream, how, err.fileno())
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            err.seek(0)
            said = err.read().decode(errors="replace")
        if code not in DOCUMENTED or code == FLUSH_FAILED or "Traceback" in said:
            raise RuntimeError(f"{' '.join(words)} with {stream} {how}: exit {code}, {said[-500:]}")
        return code

    return forked


def settings(rng: Random, folder: Path) -> Input:
    """`reftrain memory` of a configuration with absurd numbers, or of a device."""
    path = folder / "config.toml"
    field = rng.choice(
        ("model.layers", "model.dim", "mesh.tp", "mesh.pp", "data.seq_len", "pipeline.virtual_stages")
    )
    table, _, name = field.partition(".")
    path.write_text(f"[{table}]\n{name} = {rng.choice(ABSURD)}\n")
    return Input(memory, [str(path), "--json", "-"])


SURROUNDINGS: Mapping[str, Damage] = {
    "devices": devices, "numbers": numbers, "ratios": ratios, "streams": streams, "TOML of memory": settings,
}  # fmt: skip
