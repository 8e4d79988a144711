"""Records of calls that are refused, and what the refusals advise."""

from pathlib import Path

from tests.advice.register import case
from tests.evidence.inspector import calls, lines, write
from tracekit import load


def loaded(folder: Path) -> object:
    """The run in all files of a folder."""
    return load(sorted(folder.iterdir()))


@case("so that the records do not show the rank of each; give the files of all ranks")
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
