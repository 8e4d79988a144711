"""All halves of a sample's ranks, or a share: `python -m tests.slowrank.halves --sample slow_compute --share 3/8`.

A share 3/8 takes every eighth half from the fourth on; the eight shares are all halves, each once. What a rank's
table tells is read once in the process, by the analysis' own reader.
"""

import argparse
from functools import cache
from itertools import combinations
from unittest.mock import patch

from tests.slowrank.test_all_subsets import CULPRITS, recorded, wrong
from tracekit.rank_events.operations import read_rank
from tracekit.rank_events.rank_ops import RankOps
from tracekit.store import Run


@cache
def _whole(sample: str, rank: int, marked: bool) -> RankOps:
    """Operations of a rank of the whole sample, which are those of any part that holds it."""
    return read_rank(recorded(sample), rank, marked=marked)


def asked(sample: str, share: int, of: int) -> tuple[int, dict[tuple[int, ...], str]]:
    """How many halves were asked, and those that were answered wrongly, with the answer."""

    def read(_run: Run, rank: int, *, marked: bool = True) -> RankOps:
        return _whole(sample, rank, marked)

    ranks = [r.rank for r in recorded(sample).ranks]
    halves = list(combinations(ranks, len(ranks) // 2))[share::of]
    with patch("tracekit.case.opened.read_rank", read):
        return len(halves), {kept: why for kept in halves if (why := wrong(sample, kept))}


def main() -> None:
    """Print each wrong answer, and how many were asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", choices=list(CULPRITS), default="slow_compute")
    parser.add_argument("--share", default="0/1")
    args = parser.parse_args()
    share, of = map(int, args.share.split("/"))
    count, found = asked(args.sample, share, of)
    for kept, why in found.items():
        print(*kept, ":", why)
    print(f"{args.sample} {share}/{of}: {count} halves, {len(found)} wrong", flush=True)


if __name__ == "__main__":
    main()
