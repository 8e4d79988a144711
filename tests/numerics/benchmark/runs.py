"""Makes the benchmark's runs: real trainers in forked ranks, baselines kept, other environments as subprocesses."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reftrain.config.file import load
from tests.numerics.benchmark.case import BASE, Case, Tables, merged
from tests.numerics.benchmark.changed import PERTURBED, changed_run
from tests.ranks.pool import RankPool
from tests.reftrain.workers import whole_run

DONE = "done"
LONGEST = 400
"""Seconds a run may take before its case is given up."""


class Runs:
    """Run folders under `folder`, each made once by its tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pool = RankPool()

    def close(self) -> None:
        """End all ranks."""
        self.pool.close()

    def baseline(self, case: Case) -> Path:
        """The case's baseline, shared by all cases with the same."""
        return self._made("baseline", merged(BASE, case.baseline))

    def perturbed(self, case: Case) -> Path:
        """The baseline with its embeddings moved by one unit in the last place, shared in the same way."""
        return self._made("perturbed", merged(BASE, case.baseline), change=PERTURBED)

    def parallel(self, case: Case, source: Path | None = None) -> Path:
        """The case's parallel run, by the trainer in `source` when one is given."""
        tables = merged(BASE, case.parallel)
        environment = dict(case.environment or {})
        if source is not None:
            environment["PYTHONPATH"] = str(source)
        return self._made("parallel", tables, environment, case.change)

    def _made(
        self, role: str, tables: Tables, environment: Mapping[str, str] | None = None, change: str = ""
    ) -> Path:
        key = json.dumps([tables, dict(environment or {}), change], sort_keys=True)
        out = self.folder / f"{role}-{hashlib.sha1(key.encode(), usedforsecurity=False).hexdigest()[:12]}"
        if (out / DONE).is_file():
            return out
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        full = merged(tables, {"run": {"out": str(out)}})
        if environment:
            self._subprocess(full, environment)
        else:
            config = load(None, full)
            run, more = (changed_run, (change,)) if change else (whole_run, ())
            self.pool.run(run, config.mesh.world_size, config, *more, timeout=LONGEST)
        (out / DONE).touch()
        return out

    def _subprocess(self, tables: Tables, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "tracekit_cli.reftrain", "run", "--quiet"]
        for table, values in tables.items():
            for name, value in values.items():
                command += ["--set", f"{table}.{name}={json.dumps(value)}"]
        ended = subprocess.run(
            command,
            env={**os.environ, **environment},
            cwd=environment.get("PYTHONPATH"),
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        if ended.returncode:
            raise RuntimeError(f"{' '.join(command)}: {ended.stderr.strip()[-600:]}")


def metrics(run: Path) -> list[dict[str, Any]]:
    """One row a step, of rank 0."""
    lines = (run / "metrics" / "rank0.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
