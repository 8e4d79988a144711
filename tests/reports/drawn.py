"""Runs with dropout over two axes: what ranks of tensor parallelism share, what they hold parts of, and replicas."""

from tests.reports.in_tensor import InTensor, beside, drawn_alike
from tests.reports.report import Report
from tests.reports.wrong import HEALTHY, verdict

DROPPING = InTensor(drop=0.2)
WITHIN = InTensor(drop=0.2, inner=0.2)
REPORTS: list[Report] = [
    beside(
        "pytorch/pytorch#103910",
        "two replicas of 3 ranks of tensor parallelism; ranks of one replica drop alike, replicas apart",
        "no bug",
        InTensor(pieces=False, drop=0.2, replicas=2, seeds="by replica"),
        DROPPING,
        HEALTHY,
        model="build_dropping",
        ranks=6,
    ),
    beside(
        "tenstorrent/tt-metal#55947",
        "the same, and all six ranks draw alike",
        "that replicas drop the same elements, dp",
        InTensor(pieces=False, drop=0.2, replicas=2),
        DROPPING,
        drawn_alike,
        model="build_dropping",
        ranks=6,
    ),
    beside(
        "NVIDIA/TransformerEngine#227",
        "the same, and each of the six ranks draws for itself",
        "bug: dropout that differs between copies, tp",
        InTensor(pieces=False, drop=0.2, replicas=2, seeds="apart"),
        DROPPING,
        verdict("bug", words=("draw random numbers apart",)),
        model="build_dropping",
        ranks=6,
    ),
    beside(
        "awslabs/slapo#67",
        "dropout within the MLP too, which each of 3 ranks draws for its own part from a state of its own",
        "no bug",
        InTensor(pieces=False, drop=0.2, inner=0.2, tracked=True),
        WITHIN,
        HEALTHY,
        model="build_dropping_within",
    ),
    beside(
        "NVIDIA/Fuser#3123",
        "the same, and all ranks draw alike for their parts",
        "bug: ranks drop the same elements of their parts, tp",
        InTensor(pieces=False, drop=0.2, inner=0.2),
        WITHIN,
        verdict("bug", words=("drop the same elements of their own parts",)),
        model="build_dropping_within",
    ),
]
