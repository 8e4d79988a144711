"""Runs the two commands of a bisection with capture switched on for a few steps; finished captures are kept."""

import json
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from numerics.record.switch import LEVEL, NAMES, OUT, STEPS
from numerics.schema import Level
from numerics.store import open_capture
from numerics.thresholds.reading import MAX_JSON_BYTES, MAX_REPLAYER_LINE
from tracekit.child_processes import run_command
from tracekit.errors import InputError, UsageError
from tracekit.small_files import read_small

STATE: Final = "bisect.json"
ROLES: Final = ("parallel", "baseline")


@dataclass(frozen=True)
class Commands:
    """The commands by role, and the folder that keeps their captures.

    `{out}` and `{level}` in a command are replaced by the run folder and the level; trainers that call `numerics.watch`
    read both from the environment. `progress` gets a line before each run.
    """

    by_role: dict[str, str]
    out: Path
    progress: Callable[[str], None] | None = None

    def begin(self, steps: int) -> None:
        """Make the folder, or go on in that of the same bisection. InputError where it holds anything else."""
        settings = {"commands": self.by_role, "steps": steps}
        path = self.out / STATE
        try:
            if path.is_file():
                if json.loads(read_small(path, MAX_JSON_BYTES).decode()) != settings:
                    raise InputError(
                        f"{self.out}: holds the bisection of other commands; choose another --out"
                    )
                return
            if self.out.is_dir() and any(self.out.iterdir()):
                raise InputError(f"{self.out}: is there already and holds no bisection; choose another --out")
            self.out.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InputError(f"{self.out}: cannot be used ({error}); choose another --out") from error

    def record(self, steps: Sequence[int], level: Level) -> tuple[Path, Path]:
        """Return the two run folders with these steps, after running what is not there yet."""
        folder = self.out / f"{level}_{'_'.join(map(str, steps))}"
        return self._made(ROLES[0], folder, steps, level), self._made(ROLES[1], folder, steps, level)

    def _made(self, role: str, folder: Path, steps: Sequence[int], level: Level) -> Path:
        run = folder / role
        try:
            open_capture(run)
        except InputError:
            shutil.rmtree(run, ignore_errors=True)
        else:
            return run
        if self.progress is not None:
            self.progress(f"runs {role}, recording step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}")
        folder.mkdir(parents=True, exist_ok=True)
        self._run(role, run, steps, level)
        if not run.is_dir():
            raise InputError(
                f"{run}: the {role} command recorded nothing; let its trainer call numerics.watch, or write to {{out}}"
            )
        return run

    def _run(self, role: str, run: Path, steps: Sequence[int], level: Level) -> None:
        try:
            command = [
                part.replace("{out}", str(run)).replace("{level}", level)
                for part in shlex.split(self.by_role[role])
            ]
        except ValueError as error:
            raise UsageError(f"--{role}: {error}; quote the command as a shell would read it") from error
        if not command:
            raise UsageError(f"--{role}: the command is empty; give one that trains")
        chosen = {OUT: str(run.absolute()), LEVEL: level, NAMES: "", STEPS: ",".join(map(str, steps))}
        log = run.with_suffix(".log")
        try:
            with log.open("wb") as file:
                code = run_command(command, {**os.environ, **chosen}, file)
        except OSError as error:
            raise UsageError(
                f"--{role}: {command[0]} cannot be started ({error.strerror or error})"
            ) from error
        if code:
            last = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            raise InputError(
                f"{log}: the {role} command ended with exit code {code} ({last[:MAX_REPLAYER_LINE]}); "
                "fix it and start the same bisection again: finished runs are kept"
            )
