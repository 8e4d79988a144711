"""What counters and kernel logs say of the cause that traces show: supports or excludes, joined by host, GPU and time.

A counter is believed only where it was read while the traces were recorded; between two readings it may be up to one
reading apart. Times without a zone are shifted where one zone alone lets them hold the traces. Nothing here names a
rank. Part of `triage`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from tracekit.causes import CAUSES
from tracekit.evidence.counters import (
    CounterSign,
    Kind,
    Sample,
    clocks_of,
    pressure_of,
    series_of,
    signs_of,
)
from tracekit.evidence.log_file import LogFile
from tracekit.findings.slowrank import SlowRankFinding, Suspect
from tracekit.findings.triage import Testimony
from tracekit.placement import same_host
from tracekit.store import Run
from tracekit.thresholds.evidence import FIRST_CALENDAR_S, ZONE_MS, ZONES
from tracekit.thresholds.hang import NAMED_IN_DOUBT
from tracekit.thresholds.slowrank import NAMED_SHARE
from tracekit.units import MS_PER_S, NS_PER_MS

_CLOCK_MECHANISMS: Final = frozenset({"clock", "throttling"})
_XIDS: Final[Mapping[int, Kind]] = {
    48: "device",
    63: "device",
    64: "device",
    74: "links",
    92: "device",
    94: "device",
    95: "device",
}
"""What errors of a GPU are of: its memory, or NVLink (NVIDIA, Xid errors); others are of programs."""
SOUND: Final = ", none beyond what sound machines show"
"""Words about values of counters that show nothing."""


@dataclass(frozen=True)
class Recorded:
    """When the traces were recorded (ms since 1970), and the GPU of each named rank; "" where it is not known."""

    begin: int
    end: int
    gpus: dict[int, str]

    @property
    def dated(self) -> bool:
        """Whether the clock of the traces is that of a calendar."""
        return self.begin >= FIRST_CALENDAR_S * MS_PER_S


def recorded(run: Run, finding: SlowRankFinding) -> Recorded | None:
    """Return when the named ranks were recorded and on which GPUs; None where no recorded rank is named."""
    traced = {record.rank for record in run.ranks}
    named = [suspect for suspect in _named(finding) if suspect.rank in traced]
    if not named:
        return None
    spans: list[tuple[int, int]] = []
    devices: dict[int, int | None] = {}
    hosts = {run.record(s.rank).host for s in named} - {None}
    asked = {s.rank for s in named} | {record.rank for record in run.ranks if record.host in hosts}
    for rank in sorted(asked):
        events = run.events(rank, ["ts", "device"])
        spans.append((events["ts"][0].as_py() // NS_PER_MS, events["ts"][-1].as_py() // NS_PER_MS))
        counts = events["device"].drop_null().value_counts().to_pylist()
        devices[rank] = max(((c["counts"], c["values"]) for c in counts), default=(0, None))[1]
    gpus = {s.rank: _own_gpu(run, s.rank, devices) for s in named}
    return Recorded(min(b for b, _ in spans), max(e for _, e in spans), gpus)


def _own_gpu(run: Run, rank: int, devices: Mapping[int, int | None]) -> str:
    """Return the number of the rank's GPU; "" where it has none, or another rank of its host shows the same number."""
    host = run.record(rank).host
    same = [device for other, device in devices.items() if run.record(other).host == host]
    return str(devices[rank]) if devices[rank] is not None and same.count(devices[rank]) == 1 else ""


def kernel_lines(logs: Iterable[LogFile]) -> list[CounterSign]:
    """Return the errors of GPUs that kernels log; a line without a host is of the host that the file is named after."""
    found = []
    for log in logs:
        for sign in log.waits.signs:
            if sign.kind == "xid":
                kind = _XIDS.get(int(sign.text.split()[1]), "")
                host = sign.host or Path(log.path).name.partition(".")[0]
                found.append(CounterSign(host, sign.ms, sign.text, kind=kind))
    return found


def _named(finding: SlowRankFinding) -> tuple[Suspect, ...]:
    return finding.suspects or finding.candidates


