"""Real hangs of four ranks on Gloo, shown in part: dumps missing or cut, stacks or logs alone.

`python -m tests.hang.partial --out FOLDER [--kinds loader,raises]` runs each kind once and prints what `hang` says of
each view: right, open with the guilty rank among the candidates (`open +`), open, or an innocent named.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.hang.partial_job import GUILTY, WORLD
from tests.ranks.patience import patience
from tracekit.analysis.hang.witnesses.judge import judge_evidence
from tracekit.evidence.gather import load_evidence
from tracekit.findings.hang import HangFinding

STALL_S, TIMEOUT_S, LONGEST_S = 6.0, 12.0, 120.0
VIEWS = {
    "all dumps": "dumps",
    "the guilty rank's dump missing": "dumps -guilty",
    "a victim's dump missing": "dumps -victim",
    "the guilty rank's dump cut": "dumps /guilty",
    "a victim's dump cut": "dumps /victim",
    "stacks alone": "stacks",
    "logs alone": "logs",
    "the guilty rank's dump missing; stacks, logs": "dumps -guilty stacks logs",
    "a victim's dump missing; stacks, logs": "dumps -victim stacks logs",
    "everything": "dumps stacks logs",
}
KEPT = 2 / 3
"""The part of a cut file that was written."""


def run(folder: Path, kind: str) -> None:
    """Run the job of this kind into its hang, wait for dumps and time-outs, and kill what is left."""
    for part in ("dumps", "stacks", "logs"):
        (folder / part).mkdir(parents=True)
    stall, timeout = patience(STALL_S), patience(STALL_S) + TIMEOUT_S
    ranks = []
    for rank in range(WORLD):
        command = [sys.executable, "-m", "tests.hang.partial_job", str(rank), kind, str(folder)]
        with (folder / "logs" / f"rank_{rank}.log").open("w") as log:
            ranks.append(subprocess.Popen([*command, str(stall), str(timeout)], stdout=log, stderr=log))
    end = time.monotonic() + LONGEST_S + stall
    while time.monotonic() < end and not all(
        process.poll() is not None or (folder / "stacks" / f"rank_{rank}.txt").exists()
        for rank, process in enumerate(ranks)
    ):
        time.sleep(0.2)
    time.sleep(TIMEOUT_S + patience(2.0))
    for process in ranks:
        process.kill()
        process.wait()


def shown(folder: Path, kind: str, view: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of each file that a view shows."""
    guilty = GUILTY[kind]
    who = {"guilty": guilty, "victim": next(r for r in (3, 0, 1, 2) if r != guilty)}
    parts = view.split()
    missing = {who[part[1:]] for part in parts if part[0] == "-"}
    cut = {who[part[1:]] for part in parts if part[0] == "/"}
    for part in (part for part in parts if part[0] not in "-/"):
        for path in sorted((folder / part).iterdir()):
            rank = int(path.stem.rpartition("_")[2])
            data = path.read_bytes()
            if data and not (part == "dumps" and rank in missing):
                yield path.name, data[: int(len(data) * KEPT)] if part == "dumps" and rank in cut else data


def answered(folder: Path, kind: str, view: str, into: Path) -> HangFinding:
    """The answer to one view of a run, which is written to the folder `into`."""
    into.mkdir(parents=True)
    for name, data in shown(folder, kind, view):
        (into / name).write_bytes(data)
    return judge_evidence(load_evidence([str(into)]))[0]


def judgement(kind: str, finding: HangFinding) -> str:
    """How right an answer is."""
    named = {culprit.rank for culprit in finding.culprits}
    if named:
        return "right" if named == {GUILTY[kind]} else "innocent named"
    return "open +" if GUILTY[kind] in finding.candidates else "open"


def main() -> None:
    """Run all kinds and print a row a view."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kinds", default=",".join(GUILTY))
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    for kind in kinds:
        run(options.out / kind, kind)
    print("| shown |", " | ".join(kinds), "|")
    print("|---" * (len(kinds) + 1) + "|")
    for place, (name, view) in enumerate(VIEWS.items()):
        into = options.out / "views" / str(place)
        said = [judgement(kind, answered(options.out / kind, kind, view, into / kind)) for kind in kinds]
        print(f"| {name} |", " | ".join(said), "|", flush=True)


if __name__ == "__main__":
    main()
