"""What `tracekit triage` reads beside dumps and traces, damaged: logs, RAS answers, stacks, archives of them."""

import io
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tracekit_cli.tracekit_commands.slowrank import slowrank
from tracekit_cli.tracekit_commands.triage import triage

from tests.evidence.inspector import WORLD, calls, lines
from tests.evidence.nccl_lines import VERSIONS as NCCL_VERSIONS
from tests.evidence.nccl_lines import one_log
from tests.evidence.nsys_files import tiny
from tests.evidence.other_channels import faulthandler, gdb, py_spy, pystack, ras_json, ras_text
from tests.evidence.stuck_job import RankState, states
from tests.evidence.test_counters import NODE, SMI
from tests.evidence.watchdog import LAUNCHERS, VERSIONS, Spelling, log
from tests.fuzz.mutate import damaged
from tests.fuzz.readers import Damage, Input
from tests.hang.simulate import make

CODES = (
    "\x1b[2J",
    "\x1b]0;owned\x07",
    "\x9b31m",
    "\r",
    "\x08" * 9,
    "\u202e",
    "\0",
    "\ud7ff",
    "[rank99999999]:",
    "[rank0]:",
)
NUMBERS = ("0", "-1", "99999999999999999999999", "4294967296", "9223372036854775807", "", "1e9")


@cache
def _job(seed: int) -> Mapping[int, RankState]:
    """What the ranks of a small stuck job know."""
    with TemporaryDirectory() as folder:
        case = make(seed, sizes={"tp": 2, "cp": 1, "pp": 1, "dp": 2})
        return states(case.write(Path(folder) / "fr"))


def in_lines(text: str, rng: Random) -> str:
    """Drop, repeat, move, join and cut lines; put control codes and absurd numbers into them."""
    lines = text.split("\n")
    for _ in range(rng.randrange(1, 12)):
        at = rng.randrange(len(lines))
        kind = rng.randrange(7)
        if kind == 0:
            del lines[at : at + rng.randrange(1, 9)]
            lines = lines or [""]
        elif kind == 1:
            lines[at:at] = lines[at : at + 3] * rng.randrange(1, 5)
        elif kind == 2:
            lines[at : at + 2] = ["".join(lines[at : at + 2])]
        elif kind == 3:
            lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
        elif kind == 4:
            place = rng.randrange(len(lines[at]) + 1)
            lines[at] = lines[at][:place] + rng.choice(CODES) + lines[at][place:]
        elif kind == 5:
            digits = [n for n, c in enumerate(lines[at]) if c.isdigit()]
            if digits:
                place = rng.choice(digits)
                lines[at] = lines[at][:place] + rng.choice(NUMBERS) + lines[at][place + 1 :]
        else:
            rng.shuffle(lines)
    return "\n".join(lines)


def _spoilt(text: str, rng: Random) -> bytes:
    """Damage lines, bytes, or both."""
    data = in_lines(text, rng) if rng.random() < 0.8 else text
    encoded = data.encode("utf-8", "surrogatepass")
    return damaged(encoded, rng) if rng.random() < 0.4 else encoded


def _log(rng: Random) -> bytes:
    colours, desync = rng.random() < 0.2, rng.random() < 0.3
    spelling = Spelling(rng.choice(VERSIONS), rng.choice(LAUNCHERS), colours, desync)
    return _spoilt(log(_job(rng.randrange(6)), spelling, seed=rng.randrange(9)), rng)


@cache
def _lines_of_calls(seed: int, version: str, launcher: str) -> str:
    """NCCL's lines of the calls of a small stuck job."""
    with TemporaryDirectory() as folder:
        case = make(seed, sizes={"tp": 2, "cp": 1, "pp": 2, "dp": 2})
        return one_log(case.write(Path(folder) / "fr"), version, launcher, seed)


def _calls_in_log(rng: Random) -> bytes:
    """NCCL's lines of calls, behind them or alone what the watchdog says of the same job or of another."""
    seed = rng.randrange(6)
    text = _lines_of_calls(seed, rng.choice(NCCL_VERSIONS), rng.choice(("bare", "torchrun", "srun")))
    if rng.random() < 0.5:
        text += log(_job(rng.choice((seed, 7))), Spelling(rng.choice(VERSIONS), desync=rng.random() < 0.3))
    return _spoilt(text, rng)


def _ras(rng: Random) -> bytes:
    return _spoilt(rng.choice((ras_json, ras_text))(_job(rng.randrange(6))), rng)


def _stacks(rng: Random) -> bytes:
    job = _job(rng.randrange(6))
    stands = ("collective", "device", "elsewhere")
    parts = [rng.choice((py_spy, faulthandler, pystack, gdb))(s, rng.choice(stands)) for s in job.values()]
    return _spoilt("\n".join(f"rank {rank}\n{part}" for rank, part in enumerate(parts)), rng)


