"""Interruptions of a long job: the published table by cause, and a drawn history with its rates.

Source: "The Llama 3 Herd of Models", table 5: 466 interruptions of 16 384 GPUs in 54 days, 419 of them unexpected.
Which causes make ranks hang, and which take the host away, is not published; both are assumptions of this file.
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

Shows = Literal["stops", "hangs", "planned"]
"""`stops`: a process ends, which its launcher sees; `hangs`: ranks wait until a watchdog ends them; `planned`."""
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
Times = np.ndarray[tuple[int], np.dtype[np.float64]]

GPUS: Final = 16384
DAYS: Final = 54.0


@dataclass(frozen=True)
class Cause:
    """One row of the table; `replaces` says that the host leaves the job for a repair."""

    name: str
    count: int
    shows: Shows = "stops"
    replaces: bool = True


CAUSES: Final = (
    Cause("faulty GPU", 148),
    Cause("GPU HBM3 memory", 72),
    Cause("software bug", 54, replaces=False),
    Cause("network switch or cable", 35, "hangs", replaces=False),
    Cause("unplanned host maintenance", 32),
    Cause("GPU SRAM memory", 19),
    Cause("GPU system processor", 17),
    Cause("NIC", 7, "hangs"),
    Cause("NCCL watchdog timeout", 7, "hangs", replaces=False),
    Cause("silent data corruption", 6),
    Cause("GPU thermal interface and sensor", 6),
    Cause("SSD", 3),
    Cause("power supply", 3),
    Cause("server chassis", 2),
    Cause("IO expansion board", 2),
    Cause("dependency", 2, replaces=False),
    Cause("CPU", 2),
    Cause("system memory", 2),
    Cause("planned", 47, "planned", replaces=False),
)
"""All causes; their counts add up to 466."""
COUNT: Final = sum(cause.count for cause in CAUSES)


def hours_between(gpus: int) -> float:
    """Return the mean hours between interruptions of a job of so many GPUs, at the published rate a GPU."""
    return DAYS * 24.0 / COUNT * GPUS / gpus


@dataclass(frozen=True)
class History:
    """Interruptions in their order: gaps in units of their mean, and what each does; a job uses as many as it meets."""

    gaps: Times
    hangs: Flags
    planned: Flags
    replaces: Flags


def draw(count: int, seed: int) -> History:
    """Return `count` interruptions: exponential gaps, causes in the table's shares."""
    rng = np.random.default_rng(seed)
    shares = np.array([cause.count for cause in CAUSES], dtype=np.float64) / COUNT
    rows = rng.choice(len(CAUSES), size=count, p=shares)
    shows = np.array([cause.shows for cause in CAUSES])[rows]
    replaces = np.array([cause.replaces for cause in CAUSES], dtype=np.bool_)[rows]
    return History(rng.exponential(1.0, size=count), shows == "hangs", shows == "planned", replaces)
