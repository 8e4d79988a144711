"""Runs a job in a process of its own and prints the largest resident size of each rank: `python -m … TABLES`."""

import json
import re
import sys
from pathlib import Path

from reftrain.config.file import load
from reftrain.job.launcher import launch
from reftrain.rank.hooks import Hooks


class ResidentSize(Hooks):
    """Writes this process' largest resident size, in bytes, when the run ends."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / f"rank{rank}"

    def close(self):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found
        self.path.write_text(str(int(found[1]) * 1024))


def main() -> None:
    tables = json.loads(sys.argv[1])
    config = load(None, tables)
    folder = Path(config.out).parent
    launch(config, lambda rank: [ResidentSize(folder, rank)])
    sizes = [int((folder / f"rank{r}").read_text()) for r in range(config.mesh.world_size)]
    sys.stdout.write(json.dumps(sizes) + "\n")


if __name__ == "__main__":
    main()
