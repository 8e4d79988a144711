"""`python -m tests.numerics.local.benchmark`: what the local proof says of changes to a DDP trainer of three ranks."""

import sys
import tempfile
from pathlib import Path

from numerics.comparison.compare import Options, compare
from numerics.local.model_source import build_model
from numerics.local.proof import prove
from tests.numerics.local.changes import BENIGN, BUGS
from tests.numerics.local.trainers import trained
from tests.ranks.pool import RankPool


def answered(run):
    model, optimizer = build_model("tests.numerics.local.model:build")
    return compare(run, None, Options(prove=lambda columns: prove(columns, model, optimizer)))


def main():
    """Print a table, and how many answers are right."""
    pool, right = RankPool(), 0
    names = [n for n in [*BENIGN, *BUGS] if not sys.argv[1:] or n in sys.argv[1:]]
    print("| change | verdict | first tensor | largest share of the bound |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(names):
            run = Path(folder) / str(number)
            pool.run(trained, 3, "ddp", run, name)
            found = answered(run)
            place = found.first_divergence.tensor if found.first_divergence else "–"
            wanted = None if name in BENIGN else BUGS[name][1]
            good = (
                found.verdict == "bug" and wanted in {None, place} if name in BUGS else found.verdict != "bug"
            )
            right += good
            share = found.reason.partition("up to ")[2].partition(";")[0] or "–"
            print(
                f"| {name} | {found.verdict if good else f'**{found.verdict}**'} | {place} | {share} |",
                flush=True,
            )
    print(f"\n{right} of {len(names)} right")
    pool.close()


if __name__ == "__main__":
    main()
