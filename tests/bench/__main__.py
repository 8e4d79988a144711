"""`make bench`: ingest beside HTA's default parser in interleaved rounds, then a 3 GB file under 1 GB.

Every figure is from a process of its own, imports not counted; ratios are of medians over the rounds, against
HTA on one process. CPU seconds are of the process and its children: on a busy machine they are the steadier ones.
A trace of a few events shows what Python, Arrow and their code alone take of the peak memory.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench import traces

CONTENDERS = (("hta", 1), ("hta", 2), ("ours", 1), ("ours", 2))
READERS = (("hta", 1), ("scanner", 1), ("general", 1), ("ours", 1))
"""For one file: HTA, the two readers of events alone, and the whole of ingest."""
LABELS = {"hta": "HTA", "ours": "tracekit", "scanner": "compiled scanner", "general": "general reader"}
GIB = 1 << 30


def measure(who: str, jobs: int, paths: list[Path]) -> dict[str, float]:
    """Run one contender in a fresh process."""
    command = [sys.executable, "-m", "tests.bench.measure", who, str(jobs), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[2:5])} failed: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(title: str, paths: list[Path], json_bytes: int, rounds: int) -> None:
    """Interleaved rounds of all contenders on the same files, and a table of their medians."""
    contenders = CONTENDERS if len(paths) > 1 else READERS
    found: dict[tuple[str, int], list[dict[str, float]]] = {c: [] for c in contenders}
    for _ in range(rounds):
        for contender in contenders:
            found[contender].append(measure(*contender, paths))
    print(f"\n{title}: {json_bytes / 1e6:.0f} MB of JSON, medians of {rounds} interleaved rounds")
    print(
        f"{'':28}{'seconds':>9}{'MB/s':>7}{'x HTA':>7}{'CPU s':>8}{'x HTA':>7}{'peak MiB':>10}{'events':>10}"
    )
    base = {key: statistics.median(r[key] for r in found["hta", 1]) for key in ("seconds", "cpu")}
    for (who, jobs), runs in found.items():
        seconds, cpu = (statistics.median(r[key] for r in runs) for key in ("seconds", "cpu"))
        peak = max(r["peak_mib"] for r in runs)
        label = f"{LABELS[who]}, {jobs} process{'es' if jobs > 1 else ''}"
        print(
            f"{label:28}{seconds:9.2f}{json_bytes / 1e6 / seconds:7.0f}{base['seconds'] / seconds:7.1f}"
            f"{cpu:8.2f}{base['cpu'] / cpu:7.1f}{peak:10.0f}{runs[0]['events']:10.0f}"
        )


def big(folder: Path, size: int) -> None:
    """A file of `size` bytes: time and peak memory."""
    if shutil.disk_usage(folder).free < 2 * size:
        print(f"\nno room for a file of {size / GIB:.0f} GiB; left out")
        return
    path = folder / "rank_0.json"
    events = traces.big(path, size)
    found = measure("ours", 1, [path])
    assert found["events"] == events
    print(
        f"\none file of {path.stat().st_size / 1e9:.2f} GB, {events / 1e6:.1f} M events with a duration: "
        f"{found['seconds']:.1f} s, {size / 1e6 / found['seconds']:.0f} MB/s, peak {found['peak_mib']:.0f} MiB "
        f"({'within' if found['peak_mib'] <= 1024 else 'ABOVE'} the limit of 1024)"
    )
    path.unlink()


def main() -> None:
    """Parse the few options and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--big-gb", type=float, default=3.0, help="size of the large file; 0 leaves it out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as name:
        folder = Path(name)
        text, what = traces.base_text()
        paths = traces.as_ranks(text, folder, 8)
        tiny = folder / "rank_0_tiny.json"
        tiny.write_text(traces.head(0) + '{"ph": "X", "name": "a", "ts": 1, "dur": 1}' + traces.TAIL)
        print(f"a trace of one event: peak {measure('ours', 1, [tiny])['peak_mib']:.0f} MiB")
        compare(f"one rank, {what}", paths[:1], len(text), options.rounds)
        compare("8 copies as 8 ranks", paths, 8 * len(text), options.rounds)
        if options.big_gb:
            big(folder, int(options.big_gb * 1e9))


if __name__ == "__main__":
    main()
