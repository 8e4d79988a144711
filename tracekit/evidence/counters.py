"""Counters of GPUs and hosts, as signs beside an answer: they support a cause and name no rank.

Read are Prometheus' text (DCGM exporter, node_exporter; with times or without) and the tables of `nvidia-smi
--query-gpu --format=csv`. A GPU's clock is held against those of the other GPUs in the same files; pressure and steal
against the time between two readings. Each sign bears a kind, by which causes list it. Used by `gather`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Final, Literal, NamedTuple, cast

from tracekit.evidence.log_lines import clean_text
from tracekit.thresholds.evidence import (
    FIRST_CALENDAR_S,
    HOT_C,
    LAST_CALENDAR_MS,
    LOW_CLOCK,
    MAX_SAMPLES,
    MAX_SIGNS,
    PRESSURE_SHARE,
    SCARCE_MEMORY,
)
from tracekit.units import MS_PER_S

_SAMPLE: Final = re.compile(
    rb"([A-Za-z_]\w{0,120})(?:\{([^{}\n]{0,2000})\})? ([-+]?[\d.]{1,40}(?:[eE][-+]?\d{1,3})?)"
    rb"(?: (\d{1,19})(?:\.\d{1,9})?)?\s*$"
)
_LABEL: Final = re.compile(rb'(\w{1,60})="([^"]{0,200})"')
_NUMBER: Final = re.compile(rb"[-+]?\d{1,20}(?:\.\d{1,10})?")
_ERRORS: Final = {
    "DCGM_FI_DEV_XID_ERRORS": "Xid",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "uncorrectable memory errors",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "failed remaps of memory rows",
}
"""Counters that are 0 on a sound GPU."""
_CLOCKS: Final = (
    "DCGM_FI_DEV_SM_CLOCK",
    "clocks.sm",
    "clocks.current.sm",
    "clocks.gr",
    "clocks.current.graphics",
)
_HEAT: Final = ("DCGM_FI_DEV_GPU_TEMP", "temperature.gpu")
_STALLS: Final = re.compile(r"node_pressure_(cpu|memory|io)_(?:waiting|stalled)_seconds_total$")


_LINK_ERRORS: Final = re.compile(
    r"node_infiniband_(?:symbol_error|link_downed|link_error_recovery|port_(?:receive|transmit)_errors|"
    r"local_link_integrity_errors)_total$|node_network_(?:receive|transmit)_errs_total$"
)
_REPLAYS: Final = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"


Kind = Literal["", "device", "pcie", "links", "cpu waits", "memory waits", "io waits", "steal"]
"""What a sign is of: a GPU, its bus, links between machines, or tasks of a host that wait for a resource."""


class Sample(NamedTuple):
    """One value. host, part: the machine, and the GPU or CPU there; "" where the file names none. ms: 0 unknown.

    local: the time is of the machine's own zone, which the file does not name; `ms` takes it as UTC.
    """

    name: str
    host: str
    part: str
    value: float
    ms: int
    local: bool = False


@dataclass(frozen=True, slots=True)
class CounterSign:
    """A counter that differs from what a sound machine shows, with host and time (ms since 1970, 0 unknown).

    gpu: the number of the GPU on the host; "" where the sign is of the host, or names none. kind: of what it is, as
    causes of slowness list the kinds that support them; "" supports none.
    """

    host: str
    ms: int
    text: str
    gpu: str = ""
    kind: Kind = ""


def samples_of(lines: Iterable[bytes], host: str) -> Iterator[Sample]:
    """Yield at most MAX_SAMPLES values of a file; `host` is used where its lines name none."""
    columns: list[str] = []
    count = 0
    for line in lines:
        if count >= MAX_SAMPLES:
            return
        if found := _SAMPLE.match(line):
            count += 1
            yield _of_prometheus(found, host)
        elif b"," in line and (b"clocks" in line or b"temperature" in line):
            columns = [clean_text(cell.partition(b"[")[0]) for cell in line.split(b",")]
        elif columns and line.count(b",") == len(columns) - 1:
            row = dict(zip(columns, line.split(b","), strict=True))
            part = clean_text(row.get("index", row.get("uuid", b"")))
            ms = _local_ms(clean_text(row.get("timestamp", b"")))
            for name, cell in row.items():
                if (number := _NUMBER.match(cell.strip())) and name not in {"index", "timestamp"}:
                    count += 1
                    yield Sample(name, host, part, float(number[0]), ms, ms > 0)


def _local_ms(text: str) -> int:
    """Return a time of nvidia-smi (2026/11/18 04:00:00.000) as if it were UTC, ms since 1970; 0 for other text."""
    try:
        return int(datetime.strptime(text, "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp() * MS_PER_S)
    except (ValueError, OverflowError):
        return 0


def _of_prometheus(found: re.Match[bytes], host: str) -> Sample:
    labels = {clean_text(k): clean_text(v) for k, v in _LABEL.findall(found[2] or b"")}
    where = next((labels[k] for k in ("Hostname", "hostname", "instance", "node") if labels.get(k)), host)
    part = " ".join(labels[k] for k in ("gpu", "cpu", "mode", "device") if k in labels)
    try:
        value = float(found[3])
    except ValueError:
        value = 0.0
    return Sample(found[1].decode(), where, part, value, _prometheus_ms(int(found[4] or 0)))


def _prometheus_ms(written: int) -> int:
    """Return a time as Prometheus writes it (ms) or OpenMetrics (seconds) as ms since 1970; 0 beyond any calendar."""
    ms = written * MS_PER_S if FIRST_CALENDAR_S <= written < MS_PER_S * FIRST_CALENDAR_S else written
    return ms if ms < LAST_CALENDAR_MS else 0


def signs_of(samples: Iterable[Sample]) -> tuple[CounterSign, ...]:
    """Return what the counters of all files show, at most MAX_SIGNS, in the order of hosts."""
    series = series_of(samples)
    found = [*_gpu_signs(series), *_host_signs(series)]
    return tuple(sorted(found, key=lambda sign: (sign.host, sign.text))[:MAX_SIGNS])


_Series = dict[tuple[str, str, str], list[Sample]]
"""Values by name, host and part, in the order of time; those without a time as the files have them."""


def series_of(samples: Iterable[Sample]) -> _Series:
    """Return the values by name, host and part, in the order of time."""
    series: _Series = defaultdict(list)
    for sample in samples:
        series[sample.name, sample.host, sample.part].append(sample)
    for own in series.values():
        own.sort(key=lambda sample: sample.ms)
    return series


def _gpu_signs(series: _Series) -> Iterator[CounterSign]:
    """Yield errors of GPUs and of their links, clocks far below those of the others, and heat."""
    for (name, host, part), own in series.items():
        last, gpu = own[-1], part.partition(" ")[0]
        if name in _ERRORS and last.value > 0:
            yield CounterSign(host, last.ms, f"GPU {part}: {_ERRORS[name]} {last.value:g}", gpu, "device")
        if name in _HEAT and max(s.value for s in own) >= HOT_C:
            top = max(own, key=lambda s: s.value)
            yield CounterSign(host, top.ms, f"GPU {part}: {top.value:g} degrees Celsius", gpu, "device")
        if name == _REPLAYS and last.value > own[0].value:
            more = f"GPU {part}: {last.value - own[0].value:g} replays on PCIe"
            yield CounterSign(host, last.ms, more, gpu, "pcie")
    for (host, part), (clock, usual) in clocks_of(series).items():
        if clock < LOW_CLOCK * usual:
            text = f"GPU {part}: clock {clock:.0f} MHz, the others {usual:.0f} MHz"
            at = next(
                own[0].ms for key, own in series.items() if key[0] in _CLOCKS and key[1:] == (host, part)
            )
            yield CounterSign(host, at, text, part.partition(" ")[0], "device")


def clocks_of(series: _Series) -> dict[tuple[str, str], tuple[float, float]]:
    """Return by host and GPU its usual clock and that of all GPUs, MHz; nothing where no two GPUs can be compared."""
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for name in _CLOCKS:
        clocks = {key[1:]: median(s.value for s in own) for key, own in series.items() if key[0] == name}
        usual = median(clocks.values()) if len(clocks) > 1 else 0.0
        found |= {key: (clock, usual) for key, clock in clocks.items() if usual and key not in found}
    return found


def pressure_of(series: _Series, host: str, resource: str) -> float | None:
    """Return the share of the time that tasks of a host waited for `resource`; None without two readings."""
    name = f"node_pressure_{resource}_waiting_seconds_total"
    return next((_rate(own) for key, own in series.items() if key[:2] == (name, host)), None)


def _rate(own: list[Sample]) -> float | None:
    """Return the growth of a counter of seconds a second, from its first to its last reading; None without two."""
    seconds = (own[-1].ms - own[0].ms) / MS_PER_S
    return (own[-1].value - own[0].value) / seconds if seconds > 0 else None


def _host_signs(series: _Series) -> Iterator[CounterSign]:
    """Yield pressure and steal over the time between two readings, errors of links, and scarce memory."""
    for (name, host, part), own in series.items():
        share, at = _rate(own) or 0.0, own[0].ms
        if (stall := _STALLS.match(name)) and share >= PRESSURE_SHARE:
            text = f"{stall[1]} pressure: tasks waited {share:.0%} of the time"
            yield CounterSign(host, at, text, kind=cast("Kind", f"{stall[1]} waits"))
        if name == "node_cpu_seconds_total" and part.endswith("steal") and share >= PRESSURE_SHARE:
            text = f"CPU {part.split()[0]}: {share:.0%} taken by other guests (steal)"
            yield CounterSign(host, at, text, kind="steal")
        if _LINK_ERRORS.match(name) and own[-1].value > own[0].value:
            more = f"{name.removeprefix('node_')} {part}: {own[-1].value - own[0].value:g} more"
            yield CounterSign(host, own[-1].ms, more, kind="links")
        if name == "node_memory_MemAvailable_bytes":
            total = series.get(("node_memory_MemTotal_bytes", host, part), own)[0].value
            least = min(own, key=lambda s: s.value)
            if least.value < SCARCE_MEMORY * total:
                text = f"memory: {least.value / total:.1%} left"
                yield CounterSign(host, least.ms, text, kind="memory waits")
