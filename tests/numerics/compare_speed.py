"""How long and how much memory `numerics compare` needs for 1 GiB of captured tensors, all of them different.

    python -m tests.numerics.compare_speed [--folder DIR]

Writes two captures of 256 tensors of 4 MiB with values, cut over 4 and over 2 ranks, and compares them in a process
of its own. The folder (2.2 GiB) is removed afterwards.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from numerics.record.recorder import Box, Recorder

LAYERS, COPIES, SIZE = 64, 4, 1024

COMPARE = """
import json, resource, sys, time
from pathlib import Path
from numerics.comparison.compare import compare
begin = time.perf_counter()
finding = compare(Path(sys.argv[1]), Path(sys.argv[2]))
print(json.dumps({
    "seconds": round(time.perf_counter() - begin, 2),
    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    "compared": finding.tensors.compared, "different": finding.tensors.unexplained,
}))
"""


def write(folder: Path, ranks: int, factor: float) -> None:
    """Write a capture of 1 GiB of float32 rows, cut over the ranks."""
    rows = SIZE // ranks
    for rank in range(ranks):
        with Recorder(folder, rank, ranks, {"tp": rank}, level="tensors") as to:
            for layer in range(LAYERS):
                whole = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(layer))
                mine = whole[rank * rows : (rank + 1) * rows] * factor
                for copy in range(COPIES):
                    to.record(
                        f"layers.{layer}.w{copy}.weight.grad",
                        mine + copy,
                        step=0,
                        phase="reduce",
                        kind="param_grad",
                        module=f"layers.{layer}",
                        global_shape=(SIZE, SIZE),
                        boxes=[Box((rank * rows, 0), (rows, SIZE))],
                    )


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.numerics.compare_speed")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args().folder
    folder = Path(tempfile.mkdtemp(dir=given, prefix="compare-speed-"))
    try:
        write(folder / "a", 4, 1 + 1e-7)
        write(folder / "b", 2, 1.0)
        done = subprocess.run(
            [sys.executable, "-c", COMPARE, str(folder / "a"), str(folder / "b")],
            capture_output=True,
            text=True,
            check=True,
        )
        print(json.dumps({"gib": LAYERS * COPIES * SIZE * SIZE * 4 / 2**30, **json.loads(done.stdout)}))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
