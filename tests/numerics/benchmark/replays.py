"""Matched replays of the benchmark's runs, by the trainer's own replayer."""

import os
import subprocess
import sys
from pathlib import Path

from reftrain.replay.command import main


def replay(rank: int, world: int, store: str, run: str, out: str) -> None:
    """Write the matched replay of a run; any rank of a pool can do it."""
    del rank, world, store
    main([run, "--out", out])


def replay_elsewhere(run: Path, out: Path, source: Path) -> None:
    """The same by the trainer in another source tree."""
    subprocess.run(
        [sys.executable, "-m", "reftrain.replay.command", str(run), "--out", str(out)],
        env={**os.environ, "PYTHONPATH": str(source)},
        cwd=source,
        check=True,
        capture_output=True,
        timeout=400,
    )
