"""What all ranks of a job share, and how it was recorded."""

from dataclasses import dataclass

from tests.shapes.fault import Fault


@dataclass(frozen=True)
class Setting:
    """What all ranks share; `clean` leaves the fault out and keeps every draw of chance."""

    seed: int
    world: int
    torch: tuple[int, int]
    noise: float = 0.01
    host_us: float = 9.0
    contention: float = 1.07
    fault: Fault | None = None
    clean: bool = False
    per_host: int = 8
    serial: bool = False
    """Whether collectives of one group follow each other on whatever streams, as NCCL lets them."""
    background: Fault | None = None
    """What happens without being anybody's fault: it is in the clean job too."""
    saved: tuple[int, ...] = ()
    """Steps after which the profiler saves what it recorded, for which it waits for the device."""


@dataclass(frozen=True)
class Habits:
    """How the job was recorded: what the profiler was asked for, and how files are named (`tb`, `titan`, `hf`)."""

    shapes: bool
    stack: bool
    host: bool
    packed: bool
    device_spans: bool
    names: str
    amd: bool = False
    """Whether the devices are AMD's: calls of HIP, kernels of RCCL."""
