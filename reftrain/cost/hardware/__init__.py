"""A machine as numbers from one TOML file: devices, links, host, and the share of each peak that is reached.

Every cost of the simulator and the planner is computed from these constants and the shapes of the job. The files
beside this module describe known machines, each number with its source; `calibrate` writes such a file for the machine
it runs on. A file is data: unknown or missing fields are refused by name.
"""

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from reftrain.config.fields import setting
from reftrain.errors import ConfigError
from reftrain.thresholds import LARGEST_HARDWARE_FILE, LARGEST_NUMBER, MOST_DEVICES, SMALLEST_CONSTANT
from tracekit.small_files import read_small

GIB: Final = 1 << 30


@dataclass(frozen=True)
class Device:
    """One accelerator, or one process' share of a CPU."""

    peak_tflops: float = setting(0.0, "dense 16-bit peak in TFLOP/s")
    memory_gib: float = setting(0.0, "memory in GiB")
    reserved_gib: float = setting(
        0.0, "memory that tensors cannot have: context, communication, fragments, GiB"
    )
    memory_gb_s: float = setting(0.0, "peak memory bandwidth in GB/s")
    units: float = setting(0.0, "processors that each compute a tile at a time; 0 ignores waves of tiles")
    tile_rows: float = setting(256.0, "rows of a matrix product's tile")
    tile_columns: float = setting(128.0, "columns of a matrix product's tile")


@dataclass(frozen=True)
class Efficiency:
    """Shares of a peak that real kernels reach."""

    matmul: float = setting(1.0, "of the peak, matrix products")
    attention_forward: float = setting(1.0, "of the peak, the attention core's forward")
    attention_backward: float = setting(1.0, "of the peak, the attention core's backward")
    memory: float = setting(1.0, "of the memory bandwidth, element-wise kernels")
    overlap: float = setting(0.0, "of a hidden transfer's time by which computation beside it is delayed")


@dataclass(frozen=True)
class Host:
    """The processor that launches kernels."""

    launch_us: float = setting(0.0, "time of the host to launch a kernel, microseconds")
    kernel_us: float = setting(0.0, "time of the device lost at each kernel's start and end, microseconds")


@dataclass(frozen=True)
class Link:
    """One device's way to others, one direction."""

    latency_us: float = setting(
        0.0, "time of a step of a collective, or of a message without bytes, microseconds"
    )
    gb_s: float = setting(1.0, "peak bandwidth in GB/s")
    efficiency: float = setting(1.0, "share of the bandwidth that large transfers reach")

    @property
    def latency_s(self) -> float:
        """Alpha, seconds."""
        return self.latency_us * 1e-6

    @property
    def bytes_per_s(self) -> float:
        """1 / beta, bytes a second."""
        return self.gb_s * 1e9 * self.efficiency


@dataclass(frozen=True)
class HostLink(Link):
    """One device's way to the host's memory, one direction, and its share of that memory's bandwidth."""

    gb_s: float = setting(0.0, "peak bandwidth in GB/s; 0: not described")
    memory_gb_s: float = setting(0.0, "host memory bandwidth a device's process can have, GB/s")


@dataclass(frozen=True)
class Operations:
    """Factors by which operations take longer than latency and bandwidth say: a library's algorithms, measured."""

    message: float = setting(1.0, "times alpha + bytes · beta, a message to a neighbour")
    all_gather: float = setting(1.0, "times a ring's, all-gather")
    reduce_scatter: float = setting(1.0, "times a ring's, reduce-scatter")
    all_reduce: float = setting(1.0, "times the model's, all-reduce")


@dataclass(frozen=True)
class Hardware:
    """A cluster of equal nodes of equal devices."""

    name: str
    source: str
    node_size: int
    device: Device
    efficiency: Efficiency
    host: Host
    node: Link
    network: Link
    operations: Operations = dataclasses.field(default_factory=Operations)
    host_link: HostLink = dataclasses.field(default_factory=HostLink)

    @property
    def flops_per_s(self) -> float:
        """Peak of a device, FLOP/s."""
        return self.device.peak_tflops * 1e12

    @property
    def usable_bytes(self) -> float:
        """Memory of a device that tensors can have."""
        return (self.device.memory_gib - self.device.reserved_gib) * GIB

    def constants(self) -> dict[str, float]:
        """All numbers but the node's size, by `table.field`; for operations only values that differ from the model.

        Those of the host link are left out: they price an offloaded optimizer alone.
        """
        return {
            name: value
            for name, value in _numbers(self)
            if value
            and not (name.startswith("operations.") and value == 1.0)
            and not name.startswith("host_link.")
        }

    def with_constant(self, name: str, value: float) -> "Hardware":
        """Return the same hardware with one constant changed; raises `KeyError` when there is none such."""
        table, _, field = name.partition(".")
        if name not in dict(_numbers(self)):
            raise KeyError(name)
        changed = dataclasses.replace(getattr(self, table), **{field: value})
        return dataclasses.replace(self, **{table: changed})


