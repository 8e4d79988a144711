"""`python -m reftrain.demo --out demo_run [--steps N] [--fault none|slow_compute:rank=5,factor=1.5] [--seed S]`."""

import argparse
import json
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

from reftrain.config.fault_spec import FaultSpec, parse_fault
from reftrain.demo.job import BATCH, MICRO_BATCHES, WARM_UP, JobSpec, run_rank
from reftrain.demo.mesh import ORDER, SIZES, WORLD_SIZE
from reftrain.demo.model import HIDDEN, LAYERS, WIDTH
from reftrain.errors import ConfigError, MachineError, ReftrainError
from reftrain.rank.processes import Ranks
from reftrain.record.manifest import fingerprint, read_manifest, versions, write_manifest

PROGRAM = "reftrain.demo"
DEFAULT_FAULT = "slow_compute:rank=5,factor=1.5"


def main(argv: list[str] | None = None) -> int:
    """Run the demo; returns the exit code."""
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        fault = _fault(arguments.fault)
        record(Path(arguments.out), arguments.steps, arguments.seed, fault)
    except ReftrainError as error:
        _say(f"reftrain.demo: {error}")
        return 2 if isinstance(error, ConfigError) else 3
    except KeyboardInterrupt:
        _say("reftrain.demo: interrupted; nothing was written")
        return 130
    return 0


def record(out: Path, steps: int, seed: int, fault: FaultSpec | None) -> None:
    """Train for `steps` recorded steps on eight processes and leave the run folder at `out`.

    An earlier run of this demo at `out` is replaced, once the new one is whole; anything else there is
    refused. Raises ReftrainError.
    """
    _check_replaceable(out)
    began = time.monotonic()
    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.absolute().parent))
    except OSError as error:
        raise MachineError(f"cannot write beside {out}: {error.strerror}; give another --out") from error
    try:
        (folder / "trace").mkdir()
        _say(f"training on {WORLD_SIZE} processes (tp 2, pp 2, dp 2) for {WARM_UP + steps} steps …")
        spec = JobSpec(folder, steps, seed, fault)
        _run(spec)
        reports = [_take_report(folder, rank) for rank in range(WORLD_SIZE)]
        manifest = _manifest(spec, reports)
        write_manifest(folder, manifest)
        _put(folder, out)
    except OSError as error:
        raise MachineError(
            f"cannot write {out}: {error.strerror}; make room or give another --out"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    loss = manifest["loss"]
    _say(
        f"{steps} steps of {manifest['step_ms']:.0f} ms recorded, loss {loss[0]:.3f} to {loss[-1]:.3f}, "
        f"{time.monotonic() - began:.0f} s in all: {out}"
    )


def _run(spec: JobSpec) -> None:
    """Fork the ranks and wait for them; a rank that dies ends all, and is named."""
    with tempfile.TemporaryDirectory(prefix="reftrain-demo-") as meeting:
        ranks = Ranks()
        try:
            for rank in range(WORLD_SIZE):
                ranks.fork(lambda rank=rank: run_rank(spec, rank, f"file://{meeting}/store"))  # type: ignore[misc]
            ranks.wait()
        finally:
            ranks.end()


def _take_report(folder: Path, rank: int) -> dict[str, Any]:
    path = folder / f"report{rank}.json"
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return report


def _manifest(spec: JobSpec, reports: list[dict[str, Any]]) -> dict[str, Any]:
    step_ms = statistics.fmean(statistics.fmean(r["step_ms"]) for r in reports)
    faults = []
    if spec.fault is not None and spec.fault.rank is not None:
        lag = statistics.fmean(reports[spec.fault.rank]["extra_ms"])
        faults.append({**spec.fault.to_json(), "lag_ms": round(lag, 3), "lag_share": round(lag / step_ms, 4)})
    last_stage = reports[WORLD_SIZE - 1]
    return {
        "program": PROGRAM,
        "mesh": {"order": list(ORDER), "sizes": SIZES},
        "world_size": WORLD_SIZE,
        "hosts": 1,
        "steps": list(range(WARM_UP, WARM_UP + spec.steps)),
        "step_ms": round(step_ms, 3),
        "loss": [round(value, 6) for value in last_stage["loss"]],
        "model": {"width": WIDTH, "hidden": HIDDEN, "layers": LAYERS * SIZES["pp"], "parameters": "float32"},
        "data": {"kind": "random linear map", "batch": BATCH, "micro_batches": MICRO_BATCHES},
        "dtype": {"compute": "float32", "reduce": "float32"},
        "schedule": "1f1b",
        "seeds": {"run": spec.seed},
        "versions": versions(),
        "fingerprint": fingerprint(),
        "faults": faults,
    }


def _check_replaceable(out: Path) -> None:
    if not out.exists() and not out.is_symlink():
        return
    if out.is_dir() and not out.is_symlink():
        manifest = read_manifest(out)
        if not any(out.iterdir()) or (manifest is not None and manifest.get("program") == PROGRAM):
            return
    raise ConfigError("--out", f"{out} exists and is no earlier run of this demo", "give another folder")


def _put(folder: Path, out: Path) -> None:
    """Move the finished run to `out`, and what was there away."""
    folder.chmod(0o755)
    if not out.exists():
        folder.rename(out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}-old-", dir=out.absolute().parent))
    try:
        out.rename(old / "run")
        folder.rename(out)
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _fault(text: str) -> FaultSpec | None:
    if text == "none":
        return None
    fault = parse_fault(text, WORLD_SIZE)
    if fault.kind != "slow_compute":
        raise ConfigError("--fault", f"the demo cannot plant {fault.kind}", "use slow_compute or none")
    return fault


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reftrain.demo", description="Train a small model on eight processes and record it."
    )
    parser.add_argument("--out", default="demo_run", help="folder to write; an earlier demo run is replaced")
    parser.add_argument("--steps", type=_steps, default=16, help="steps to record (2 to 200)")
    parser.add_argument(
        "--fault", default=DEFAULT_FAULT, help="none, or e.g. slow_compute:rank=5,factor=1.5,steps=2:"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and data")
    return parser


def _steps(text: str) -> int:
    if not text.isdigit() or not 2 <= int(text) <= 200:
        raise argparse.ArgumentTypeError(f"{text} is not between 2 and 200")
    return int(text)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
