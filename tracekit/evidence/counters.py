"""Counters of GPUs and hosts, as signs beside an answer: they support a cause and name no rank.

Read are Prometheus' text (DCGM exporter, node_exporter; with times or without) and the tables of `nvidia-smi
--query-gpu --format=csv`. A GPU's clock is held against those of the other GPUs in the same files; pressure and steal
against the time between two readings. Used by `gather`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from tracekit.evidence.log_lines import clean_text
from tracekit.thresholds.evidence import (
    HOT_C,
    LOW_CLOCK,
    MAX_SAMPLES,
    MAX_SIGNS,
    PRESSURE_SHARE,
    SCARCE_MEMORY,
)

_SAMPLE: Final = re.compile(
    rb"([A-Za-z_]\w{0,120})(?:\{([^{}\n]{0,2000})\})? ([-+]?[\d.]{1,40}(?:[eE][-+]?\d{1,3})?)(?: (\d{1,19}))?\s*$"
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


class Sample(NamedTuple):
    """One value. host, part: the machine, and the GPU or CPU there; "" where the file names none. ms: 0 unknown."""

    name: str
    host: str
    part: str
    value: float
    ms: int


@dataclass(frozen=True, slots=True)
class CounterSign:
    """A counter that differs from what a sound machine shows, with host and time (ms since 1970, 0 unknown)."""

    host: str
    ms: int
    text: str


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
            for name, cell in row.items():
                if (number := _NUMBER.match(cell.strip())) and name not in {"index", "timestamp"}:
                    count += 1
                    yield Sample(name, host, part, float(number[0]), 0)


def _of_prometheus(found: re.Match[bytes], host: str) -> Sample:
    labels = {clean_text(k): clean_text(v) for k, v in _LABEL.findall(found[2] or b"")}
    where = next((labels[k] for k in ("Hostname", "hostname", "instance", "node") if labels.get(k)), host)
    part = " ".join(labels[k] for k in ("gpu", "cpu", "mode", "device") if k in labels)
    try:
        value = float(found[3])
    except ValueError:
        value = 0.0
    return Sample(found[1].decode(), where, part, value, int(found[4] or 0))


def signs_of(samples: Iterable[Sample]) -> tuple[CounterSign, ...]:
    """Return what the counters of all files show, at most MAX_SIGNS, in the order of hosts."""
    series: dict[tuple[str, str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        series[sample.name, sample.host, sample.part].append(sample)
    found = [*_gpu_signs(series), *_host_signs(series)]
    return tuple(sorted(found, key=lambda sign: (sign.host, sign.text))[:MAX_SIGNS])


_Series = dict[tuple[str, str, str], list[Sample]]
"""Values by name, host and part, in the order of the files."""


def _gpu_signs(series: _Series) -> Iterator[CounterSign]:
    """Yield errors of GPUs, clocks far below those of the others, and heat."""
    for (name, host, part), own in series.items():
        last = own[-1]
        if name in _ERRORS and last.value > 0:
            yield CounterSign(host, last.ms, f"GPU {part}: {_ERRORS[name]} {last.value:g}")
        if name in _HEAT and max(s.value for s in own) >= HOT_C:
            top = max(own, key=lambda s: s.value)
            yield CounterSign(host, top.ms, f"GPU {part}: {top.value:g} degrees Celsius")
    for name in _CLOCKS:
        clocks = {key: median(s.value for s in own) for key, own in series.items() if key[0] == name}
        usual = median(clocks.values()) if len(clocks) > 1 else 0.0
        for key, clock in clocks.items():
            if clock < LOW_CLOCK * usual:
                text = f"GPU {key[2]}: clock {clock:.0f} MHz, the others {usual:.0f} MHz"
                yield CounterSign(key[1], series[key][0].ms, text)


def _host_signs(series: _Series) -> Iterator[CounterSign]:
    """Yield pressure and steal over the time between the first and the last reading, and scarce memory."""
    for (name, host, part), own in series.items():
        seconds = (own[-1].ms - own[0].ms) / 1000
        share = (own[-1].value - own[0].value) / seconds if seconds > 0 else 0.0
        if (stall := _STALLS.match(name)) and share >= PRESSURE_SHARE:
            yield CounterSign(host, own[0].ms, f"{stall[1]} pressure: tasks waited {share:.0%} of the time")
        if name == "node_cpu_seconds_total" and part.endswith("steal") and share >= PRESSURE_SHARE:
            yield CounterSign(
                host, own[0].ms, f"CPU {part.split()[0]}: {share:.0%} taken by other guests (steal)"
            )
        if name == "node_memory_MemAvailable_bytes":
            total = series.get(("node_memory_MemTotal_bytes", host, part), own)[0].value
            least = min(own, key=lambda s: s.value)
            if least.value < SCARCE_MEMORY * total:
                yield CounterSign(host, least.ms, f"memory: {least.value / total:.1%} left")
