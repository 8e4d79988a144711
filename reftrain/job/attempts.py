"""The run folder of an elastic job: what an attempt leaves is set aside before the next one begins.

    attempts/attempt-0/   run.json, traces, dumps, logs and metrics of the first attempt, as of a run of its own;
                          log/launcher.log there says how it ended, and from which step the job went on
    metrics/              each step once, as if no rank had died: a repeated step has the row of its last attempt

Everything else in the folder is of the last attempt; checkpoints belong to the job. Used by `elastic`.
"""

import json
import shutil
from pathlib import Path
from typing import Any, Final

from reftrain.errors import ConfigError
from reftrain.rank.processes import Death
from reftrain.record.job_log import note_death
from reftrain.record.last_calls import merge_last_calls
from reftrain.record.manifest import read_manifest, write_manifest
from reftrain.train.checkpoint import finished

SET_ASIDE: Final = (
    "trace", "fr", "log", "stacks", "counters", "shadow", "memory", "capture", "order_plan.json", "run.json",
)  # fmt: skip
"""What an attempt writes into the run folder, besides metrics and checkpoints."""


class Attempts:
    """The attempts of one elastic job in its run folder. Raises OSError where the folder refuses."""

    def __init__(self, out: Path, resume: str) -> None:
        self.out, self.resume = out, resume
        earlier = [int(path.name.partition("-")[2]) for path in (out / "attempts").glob("attempt-*")]
        if not resume and (earlier or finished(out / "checkpoint")):
            raise ConfigError(
                "run.out",
                f"{out} holds checkpoints or attempts of an earlier job",
                "go on from them with --resume auto, or name another folder",
            )
        self.number = max(earlier, default=-1) + 1
        self.reached = -1
        self.ended: list[dict[str, Any]] = []
        if resume == "auto":
            self._forget_rows_from(self.saved or 0)
        self._lengths = self._row_bytes()

    @property
    def saved(self) -> int | None:
        """Steps done in the newest finished checkpoint of this folder; None without any."""
        found = finished(self.out / "checkpoint")
        return found[-1][0] if found else None

    @property
    def source(self) -> str:
        """Return what `checkpoint.resume` of the next attempt is."""
        return self.resume if self.saved is None else "auto"

    def end(self, first: Death, ranks: int) -> None:
        """Note how the present attempt ended: by the death of `first`, one of `ranks` ranks."""
        self.reached = max(self.reached, self._newest_step() + 1, self.saved or 0)
        self.ended.append(
            {
                "attempt": self.number,
                "ranks": ranks,
                "rank": first.rank,
                "by": first.cause,
                "step": self.reached,
            }
        )
        _note(self.out, str(first))
        merge_last_calls(self.out / "fr")

    def next(self, ranks: str) -> str:
        """Set the evidence of the attempt that ended aside; return a sentence about the next one, on `ranks`."""
        folder = self.out / "attempts" / f"attempt-{self.number}"
        (folder / "metrics").mkdir(parents=True)
        for name, offset in self._row_bytes().items():
            rows = (self.out / "metrics" / name).read_bytes()
            (folder / "metrics" / name).write_bytes(rows[self._lengths.get(name, 0) : offset])
        for name in SET_ASIDE:
            if (self.out / name).exists():
                shutil.move(self.out / name, folder / name)
        manifest = read_manifest(folder)
        if manifest is not None:
            write_manifest(self.out, {**manifest, "attempts": self.ended})  # the next one writes its own
            write_manifest(folder, {**manifest, "attempt": self.ended[-1]})
        if self.saved is None:
            self._forget_rows_of_this_attempt()
        else:
            self._forget_rows_from(self.saved)
        self._lengths = self._row_bytes()
        self.number += 1
        where = "its first step: there is no checkpoint yet" if self.saved is None else f"step {self.saved}"
        sentence = f"attempt {self.number} goes on with {ranks} from {where}"
        _note(folder, sentence)
        return sentence

    def finish(self) -> None:
        """Write the ends of all attempts into run.json."""
        manifest = read_manifest(self.out)
        if manifest is not None and self.ended:
            write_manifest(self.out, {**manifest, "attempts": self.ended})

    def _row_bytes(self) -> dict[str, int]:
        """Return the size of each file of metrics, those of evaluations among them."""
        return {path.name: path.stat().st_size for path in sorted((self.out / "metrics").glob("*.jsonl"))}

    def _newest_step(self) -> int:
        """Return the last step that any rank of this attempt has finished; -1 for none."""
        newest = -1
        for name in self._row_bytes():
            rows = (self.out / "metrics" / name).read_bytes()[self._lengths.get(name, 0) :]
            newest = max([newest, *(step for step in map(_step, rows.splitlines()) if step is not None)])
        return newest

    def _forget_rows_from(self, step: int) -> None:
        """Keep the rows of the steps before `step`, which the next attempt begins with."""
        for name in self._row_bytes():
            path = self.out / "metrics" / name
            numbered = ((_step(row), row) for row in path.read_bytes().splitlines(keepends=True))
            _replace(path, b"".join(row for at, row in numbered if at is not None and at < step))

    def _forget_rows_of_this_attempt(self) -> None:
        """Keep the rows that were there before it: the next one begins where it began."""
        for name in self._row_bytes():
            path = self.out / "metrics" / name
            _replace(path, path.read_bytes()[: self._lengths.get(name, 0)])


def _step(row: bytes) -> int | None:
    """Return the step of a row of metrics; None for a row that a killed rank left incomplete."""
    try:
        step = json.loads(row)["step"]
    except (ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None


def _note(folder: Path, sentence: str) -> None:
    """Append a sentence to a folder's log/launcher.log, as it is written where a job is not elastic."""
    (folder / "log").mkdir(parents=True, exist_ok=True)
    note_death(folder, sentence)


def _replace(path: Path, rows: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(rows)
    temporary.replace(path)
