"""Records of calls that are refused, and what the refusals advise."""

import gzip
import json
from pathlib import Path

from tests.advice.register import case
from tests.evidence.inspector import calls, lines, write
from tests.evidence.nsys_files import tiny
from tracekit import load
from tracekit.files.source import Source
from tracekit.ingest.nsys import database, reader, survey


def loaded(folder: Path) -> object:
    """The run in all files of a folder."""
    return load(sorted(folder.iterdir()))


@case("no communicator gives all processes ranks of their own; give the files of all ranks")
def _(folder, _patch):
    made, alone = calls(5), folder / "alone"
    alone.mkdir()
    for rank in (2, 3):
        own = [call for call in made[rank] if call[0] == "tp"]
        (alone / f"{rank}.log").write_text(lines(rank, own) + lines(rank, [made[rank][-2]]))
    return lambda: loaded(alone), lambda: loaded(write(folder / "all"))


@case("rings dropped too many; set NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS lower")
def _(folder, _patch):
    seldom = write(folder / "seldom", slow=None, dropped=9)
    for number, path in enumerate(sorted(seldom.iterdir())):
        rows = path.read_text().splitlines()
        path.write_text("\n".join(row for at, row in enumerate(rows) if at % 8 != number) + "\n")
    return lambda: loaded(seldom), lambda: loaded(write(folder / "often", slow=None))


@case("the order of calls is lost; set NCCL_INSPECTOR_DUMP_VERBOSE=1")
def _(folder, _patch):
    for path in write(folder / "untimed", verbose=False).iterdir():
        rows = sorted(path.read_text().splitlines(), key=lambda row: json.loads(row)["header"]["id"])
        path.write_text("\n".join(rows))
    return lambda: loaded(folder / "untimed"), lambda: loaded(write(folder / "timed"))


@case("which SQLite cannot read; unpack it first")
def _(folder, _patch):
    path = tiny(folder / "plain") / "rank0.sqlite"
    (folder / "packed").mkdir()
    (folder / "packed" / "rank0.sqlite.gz").write_bytes(gzip.compress(path.read_bytes()))
    return lambda: loaded(folder / "packed"), lambda: loaded(folder / "plain")


@case("nothing shows which rank its processes are")
def _(folder, _patch):
    tiny(folder / "unnamed", "report1.sqlite")
    return lambda: loaded(folder / "unnamed"), lambda: loaded(tiny(folder / "named", "rank0.sqlite"))


@case("its name or environment says rank {}, and its communicator of {} says {}")
def _(folder, _patch):
    for name, rank, place in (("wrong", 0, 1), ("wrong", 1, 0), ("right", 0, 0), ("right", 1, 1)):
        tiny(folder / name, f"rank{rank}.sqlite", place=(place, 2))
    return lambda: loaded(folder / "wrong"), lambda: loaded(folder / "right")


@case("its name says rank {}, and its environment rank {}")
def _(folder, _patch):
    tiny(folder / "wrong", "rank2.sqlite", environment="RANK=0")
    return lambda: loaded(folder / "wrong"), lambda: loaded(
        tiny(folder / "right", "rank0.sqlite", environment="RANK=0")
    )


@case("give one capture of each rank of one job")
def _(folder, _patch):
    tiny(folder / "twice", "rank0.sqlite")
    tiny(folder / "twice", "rank0_again.sqlite")
    return lambda: loaded(folder / "twice"), lambda: loaded(tiny(folder / "once", "rank0.sqlite"))


@case("a database is read from a local disk only; copy it here first")
def _(folder, _patch):
    here = str(tiny(folder / "here") / "rank0.sqlite")
    return lambda: reader.opened(Source("s3://far/rank0.sqlite", "", 0)), lambda: reader.opened(
        Source(here, "", 0)
    )


@case("{} has more than {} rows; record fewer steps")
def _(folder, patch):
    patch.setattr(database, "MAX_ROWS", 20)
    many, few = tiny(folder / "many", kernels=40), tiny(folder / "few", kernels=2)
    return lambda: _surveyed(many), lambda: _surveyed(few)


@case("one process has more than {} NCCL calls; record fewer steps")
def _(folder, patch):
    patch.setattr(survey, "MAX_CALLS", 5)
    many, few = tiny(folder / "many", calls=9), tiny(folder / "few", calls=2)
    return lambda: _surveyed(many), lambda: _surveyed(few)


def _surveyed(folder: Path) -> object:
    return survey.survey(database.Database(str(folder / "rank0.sqlite"), 1), "")
