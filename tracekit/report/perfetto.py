"""A finding as a trace of Perfetto: the conclusion, and its evidence on aligned clocks.

One track shows the finding, one each of its suspects, one the step that is shown; each rank shown has a track for each
kind of time. Arrows go from the longest wait of a rank to the suspect, at the moment when the wait ends.
"""

from collections.abc import Mapping
from typing import Any, Final

from tracekit.findings import SlowRankFinding
from tracekit.findings.picture import SlowRankPicture, Timeline, TimelineRow
from tracekit.findings.slowrank import Suspect
from tracekit.text import plain
from tracekit.thresholds.report import PERFETTO_SUSPECTS
from tracekit.units import NS_PER_MS

_FINDING, _SUSPECTS, _WINDOW, _WAITED, _OTHERS = 1, 2, 3, 4, 5
_SEQUENCE: Final = 1
_WAITS: Final = "waits on"


def slowrank_trace(finding: SlowRankFinding, picture: SlowRankPicture) -> bytes:
    """Return the finding and its step as a serialized `perfetto.protos.Trace`; times in ns from the step's begin."""
    trace, shown = _Trace(), picture.timeline
    lasts = _ns(finding.what_if.step_ms)
    if shown is not None:
        lasts = max((_ns(b + n) for row in shown.rows for b, n in _stretches(row)), default=lasts)
    trace.track(_FINDING, "finding")
    label = finding.verdict + (f": {finding.cause}" if finding.cause else "")
    prices = finding.what_if
    arguments = {
        "verdict": finding.verdict,
        "cause": finding.cause or "",
        "step_ms": prices.step_ms,
        "without_suspects_ms": prices.without_suspects_ms,
        "slowdown": prices.slowdown,
    }
    trace.slice(_FINDING, label, 0, lasts, arguments)
    if shown is not None:
        _step(trace, finding, shown, lasts)
    _suspects(trace, finding, lasts)
    return trace.serialized()


def _suspects(trace: "_Trace", finding: SlowRankFinding, lasts: int) -> None:
    """Add a track for each suspect, or candidate of an open answer, the costliest first, and name those left out."""
    named, role = finding.suspects or finding.candidates, "suspect" if finding.suspects else "candidate"
    left = len(named) - PERFETTO_SUSPECTS
    more = f", {left} more in the JSON" if left > 0 else ""
    trace.track(_SUSPECTS, f"{role}s: {len(named)}{more}")
    for suspect in named[:PERFETTO_SUSPECTS]:
        number = trace.next_number()
        trace.track(number, f"{role} rank {suspect.rank}", _SUSPECTS)
        trace.slice(number, f"rank {suspect.rank}: {suspect.cause}", 0, lasts, _evidence(suspect))


def _evidence(suspect: Suspect) -> dict[str, object]:
    """The price, confidence and host of a suspect, under their names in the JSON."""
    low, high = suspect.lost_ms_low, suspect.lost_ms_high
    arguments: dict[str, object] = {"rank": suspect.rank, "lost_ms_per_step": suspect.lost_ms_per_step}
    arguments |= {"confidence": suspect.confidence, "host": plain(suspect.host or "")}
    arguments |= {name: ms for name, ms in (("lost_ms_low", low), ("lost_ms_high", high)) if ms is not None}
    return arguments


def _step(trace: "_Trace", finding: SlowRankFinding, shown: Timeline, lasts: int) -> None:
    """Add the step that is shown: its window, its ranks, and which rank waited for which."""
    linked = (
        "clocks linked" if shown.clocks_linked else "clocks not linked: places of ranks are not comparable"
    )
    trace.track(_WINDOW, "evidence window")
    trace.slice(_WINDOW, f"step {shown.step}", 0, lasts, {"clocks": linked, "gaps_closed_ms": shown.least})
    named = {s.rank for s in finding.suspects}
    culprit = next((rank for rank in shown.ranks if rank in named), None) if shown.clocks_linked else None
    waits: list[tuple[int, int, int]] = []
    for rank in shown.ranks:
        parent = trace.next_number()
        trace.track(parent, f"rank {rank} ({'suspect' if rank in named else 'peer'})")
        for row in (r for r in shown.rows if r.rank == rank):
            victim = culprit is not None and rank not in named and row.kind.startswith(_WAITS)
            number = trace.next_number()
            trace.track(number, plain(row.kind), parent)
            longest = _row(trace, row, number, arrow=victim)
            if victim and longest is not None:
                waits.append((longest, rank, number))
    if culprit is not None:
        trace.track(_WAITED, f"waited for: rank {culprit}")
        for end, rank, flow in sorted(waits):
            trace.instant(_WAITED, f"longest wait of rank {rank} ends", end, flow)


def _row(trace: "_Trace", row: TimelineRow, track: int, *, arrow: bool) -> int | None:
    """Add a row's stretches; return the end of the longest, at which an arrow begins if one is wanted."""
    spans = [(_ns(b), max(_ns(b + n), _ns(b) + 1)) for b, n in _stretches(row)]
    longest = max(spans, key=lambda span: (span[1] - span[0], -span[0]), default=None)
    for begin, end in spans:
        flow = track if arrow and (begin, end) == longest else None
        trace.slice(track, plain(row.kind), begin, end, {}, flow=flow)
    return None if longest is None else longest[1]


def _stretches(row: TimelineRow) -> list[tuple[float, float]]:
    return list(zip(row.begin, row.length, strict=True))


def _ns(ms: float) -> int:
    return round(ms * NS_PER_MS)


class _Trace:
    """The packets of one sequence, with numbered tracks."""

    def __init__(self) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

        self._event, self._trace = protos.TrackEvent, protos.Trace()
        self._number = _OTHERS - 1

    def next_number(self) -> int:
        """Return an unused number for a track."""
        self._number += 1
        return self._number

    def track(self, number: int, name: str, parent: int | None = None) -> None:
        """Declare a track."""
        packet = self._packet()
        packet.track_descriptor.uuid = number
        packet.track_descriptor.name = name
        if parent is not None:
            packet.track_descriptor.parent_uuid = parent

    def slice(
        self,
        track: int,
        name: str,
        begin: int,
        end: int,
        details: Mapping[str, object],
        flow: int | None = None,
    ) -> None:
        """Add a slice; an arrow with the number `flow` begins at it."""
        event = self._on(track, self._event.TYPE_SLICE_BEGIN, begin)
        event.name = name
        for key, value in details.items():
            _annotate(event.debug_annotations.add(), key, value)
        if flow is not None:
            event.flow_ids.append(flow)
        self._on(track, self._event.TYPE_SLICE_END, end)

    def instant(self, track: int, name: str, at: int, flow: int) -> None:
        """Add an instant at which an arrow ends."""
        event = self._on(track, self._event.TYPE_INSTANT, at)
        event.name = name
        event.terminating_flow_ids.append(flow)

    def serialized(self) -> bytes:
        """Return the trace's bytes."""
        data: bytes = self._trace.SerializeToString()
        return data

    def _packet(self) -> Any:
        packet = self._trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet

    def _on(self, track: int, kind: int, at: int) -> Any:
        packet = self._packet()
        packet.timestamp = at
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        return packet.track_event


def _annotate(annotation: Any, key: str, value: object) -> None:
    annotation.name = key
    if isinstance(value, float):
        annotation.double_value = value
    elif isinstance(value, int):
        annotation.int_value = value
    else:
        annotation.string_value = str(value)