TABLES: Final[Mapping[str, type[Any]]] = {
    "device": Device,
    "efficiency": Efficiency,
    "host": Host,
    "node": Link,
    "network": Link,
    "operations": Operations,
    "host_link": HostLink,
}
OPTIONAL: Final = frozenset({"operations", "host_link"})


def _numbers(hardware: Hardware) -> Iterator[tuple[str, float]]:
    for table in TABLES:
        part = getattr(hardware, table)
        for field in dataclasses.fields(part):
            yield f"{table}.{field.name}", float(getattr(part, field.name))


def known_hardware() -> list[str]:
    """Return the names of the files that come with the package."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in resources.files(__name__).iterdir()
        if entry.name.endswith(".toml")
    )


def load_hardware(name: str) -> Hardware:
    """Return a known machine by name, or the machine in a .toml file.

    Raises `ConfigError` naming the file, the field and the remedy.
    """
    if name in known_hardware():
        text = (resources.files(__name__) / f"{name}.toml").read_text("utf-8")
        return parse_hardware(text, f"{name}.toml")
    path = Path(name)
    if path.suffix != ".toml" or not path.exists():
        known = ", ".join(known_hardware())
        raise ConfigError(
            "--hardware", f"{name!r} is not a known machine", f"choose {known}, or give a .toml file"
        )
    try:
        return parse_hardware(read_small(path, LARGEST_HARDWARE_FILE).decode(), name)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "--hardware", f"{name} cannot be read: {error}", "give a readable text file"
        ) from error


def parse_hardware(text: str, where: str) -> Hardware:
    """Return the machine in the TOML text of a hardware file; `where` names it in errors."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            "--hardware", f"{where} is not TOML: {str(error)[:200]}", "correct the file"
        ) from error
    expected = {"name", "source", "node_size", *TABLES}
    for key in data:
        if key not in expected:
            raise ConfigError(
                "--hardware", f"{where}: unknown {key!r}", f"choose among {', '.join(sorted(expected))}"
            )
    for key in sorted(expected - OPTIONAL):
        if key not in data:
            raise ConfigError("--hardware", f"{where}: {key!r} is missing", "add it")
    size = data["node_size"]
    if type(size) is not int or not 0 < size <= MOST_DEVICES:
        shown = str(size)[:40]
        raise ConfigError(
            "--hardware", f"{where}: node_size {shown!r} is not a count", f"give 1 to {MOST_DEVICES} devices"
        )
    parts = {table: _table(data.get(table, {}), table, kind, where) for table, kind in TABLES.items()}
    hardware = Hardware(str(data["name"]), str(data["source"]), size, **parts)
    _check(hardware, where)
    return hardware


def _table(value: object, table: str, kind: type[Any], where: str) -> Any:
    if not isinstance(value, dict):
        raise ConfigError("--hardware", f"{where}: {table!r} is not a table", f"write [{table}]")
    fields = {field.name for field in dataclasses.fields(kind)}
    for name, number in value.items():
        if name not in fields:
            problem = f"{where}: unknown field {table}.{name}"
            raise ConfigError("--hardware", problem, f"choose among {', '.join(sorted(fields))}")
        if (
            isinstance(number, bool)
            or not isinstance(number, int | float)
            or not abs(number) < LARGEST_NUMBER
        ):
            raise ConfigError(
                "--hardware",
                f"{where}: {table}.{name} {str(number)[:40]!r} is not a number",
                f"give 0 to {LARGEST_NUMBER:g}",
            )
        if number < 0:
            raise ConfigError("--hardware", f"{where}: {table}.{name} is below 0", "give 0 or more")
    return kind(**{name: float(number) for name, number in value.items()})


def _check(hardware: Hardware, where: str) -> None:
    positive = ["device.peak_tflops", "device.memory_gib", "device.memory_gb_s", "device.tile_rows"]
    positive += ["device.tile_columns", "efficiency.matmul", "efficiency.attention_forward"]
    positive += ["efficiency.attention_backward", "efficiency.memory", "node.gb_s", "node.efficiency"]
    positive += ["network.gb_s", "network.efficiency"]
    numbers = dict(_numbers(hardware))
    if hardware.host_link != HostLink():
        positive += ["host_link.gb_s", "host_link.efficiency", "host_link.memory_gb_s"]
    for name in positive:
        if numbers[name] < SMALLEST_CONSTANT:
            raise ConfigError(
                "--hardware", f"{where}: {name} is below {SMALLEST_CONSTANT:g}", "give what the machine has"
            )
    if 0 < hardware.device.units < 1:
        problem = f"{where}: device.units is below 1"
        raise ConfigError(
            "--hardware", problem, "give the number of processors, or 0 to ignore waves of tiles"
        )
    if hardware.usable_bytes <= 0:
        raise ConfigError("--hardware", f"{where}: device.reserved_gib leaves no memory", "reserve less")