def counters_beside(
    samples: Sequence[Sample], lines: Sequence[CounterSign], answer: SlowRankFinding, when: Recorded | None
) -> tuple[Testimony, ...]:
    """Return what counters, and `lines` of kernels, add to an answer about slow ranks; empty without any.

    when: as `recorded` returns it; None where no rank is named, and then all is shown and supports nothing.
    """
    if not samples and not lines:
        return ()
    if when is None:
        shown = listed([*signs_of(samples), *lines])
        return (Testimony("counters", "silent", shown or f"{len(samples)} values{SOUND}"),)
    if not when.dated:
        why = "the traces bear no time of a calendar, so that counters cannot be joined to them"
        return (Testimony("counters", "silent", why),)
    kept, doubts = _of_that_time(samples, when)
    signs = [*signs_of(kept), *(_before(line, when) for line in lines if 0 < line.ms <= when.end)]
    others = [line for line in lines if not 0 < line.ms <= when.end]
    undated = [replace(line, text=f"{line.text} (not shown to be before the traces)") for line in others]
    return tuple(_testimonies(signs, undated, kept, doubts, answer, when))


def _testimonies(
    signs: Sequence[CounterSign],
    undated: Sequence[CounterSign],
    kept: Sequence[Sample],
    doubts: Sequence[str],
    answer: SlowRankFinding,
    when: Recorded,
) -> Iterator[Testimony]:
    """Yield what supports the cause, what excludes it, and the rest, which says nothing of it."""
    supports = [sign for sign in signs if any(_supports(sign, s, answer, when) for s in _named(answer))]
    excludes = [text for suspect in _named(answer) for text in _excluded(suspect, kept, answer, when)]
    rest = [sign for sign in signs if sign not in supports]
    if supports:
        yield Testimony("counters", "supports", listed(supports))
    if excludes:
        yield Testimony("counters", "excludes", "; ".join(dict.fromkeys(excludes)))
    others = "; ".join(filter(None, (listed([*rest, *undated]), *doubts)))
    if others or not (supports or excludes):
        calm = f"{len(kept)} values of the time of the traces{SOUND}"
        yield Testimony("counters", "silent", others or calm)


def _supports(sign: CounterSign, suspect: Suspect, answer: SlowRankFinding, when: Recorded) -> bool:
    """Whether a sign is of the suspect's host and GPU, and fits its cause; any cause where none is known."""
    cause = CAUSES[suspect.cause]
    fits = sign.kind in cause.counters or (not cause.signs and bool(sign.kind))
    device = when.gpus.get(suspect.rank, "")
    mine = not sign.gpu or (answer.on_gpu and device in ("", sign.gpu))
    return fits and mine and same_host(sign.host, suspect.host)


def _excluded(
    suspect: Suspect, kept: Sequence[Sample], answer: SlowRankFinding, when: Recorded
) -> Iterator[str]:
    """Yield why a counter excludes the suspect's cause or mechanism: it explains too little of the excess."""
    series, rank = series_of(kept), suspect.rank
    lost = suspect.lost_ms_per_step / answer.what_if.step_ms
    for host in sorted({sample.host for sample in kept if same_host(sample.host, suspect.host)}):
        waited = pressure_of(series, host, "cpu")
        if CAUSES[suspect.cause].takes_turns and waited is not None and waited < NAMED_SHARE * lost:
            share = f"tasks waited for a processor {waited:.1%} of the time"
            yield f"{host}: {share}, and rank {rank} costs {lost:.1%} of the step: not {suspect.cause}"
        if "device" in CAUSES[suspect.cause].counters and answer.on_gpu:
            clocks = clocks_of(series).items()
            mine = [
                of for of in clocks if of[0][0] == host and of[0][1].partition(" ")[0] == when.gpus.get(rank)
            ]
            yield from (f"{host}: {text}" for _, of in mine if (text := _clock_excluded(suspect, *of)))


