"""The share of the step that each rank of a real run spends in the image encoder, from its traces.

`python -m studies.encoder_share RUN…` prints it for run folders; docs/multimodal.md has the runs.
"""

import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path


def measured(run: Path) -> dict[int, float]:
    """Return the share of its traced steps that each traced rank of a run spent in the encoder."""
    shares = {}
    for path in sorted((run / "trace").glob("rank*.json.gz")):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        spans = [(e["name"], e["dur"]) for e in events if e.get("cat") == "user_annotation" and "dur" in e]
        steps = sum(length for name, length in spans if name.startswith("ProfilerStep"))
        encoding = sum(length for name, length in spans if name.startswith("PP:E"))
        shares[int(path.name.removeprefix("rank").partition(".")[0])] = encoding / steps
    return shares


def main(runs: Sequence[str]) -> None:
    """Print the measured shares of run folders."""
    for run in runs:
        if not (Path(run) / "trace").is_dir():
            raise SystemExit(f"{run}: no traces; give the folder of a run made with --trace")
        found = ", ".join(f"rank {rank} {part:.1%}" for rank, part in measured(Path(run)).items())
        print(f"{run}: {found}")  # noqa: T201 - the answer


if __name__ == "__main__":
    main(sys.argv[1:])
