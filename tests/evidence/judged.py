"""The answer to a stuck job from some of its channels."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tests.evidence.other_channels import faulthandler, py_spy, ras_json, ras_text
from tests.evidence.stuck_job import RankState, states
from tests.evidence.watchdog import Spelling, log
from tracekit.analysis.hang.witnesses.judge import judge_evidence
from tracekit.dumps.load import load_dumps
from tracekit.evidence.gather import find_everything, gather
from tracekit.findings.hang import HangFinding

CHANNELS = ("dump", "log", "ras", "ras_text", "stacks")


def record(
    folder: Path, dumps: Path, spelling: Spelling, outside: tuple[int, ...] = ()
) -> Mapping[str, Path]:
    """Write all channels of a job, a folder each; the hosts of the ranks `outside` stand outside any collective."""
    job = states(dumps)
    found = {channel: folder / channel for channel in CHANNELS if channel != "dump"} | {"dump": dumps}
    for channel in found.values():
        channel.mkdir(parents=True, exist_ok=True)
    (found["log"] / "job.out").write_text(log(job, spelling))
    (found["ras"] / "first").write_text(ras_json(job))
    (found["ras"] / "second").write_text(ras_json(job, "2026-11-18 04:01:00"))
    (found["ras_text"] / "answer").write_text(ras_text(job))
    for rank, state in job.items():
        if state.alive:
            stands = "elsewhere" if rank in outside else "collective"
            printed = (py_spy if rank % 2 else faulthandler)(state, stands)
            (found["stacks"] / f"rank_{rank}").write_text(printed * 2)  # two samples
    return found


def answer(places: Mapping[str, Path], channels: tuple[str, ...], *, strict: bool = True) -> HangFinding:
    """The answer from these channels; `strict`: every file of theirs must be read."""
    inputs = [str(places[channel]) for channel in channels if channel != "dump"]
    found = gather(find_everything(inputs).sources)
    assert not found.unknown or not strict
    assert not found.rejected
    bundle = found.bundle()
    if "dump" in channels:
        bundle = replace(bundle, dumps=load_dumps([str(places["dump"])]))
    return judge_evidence(bundle)[0]


def of_text(folder: Path, *texts: str, expected: int | None = None) -> HangFinding:
    """The answer to logs, each in a file of its own."""
    for number, text in enumerate(texts):
        (folder / f"part{number}").write_text(text)
    found = gather(find_everything([str(folder)]).sources)
    return judge_evidence(found.bundle(expected))[0]


def ranks(finding: HangFinding) -> list[int]:
    """The ranks that an answer names."""
    return [culprit.rank for culprit in finding.culprits]


def alive(job: Mapping[int, RankState]) -> list[int]:
    """Ranks whose process lives."""
    return [rank for rank, state in job.items() if state.alive]
