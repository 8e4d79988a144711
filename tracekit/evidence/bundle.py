"""All evidence of one stuck job, by kind, as the readers give it; and what the kinds tell together of its size."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tracekit.dumps.load import DumpSet
from tracekit.evidence.log_file import LogFile
from tracekit.evidence.ras import RasReport
from tracekit.evidence.stack_places import RankStack
from tracekit.findings import Quality, Rejected


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
