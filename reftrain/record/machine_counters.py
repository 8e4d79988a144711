"""Counters of this machine in the text form of Prometheus, named as node_exporter names them, each with its time.

Read from /proc; what a machine does not have is left out. Used by `job_log`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MODES: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""The columns of /proc/stat."""
_MEMORY: Final = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")


def counters(now: float) -> str:
    """Return the counters of this moment (seconds since 1970), a line each."""
    rows = [f"{name} {value:g} {now * 1e3:.0f}\n" for name, value in _samples()]
    return "# TYPE node_cpu_seconds_total counter\n" + "".join(rows)


def _samples() -> Iterator[tuple[str, float]]:
    """Yield the name with its labels, and the value, of each counter."""
    ticks = os.sysconf("SC_CLK_TCK")
    for line in _lines("/proc/stat"):
        name, *values = line.split()
        if name.startswith("cpu") and name != "cpu":
            for mode, value in zip(_MODES, values, strict=False):
                yield f'node_cpu_seconds_total{{cpu="{name[3:]}",mode="{mode}"}}', int(value) / ticks
    for line in _lines("/proc/loadavg"):
        yield "node_load1", float(line.split()[0])
    for line in _lines("/proc/meminfo"):
        name, _, value = line.partition(":")
        if name in _MEMORY:
            yield f"node_memory_{name}_bytes", float(value.split()[0]) * 1024
    for kind in ("cpu", "memory", "io"):
        for line in _lines(f"/proc/pressure/{kind}"):
            which, *fields = line.split()
            total = next((field[6:] for field in fields if field.startswith("total=")), None)
            if total is not None:
                word = "waiting" if which == "some" else "stalled"
                yield f"node_pressure_{kind}_{word}_seconds_total", int(total) / 1e6


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