def _clock_excluded(suspect: Suspect, clock: float, usual: float) -> str:
    """Return in words that the clock of the suspect's GPU (MHz) explains too little of its compute; "" where it may."""
    longer, name = _longer(suspect), suspect.mechanism.name if suspect.mechanism else "clock"
    slower = max(usual / clock - 1, 0.0) if clock > 0 else longer
    if name not in _CLOCK_MECHANISMS or slower >= NAMED_SHARE * longer:
        return ""
    clocks = f"its GPU's clock is {clock:.0f} MHz, and the others' {usual:.0f} MHz"
    return f"{clocks}, which explains {slower:.0%} of {longer:.0%} longer compute: not {name}"


def _longer(suspect: Suspect) -> float:
    """Return by what share the suspect's compute is longer than its peers'; 0 where that is not known."""
    rows = [e for e in suspect.evidence if e.quantity == "busy" and e.peers_median]
    return max((e.value / e.peers_median - 1 for e in rows if e.peers_median), default=0.0)


def _of_that_time(samples: Sequence[Sample], when: Recorded) -> tuple[list[Sample], list[str]]:
    """Return the values read while the traces were recorded, and in words why others are left out."""
    kept: list[Sample] = []
    undated, early_late, zoneless = set(), set(), set()
    for own in series_of(samples).values():
        dated = [sample for sample in own if sample.ms]
        if not dated:
            undated.add(own[0].host)
            continue
        gap = _gap(dated)
        shift = _shift(dated, gap, when) if dated[0].local else 0
        if shift is None:
            zoneless.add(own[0].host)
            continue
        moved = (sample._replace(ms=sample.ms + shift) for sample in dated)
        near = [sample for sample in moved if when.begin - gap <= sample.ms <= when.end + gap]
        kept += near
        if not near:
            early_late.add(f"{own[0].host} ({_clock(dated[0].ms)} to {_clock(dated[-1].ms)})")
    at = f"the traces were recorded {_clock(when.begin)} to {_clock(when.end)}"
    doubts = [
        f"{_some(hosts)}: {why}"
        for hosts, why in (
            (undated, "values without a time, which may be of any time"),
            (early_late, f"values of another time; {at}"),
            (zoneless, f"local times without a zone, which do not show whether they are of that time; {at}"),
        )
        if hosts
    ]
    return kept, doubts


def _gap(dated: Sequence[Sample]) -> int:
    """Return the usual time between two readings, ms; 0 of a single one."""
    return round(median([b.ms - a.ms for a, b in pairwise(dated)] or [0]))


def _shift(dated: Sequence[Sample], gap: int, when: Recorded) -> int | None:
    """Return what turns local times into UTC, ms: the one zone in which they hold the traces; None without one."""
    fits = [
        n * ZONE_MS
        for n in range(-ZONES, ZONES + 1)
        if dated[0].ms - gap <= when.begin - n * ZONE_MS and when.end - n * ZONE_MS <= dated[-1].ms + gap
    ]
    return fits[0] if len(fits) == 1 else 0 if 0 in fits else None


def listed(signs: Iterable[CounterSign]) -> str:
    """Return signs with host and time, at most NAMED_IN_DOUBT of them; empty without any."""
    return "; ".join(_sign(sign) for sign in list(signs)[:NAMED_IN_DOUBT])


def _sign(sign: CounterSign) -> str:
    at = f" at {_clock(sign.ms)}" if sign.ms else ""
    return f"{sign.host}{at}: {sign.text}"


def _before(line: CounterSign, when: Recorded) -> CounterSign:
    """Return a line of a kernel with how long before the traces it was written."""
    if line.ms >= when.begin:
        return line
    return replace(line, text=f"{line.text} ({_apart(when.begin - line.ms)} before the traces)")


def _apart(ms: int) -> str:
    seconds = ms / MS_PER_S
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _clock(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / MS_PER_S, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _some(hosts: Iterable[str]) -> str:
    named = sorted(hosts)
    more = len(named) - NAMED_IN_DOUBT
    return ", ".join(named[:NAMED_IN_DOUBT]) + (f" and {more} more" if more > 0 else "")
