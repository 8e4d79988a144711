"""Matched and forced replays of the benchmark's runs, by the trainer's own replayer."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from numerics.comparison.matched_replay import MakeReplay
from numerics.order.replayer import REPLAY
from reftrain.replay.command import main
from tests.numerics.benchmark.runs import LONGEST, Runs
from tests.ranks.pool import RankFailedError
from tracekit.errors import InputError


def replay(rank: int, world: int, store: str, arguments: list[str]) -> str | None:
    """Replay as the program would; any rank of a pool can do it. Return why it is refused, or None."""
    del rank, world, store
    try:
        main(arguments)
    except SystemExit as end:
        return f"refused with exit code {end.code}"
    return None


def replay_maker(runs: Runs, source: Path | None) -> MakeReplay:
    """What `compare` makes its replays with: a rank of the pool, or the trainer in another source tree."""

    def make(
        run: Path,
        out: Path | None = None,
        *,
        variants: Sequence[str] = (),
        steps: int | None = None,
        forced: bool = False,
    ) -> Path:
        target = run / REPLAY if out is None else out
        arguments = [str(run), "--out", str(target), *(["--forced"] if forced else [])]
        arguments += [item for text in variants for item in ("--variant", text)]
        arguments += ["--steps", str(steps)] if steps else []
        if source is not None:
            _elsewhere(arguments, source)
            return target
        try:
            (refused,) = runs.pool.run(replay, 1, arguments, timeout=LONGEST)
        except RankFailedError as error:
            raise InputError(f"{run}: no replay ({error})") from error
        if refused:
            raise InputError(f"{run}: {refused}")
        return target

    return make


def _elsewhere(arguments: list[str], source: Path) -> None:
    command = [sys.executable, "-m", "reftrain.replay.command", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    ended = subprocess.run(
        command, env=environment, cwd=source, check=False, capture_output=True, timeout=LONGEST
    )
    if ended.returncode:
        raise InputError(ended.stderr.decode(errors="replace")[-300:])
