"""Makes matched replays: finds the trainer's replayer, starts it as a program of its own, and checks its capture.

A trainer offers a replayer under the entry-point group `numerics.replayers`: a function of no arguments in a module.
`python -m MODULE RUN --out DIR [--level L] [--variant NAME=FORMAT] [--steps N] [--baseline 2d] [--forced]`
writes a run folder with the same capture rows as RUN and its declared order plan. The trainer is never imported here.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import Final

from numerics.schema import FOLDER, WATCHED
from numerics.store import open_capture
from numerics.thresholds.reading import MAX_REPLAYER_LINE, REPLAYER_LINES
from tracekit.child_processes import die_with
from tracekit.errors import InputError
from tracekit.own_files import of_a_run, remove_own, strangers

GROUP: Final = "numerics.replayers"
REPLAY: Final = "replay"
"""Folder of the matched replay within a run's."""


def replayer(source: str) -> EntryPoint:
    """Return the replayer of the trainer that wrote a capture. InputError where none is installed.

    `source` is the producer that the capture's stamp names; a capture without one gets the only replayer installed.
    """
    # every distribution: an old egg-info beside the sources would hide the installed one from `entry_points`
    points = (point for known in distributions() for point in known.entry_points.select(group=GROUP))
    found = {point.name: point for point in points}
    if source in found:
        return found[source]
    if source == WATCHED:
        raise InputError(
            "captures of numerics.watch have no replayer, for it repeats no trainer; prove the run piece by piece with "
            "numerics compare --model FILE.py:FUNCTION"
        )
    if source or len(found) != 1:
        known = ", ".join(sorted(found)) or "none"
        raise InputError(
            f"no replayer for captures of {source or 'an unnamed trainer'!r} is installed (known: {known}); "
            "install the trainer's package, or use numerics ladder"
        )
    return next(iter(found.values()))


def make_replay(
    run: Path,
    out: Path | None = None,
    *,
    level: str | None = None,
    variants: Sequence[str] = (),
    steps: int | None = None,
    baseline: str = "matched",
    forced: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Replay a run into `out` (RUN/replay if left out) and return that folder.

    `baseline` is matched (one process in the run's own order), or 2d (its data- and tensor-parallel ranks and
    micro-batches, run by the trainer). A `forced` replay goes on with the run's recorded values; it leaves, beside its
    own, the captures `exact` and `error` of what differs. The folder appears whole or not at all, and replaces an
    earlier one. InputError where the run is unreadable or cannot be replayed, or the replayer left no whole capture.
    """
    point = replayer(open_capture(run).source)
    target = run / REPLAY if out is None else out
    _check_target(run, target)
    command = [sys.executable, "-m", point.module, str(run)]
    command += ["--level", level] if level else []
    command += [item for text in variants for item in ("--variant", text)]
    command += ["--steps", str(steps)] if steps else []
    command += ["--baseline", baseline] if baseline != "matched" else []
    command += ["--forced"] if forced else []
    _make(command, run, target, progress)
    return target


def _make(command: Sequence[str], run: Path, target: Path, progress: Callable[[str], None] | None) -> None:
    """Let the replayer write into a temporary folder, and put that in the target's place."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
            made = Path(folder) / "run"
            _start([*command, "--out", str(made)], run, progress)
            open_capture(made)
            remove_own(target, of_a_run)
            made.replace(target)
    except OSError as error:
        raise InputError(
            f"{target}: cannot be written ({error.strerror or error}); choose another --out"
        ) from error


def _check_target(run: Path, target: Path) -> None:
    """Raise InputError where a replay would overwrite anything but a replay."""
    if target.resolve() in {run.resolve(), *run.resolve().parents}:
        raise InputError(f"{target}: is the run itself or holds it; choose another --out")
    if target.is_symlink():
        raise InputError(f"{target}: is a symbolic link; name the folder itself")
    if target.exists() and not (
        target.is_dir() and ((target / FOLDER).is_dir() or not any(target.iterdir()))
    ):
        raise InputError(f"{target}: is there already and holds no replay; choose another --out")
    if foreign := strangers(target, of_a_run):
        raise InputError(
            f"{target}: holds {foreign[0]}, which no replay wrote; move it away, or choose another --out"
        )


def _start(command: Sequence[str], run: Path, progress: Callable[[str], None] | None) -> None:
    """Run the replayer. Its lines are progress; where it fails, the last one is the reason (InputError)."""
    talk: list[str] = []
    with subprocess.Popen(  # noqa: S603 - the installed trainer's module, started as arguments, by no shell
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 - it takes no lock
    ) as process:
        try:
            for line in process.stderr or ():
                talk = [*talk[1 - REPLAYER_LINES :], line.strip()[:MAX_REPLAYER_LINE]]
                if progress is not None and line.startswith("step "):
                    progress(line.strip())
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        reason = talk[-1] if talk else f"the replayer ended with exit code {process.returncode}"
        raise InputError(f"{run}: {reason}")
