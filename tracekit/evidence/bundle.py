"""All evidence of one stuck job, by kind, as the readers give it; and what the kinds tell together of its size."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from tracekit.dumps.load import DumpSet
from tracekit.evidence.log_file import LogFile, agent_of_path
from tracekit.evidence.ras import RasReport
from tracekit.evidence.stack_places import RankStack
from tracekit.findings import Quality, Rejected
from tracekit.units import NS_PER_MS

_EARLIER: Final = "it is of an earlier attempt of the job; only the last one is judged"


@dataclass(frozen=True)
class Bundle:
    """The evidence of one job. expected: its ranks, where the user gives a mesh."""

    dumps: DumpSet | None = None
    logs: tuple[LogFile, ...] = ()
    ras: tuple[RasReport, ...] = ()
    stacks: tuple[RankStack, ...] = ()
    expected: int | None = None
    rejected: tuple[Rejected, ...] = ()
    quality: tuple[Quality, ...] = field(default=())

    @property
    def only_dumps(self) -> bool:
        """Return whether there is nothing beside dumps."""
        return self.dumps is not None and not (self.logs or self.ras or self.stacks)

    def last_ns(self) -> int:
        """Return when the last call in a dump was issued, ns since 1970; 0 without dumps."""
        return 0 if self.dumps is None else self.dumps.last_ns()

    @property
    def world(self) -> int | None:
        """Return the number of ranks of the job as anything tells it; None where nothing does."""
        return max(self._sizes(), default=None)

    def _sizes(self) -> Iterator[int]:
        if self.expected:
            yield self.expected
        if self.dumps is not None:
            yield max(self.dumps.world, default=-1) + 1
        yield from (log.world for log in self.logs if log.world)
        yield from (report.world for report in self.ras if report.world)

    @property
    def ranks(self) -> set[int]:
        """Return the ranks of which any evidence was read."""
        found = set(self.dumps.dumps) if self.dumps is not None else set()
        found.update(*(log.ranks for log in self.logs), *(report.ranks for report in self.ras))
        return found | {stack.rank for stack in self.stacks if stack.rank is not None}


def without_earlier_attempts(bundle: Bundle) -> Bundle:
    """Return the evidence without the logs of earlier attempts, with a row for each, and without stacks in these.

    torchrun numbers attempts. A rank's call that was issued after another call of the rank had timed out is of a later
    one: a time-out ends the process.
    """
    agents = [agent_of_path(log.path) for log in bundle.logs]
    last = dict(sorted(agent for agent in agents if agent is not None))
    timed = {log.path: _timed_out(log) for log in bundle.logs}
    left = {
        log.path
        for log, agent in zip(bundle.logs, agents, strict=True)
        if (agent is not None and agent[1] < last[agent[0]])
        or any(_precedes(timed[log.path], timed[other.path]) for other in bundle.logs)
    }
    if not left:
        return bundle
    rows = tuple(Quality("restarts", path, 1, _EARLIER) for path in sorted(left))
    return replace(
        bundle,
        logs=tuple(log for log in bundle.logs if log.path not in left),
        stacks=tuple(stack for stack in bundle.stacks if stack.path not in left),
        quality=(*bundle.quality, *rows),
    )


def _timed_out(log: LogFile) -> dict[int, tuple[int, int]]:
    """Return when the calls that timed out were issued last and ended first, ns of the log's clock, by rank."""
    found: dict[int, tuple[int, int]] = {}
    for rank, marks in log.marks.items():
        works = [mark.work for mark in marks.values() if mark.work is not None and mark.work.created_ns]
        if works:
            ended = min(work.created_ns + work.ran_ms * NS_PER_MS for work in works)
            found[rank] = max(work.created_ns for work in works), ended
    return found


def _precedes(one: dict[int, tuple[int, int]], other: dict[int, tuple[int, int]]) -> bool:
    """Return whether all ranks that two logs share issued their calls in the other one after time-outs in the first."""
    common = one.keys() & other.keys()
    return bool(common) and all(other[rank][0] > one[rank][1] for rank in common)
