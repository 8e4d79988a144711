"""Jobs whose logs are equal and whose culprits differ: what no reader of logs can decide.

Of two members that make unlike calls, either may be wrong. The mirror of a job is one in which all ranks of the stage
usually make the call that the culprit made, so that the other member of its group is wrong. Where both jobs leave the
same log, that log does not decide. `python -m tests.evidence.mirrored` counts such jobs among those of `share`.
"""

import argparse
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.evidence.stuck_job import states
from tests.evidence.watchdog import NAMED, Spelling, log
from tests.hang import simulate

UNLIKE_CALLS = ("wrong_size", "wrong_op", "skip")
_TIMES = re.compile(r"\d\d:\d\d:\d\d\.\d+|ran for \d+")


def log_of(case: simulate.Case, spelling: Spelling) -> list[str]:
    """The lines of a job's log without their times, sorted."""
    with tempfile.TemporaryDirectory() as folder:
        text = log(states(case.write(Path(folder))), spelling, noise=0)
    return sorted(_TIMES.sub("", line) for line in text.splitlines())


def usual_for_all(
    ranks: list[simulate.Rank], usual: Callable[[int], list[simulate.Op]], culprit: int
) -> bool:
    """Return whether the culprit's calls can be usual; if so, each rank but the culprit's partner takes them."""
    mine, before = ranks[culprit].program, usual(culprit)
    at = next(i for i, op in enumerate(before) if i >= len(mine) or not _same(mine[i], op))
    op, skipped = before[at], len(mine) < len(before)
    later = [i for i in range(at + 1, len(before)) if before[i].axis == op.axis]
    if len(op.group) != 2 or (skipped and not later):
        return False
    (partner,) = set(op.group) - {culprit}
    for rank in ranks:
        if rank.rank == partner or len(program := usual(rank.rank)) != len(before):
            continue
        own = program if rank.rank == culprit else rank.program
        if not all(_same(a, b, members=False) for a, b in zip(program, before, strict=True)):
            continue  # another stage
        if skipped:  # the two calls come in the other order
            first, second = own[at], own[later[0]]
            first.name, second.name = second.name, first.name
            first.size, second.size = second.size, first.size
        else:
            own[at].name, own[at].size = mine[at].name, mine[at].size
        rank.program = own
    return True


def _same(one: simulate.Op, other: simulate.Op, *, members: bool = True) -> bool:
    alike = (one.axis, one.name, one.size) == (other.axis, other.name, other.size)
    return alike and (not members or (one.group, one.peer) == (other.group, other.peer))


def undecidable(seed: int, spelling: Spelling) -> bool | None:
    """Whether the log of a job is also that of its mirror, in which another rank is wrong. None: no unlike calls."""
    case = simulate.make(seed, timed=spelling.desync)
    if case.fault not in UNLIKE_CALLS or case.culprit is None:
        return None
    possible: list[bool] = []
    other = simulate.make(
        seed,
        timed=spelling.desync,
        change=lambda ranks, usual: possible.append(usual_for_all(ranks, usual, case.culprit or 0)),
    )
    return possible == [True] and log_of(case, spelling) == log_of(other, spelling)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    counts: Counter[tuple[str, bool]] = Counter()
    for seed in range(args.first, args.first + args.jobs):
        equal = undecidable(seed, Spelling(NAMED[seed % len(NAMED)], desync=True))
        if equal is not None:
            counts[simulate.make(seed).fault or "", equal] += 1
            print(seed, "equal logs" if equal else "unlike logs", flush=True)
    print({f"{fault}: {'equal' if equal else 'unlike'}": n for (fault, equal), n in sorted(counts.items())})


if __name__ == "__main__":
    main()
