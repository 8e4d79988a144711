"""Events of a trace as text, with times as torch of a version writes them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

BASE_NS = 1711964646000000000
"""What newer traces leave out of each time."""
Place = int | str


@dataclass(frozen=True)
class Clock:
    """A host's clock: when the job began on it, how far it is off (µs), and how fast it drifts."""

    began_us: int
    offset_us: float
    drift: float
    nanoseconds: bool
    """Whether times have a fraction of three digits: since torch 2.4."""

    def local(self, at: float) -> float:
        """What this clock shows, from its begin of the job."""
        return at * (1 + self.drift) + self.offset_us

    def units(self, at: float) -> int:
        """What this clock shows from the job's begin on, in whole ns or µs."""
        return round(self.local(at) * 1000) if self.nanoseconds else int(self.local(at))

    def text(self, at: float) -> str:
        """A time."""
        if not self.nanoseconds:
            return str(self.units(at) + self.began_us)
        return fraction(self.units(at) + self.began_us * 1000 - BASE_NS)

    def lasting(self, begin: float, end: float) -> str:
        """A duration."""
        units = max(0, self.units(end) - self.units(begin))
        return fraction(units) if self.nanoseconds else str(units)


def fraction(nanoseconds: int) -> str:
    """So many µs with three digits behind the point."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03}"


@dataclass
class Events:
    """Events in the order in which they were told."""

    clock: Clock
    texts: list[str] = field(default_factory=list)

    def complete(
        self,
        category: str,
        name: str,
        place: tuple[Place, Place],
        begin: float,
        end: float,
        args: Mapping[str, object],
    ) -> None:
        """Add an event that lasts, at a process and thread (or device and stream)."""
        process, thread = map(json.dumps, place)
        self.texts.append(
            f'  {{\n    "ph": "X", "cat": "{category}", "name": {json.dumps(name)}, "pid": {process}, "tid": {thread},'
            f'\n    "ts": {self.clock.text(begin)}, "dur": {self.clock.lasting(begin, end)},'
            f'\n    "args": {{\n      {json.dumps(args)[1:-1]}\n    }}\n  }}'
        )

    def flow(self, number: int, place: tuple[Place, Place], at: float, *, ends: bool) -> None:
        """Add one end of the arrow from a launch to its kernel."""
        phase, enclosing = ("f", ', "bp": "e"') if ends else ("s", "")
        self.texts.append(
            f'  {{\n    "ph": "{phase}", "id": {number}, "pid": {place[0]}, "tid": {place[1]}, '
            f'"ts": {self.clock.text(at)},\n    "cat": "ac2g", "name": "ac2g"{enclosing}\n  }}'
        )

    def label(self, name: str, place: tuple[Place, Place], at: float, args: Mapping[str, object]) -> None:
        """Add a name or a place in the order of what is shown."""
        self.texts.append(
            f'  {{\n    "name": "{name}", "ph": "M", "ts": {self.clock.text(at)}, '
            f'"pid": {place[0]}, "tid": {place[1]},\n    "args": {{\n      {json.dumps(args)[1:-1]}\n    }}\n  }}'
        )

    def window(self, begin: float, end: float) -> None:
        """Add what tells when the profiler began and ended."""
        first, last = self.clock.text(begin), self.clock.text(end)
        self.texts += [
            (
                f'  {{\n    "ph": "X", "cat": "Trace", "ts": {first}, "dur": {self.clock.lasting(begin, end)},\n'
                '    "pid": "Spans", "tid": "PyTorch Profiler",\n    "name": "PyTorch Profiler (0)",\n'
                '    "args": {\n      "Op count": 0\n    }\n  }'
            ),
            (
                '  {\n    "name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g",\n'
                f'    "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": {first}\n  }}'
            ),
            (
                '  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n'
                f'    "pid": "", "tid": "", "ts": {last}\n  }}'
            ),
        ]
