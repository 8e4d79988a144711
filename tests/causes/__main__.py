"""`python -m tests.causes`: plants every kind of fault at every severity, alone and two at once, and prints tables.

python -m tests.causes --jobs 2 --json out.json             all cells: minutes
python -m tests.causes --only pauses --severities 5,10      cells with this kind
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.causes.cell import HEALTHY, KINDS, PAIRS, Cell, row_of
from tests.causes.report import by_severity, confusion, interventions, pairs, summary

PAIR_SEVERITIES = (0.10, 0.20)


def cells(severities: Sequence[float], seeds: int, only: str) -> list[Cell]:
    """Return the cells: healthy jobs, single faults at all severities, pairs at two, or those with the kind `only`."""
    single = [Cell((k,), s, n) for k in KINDS for s in severities for n in range(seeds)]
    double = [Cell(p, s, n) for p in PAIRS for s in severities if s in PAIR_SEVERITIES for n in range(seeds)]
    healthy = [Cell((), 0.0, n) for n in range(seeds * len(HEALTHY))]
    return [cell for cell in healthy + single + double if not only or only in cell.kinds]


def main() -> int:
    """Run the cells, print what is not right as it comes, and then the tables."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tests.causes", description=__doc__, formatter_class=form)
    parser.add_argument("--severities", default="5,10,20,40", help="slowdowns of each fault, percent")
    parser.add_argument("--seeds", type=int, default=2, help="jobs of each cell")
    parser.add_argument("--only", default="", choices=("", *KINDS), help="cells with this kind")
    parser.add_argument("--jobs", type=int, default=1, help="cells at once")
    parser.add_argument("--json", type=Path, help="every cell as JSON, to this file")
    options = parser.parse_args()
    severities = [float(number) / 100 for number in options.severities.split(",")]
    rows = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for row in pool.map(row_of, cells(severities, options.seeds, options.only)):
            rows.append(row)
            if row["worth"] != "right":
                print(json.dumps(row), file=sys.stderr, flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    parts = (confusion(rows), by_severity(rows), pairs(rows), interventions(rows), summary(rows))
    print("\n\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
