"""The plain vote that people do by hand: whose communication is shortest in total is the one the others wait for."""

import gzip
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.localise.spread import stands_out

COMMUNICATION = ("nccl", "rccl")


def load(path: Path) -> dict:
    """A trace as JSON."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def vote(folder: Path) -> int | None:
    """The suspect, or None where nobody stands out.

    Per name of kernel, each rank's times are summed; a rank's deficit against the median of all ranks is its score. A
    rank whose score stands out of the others' is the suspect.
    """
    totals: dict[str, dict[int, float]] = defaultdict(dict)
    for path in sorted(folder.rglob("*.json*")):
        trace = load(path)
        rank = trace["distributedInfo"]["rank"] if "distributedInfo" in trace else named(path)
        sums: dict[str, float] = defaultdict(float)
        for event in trace["traceEvents"]:
            if event.get("cat") == "kernel" and event["name"].startswith(COMMUNICATION):
                sums[event["name"].split("(")[0]] += event["dur"]
        for name, total in sums.items():
            totals[name][rank] = totals[name].get(rank, 0.0) + total
    return shortest(totals.values())


def named(path: Path) -> int:
    """The rank in a file's name."""
    return int(path.name.split(".")[0].removeprefix("rank"))


def shortest(totals: Iterable[dict[int, float]]) -> int | None:
    """The rank with the largest deficit over all names, if it stands out."""
    deficits: dict[int, float] = defaultdict(float)
    for sums in totals:
        middle = statistics.median(sums.values())
        for rank, total in sums.items():
            deficits[rank] += middle - total
    return stands_out(deficits)