@cache
def _calls() -> Mapping[int, list[tuple[str, str, int, int, float, float]]]:
    """The calls of a small job that NCCL's Inspector recorded."""
    return calls(5, steps=4)


def _inspector(rng: Random) -> bytes:
    rank = rng.randrange(WORLD)
    return _spoilt(lines(rank, _calls()[rank], verbose=rng.random() < 0.5), rng)


def _counters(rng: Random) -> bytes:
    return _spoilt(rng.choice((SMI, NODE.format(14, 1e7))), rng)


@cache
def _exported(number: int) -> bytes:
    """A small database that nsys would have exported, of one of two ranks."""
    with TemporaryDirectory() as folder:
        made = tiny(Path(folder), kernels=40, place=(number, 2), environment=f"RANK={number}")
        return (made / "rank0.sqlite").read_bytes()


STRANGE = (
    "NULL",
    "-1",
    "9223372036854775807",
    "-9223372036854775808",
    "1e300",
    "x'ff00'",
    "'\x1b[2J'",
    "'a'",
    "zeroblob(99)",
)
"""Values in SQL that a column of another type may hold."""


def _rewritten(data: bytes, rng: Random) -> bytes:
    """Put strange values, other tables and views into a database."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(data)
        with closing(sqlite3.connect(path)) as base:
            tables = [row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for _ in range(rng.randrange(1, 6)):
                table = rng.choice(tables)
                column = rng.choice([row[1] for row in base.execute(f"PRAGMA table_info({table})")])
                change = rng.choice((
                    f"UPDATE {table} SET {column} = {rng.choice(STRANGE)} WHERE random() % {rng.randrange(1, 5)} = 0",
                    f"ALTER TABLE {table} RENAME COLUMN {column} TO c{rng.randrange(9)}",
                    f"CREATE VIEW v{rng.randrange(9)} AS SELECT * FROM {table}",
                    f"INSERT INTO {table} SELECT * FROM {table}",
                    f"DELETE FROM {table}",
                ))  # fmt: skip
                with suppress(sqlite3.Error):
                    base.execute(change)
            base.commit()
        return path.read_bytes()


def _nsys(rng: Random, folder: Path) -> Input:
    """Databases of two ranks, one of them damaged or with values that nsys never writes."""
    data = _exported(0)
    data = _rewritten(data, rng) if rng.random() < 0.6 else damaged(data, rng)
    (folder / "rank0.sqlite").write_bytes(data)
    if rng.random() < 0.5:
        (folder / "rank1.sqlite").write_bytes(_exported(1))
    if rng.random() < 0.5:
        return Input(triage, [str(folder), "--quiet"], harmless)
    return Input(slowrank, [str(folder), "--quiet"], harmless)


KINDS: Mapping[str, Callable[[Random], bytes]] = {
    "log": _log,
    "log of calls": _calls_in_log,
    "RAS answer": _ras,
    "stacks": _stacks,
    "Inspector": _inspector,
    "counters": _counters,
}


def harmless(text: str) -> str:
    """Return what is wrong with an answer: a control code in it."""
    codes = [c for c in text if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160]
    return f"control codes {codes[:3]!r}" if codes else ""


def _reader(kind: str) -> Damage:
    def make_input(rng: Random, folder: Path) -> Input:
        for number in range(rng.randrange(1, 4)):
            (folder / f"f{number}").write_bytes(KINDS[kind](rng))
        return Input(triage, [str(folder), "--quiet"], harmless)

    return make_input


def _archive(rng: Random, folder: Path) -> Input:
    """An archive of evidence, damaged or with names that lead elsewhere."""
    names = ["a.log", "b/ras", "../up", "/abs", "x" * 300, "c\x1b[2J", "", "."]
    chosen = rng.sample(names, rng.randrange(1, 4))
    parts = [(name, rng.choice(list(KINDS.values()))(rng)) for name in chosen]
    buffer = io.BytesIO()
    if rng.random() < 0.5:
        with zipfile.ZipFile(buffer, "w") as packed:
            for name, data in parts:
                packed.writestr(name or "e", data)
    else:
        with tarfile.open(fileobj=buffer, mode=rng.choice(("w", "w:gz"))) as archive:
            for name, data in parts:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    data = buffer.getvalue()
    (folder / "incident.tgz").write_bytes(damaged(data, rng) if rng.random() < 0.6 else data)
    return Input(triage, [str(folder / "incident.tgz"), "--quiet"], harmless)


EVIDENCE: dict[str, Damage] = {**{kind: _reader(kind) for kind in KINDS}, "archive": _archive, "nsys": _nsys}
"""By name, how a damaged input is made."""
