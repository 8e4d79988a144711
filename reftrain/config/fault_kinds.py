"""Kinds of slow and stuck behaviour that can be planted into a run: one entry each, in the order of `reftrain faults`.

`fault_spec` reads a user's text by these entries, the hook class of the same name in `reftrain.faults` acts on it, and
`reftrain faults` lists them. A new kind is an entry here and a hook class there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class Field:
    """One number of a fault: meaning with unit, default, and least value."""

    meaning: str
    default: float
    least: float
    above: bool = False  # the value must exceed `least`, not only reach it


@dataclass(frozen=True)
class FaultKind:
    """A kind of planted fault.

    `behaviour` describes it in one sentence; `fields` are its numbers besides `rank` and `steps`; `hangs` marks a
    kind that ends the run and strikes once; `communicates` one that strikes at communication;
    `copies` one that strikes at copies between device and host; `rank_meaning`
    describes an optional `rank` (empty: the fault strikes one rank, which must be named); `repeats` marks one that
    strikes in each of its steps, because an elastic job goes on after it; `dies` one that ends the rank's process;
    `simulated` one that `reftrain simulate` alone plants.
    """

    name: str
    behaviour: str
    fields: Mapping[str, Field] = field(default_factory=dict)
    hangs: bool = False
    communicates: bool = False
    copies: bool = False
    rank_meaning: str = ""
    repeats: bool = False
    dies: bool = False
    simulated: bool = False

    @property
    def needs_rank(self) -> bool:
        """Whether the user must name the rank."""
        return not self.rank_meaning


_ALL_RANKS: Final = "the only rank that it strikes; left out: all ranks alike"
_FACTOR: Final = Field("multiplies the rank's own compute time", 1.5, 1.0, above=True)


def _positive(meaning: str, default: float) -> Field:
    return Field(meaning, default, 0.0, above=True)


def _hang(name: str, behaviour: str, *, dies: bool = False, repeats: bool = False) -> FaultKind:
    return FaultKind(name, behaviour, hangs=True, communicates=True, dies=dies, repeats=repeats)


_ALL: Final = (
    FaultKind("slow_compute", "the rank's own computing takes `factor` times as long", {"factor": _FACTOR}),
    FaultKind(
        "launch_bound",
        "the rank's host waits around each operator",
        {"delay_us": _positive("host time added before each operator, microseconds", 200.0)},
    ),
    FaultKind(
        "pauses",
        "the rank's process stops now and then, as for garbage collection",
        {
            "pause_ms": _positive("length of a pause, milliseconds", 50.0),
            "every": Field("one pause each so many compute segments", 8.0, 1.0),
        },
    ),
    FaultKind(
        "late_data",
        "the rank's data loader is late",
        {"delay_ms": _positive("time by which each batch is late, milliseconds", 50.0)},
    ),
    FaultKind(
        "slow_link",
        "the rank's messages and collectives are delayed, its computing is not",
        {"delay_ms": _positive("milliseconds added to each communication call", 5.0)},
        communicates=True,
    ),
    FaultKind(
        "slow_host_link",
        "the rank's copies between device and host are delayed, where the optimizer is offloaded",
        {"delay_ms": _positive("milliseconds added to each copy", 20.0)},
        copies=True,
    ),
    FaultKind(
        "slow_send",
        "the rank's messages to ranks of other hosts are delayed, received ones are not",
        {"delay_ms": _positive("milliseconds added to each message", 5.0)},
        simulated=True,
    ),
    FaultKind(
        "slow_rail",
        "transfers between hosts are delayed where a card with the number of the rank's card takes part",
        {"delay_ms": _positive("milliseconds added to each transfer", 5.0)},
        simulated=True,
    ),
    FaultKind(
        "slow_switch",
        "transfers between hosts are delayed where a host at the switch of the rank's host takes part",
        {
            "delay_ms": _positive("milliseconds added to each transfer", 5.0),
            "hosts": Field("neighbouring hosts at each switch", 2.0, 1.0),
        },
        simulated=True,
    ),
    FaultKind(
        "doc_imbalance",
        "some sequences hold longer documents, so that their ranks have more attention to compute",
        {"factor": Field("multiplies the attention pairs of the affected sequences", 3.0, 1.0, above=True)},
        rank_meaning="a rank of the data-parallel replica that gets them; left out: another replica each step",
    ),
    FaultKind(
        "long_stage",
        "all ranks of a pipeline stage compute `factor` times as long",
        {"factor": _FACTOR},
        rank_meaning="a rank of the stage; left out: the last stage",
    ),
    FaultKind(
        "throttle",
        "the rank's device gets hotter and slower: its computing takes longer from step to step, up to `factor` times",
        {
            "factor": _FACTOR,
            "rise_s": _positive("seconds from the first struck step until the factor is reached", 10.0),
        },
    ),
    FaultKind(
        "clock_swing",
        "the clock swings with the day: computing takes longer and shorter again, by up to `size`",
        {
            "size": _positive("share by which computing takes longer at the lowest clock", 0.02),
            "period_s": _positive("seconds from one highest clock to the next", 86_400.0),
        },
        rank_meaning=_ALL_RANKS,
    ),
    FaultKind(
        "power_swing",
        "power is limited after all ranks have waited at once: each computes `factor` times as long at first",
        {
            "factor": Field("multiplies the rank's own compute time", 1.2, 1.0, above=True),
            "ramp_ms": _positive(
                "milliseconds of each step's compute, without the fault, that take longer", 100.0
            ),
        },
        rank_meaning=_ALL_RANKS,
    ),
    FaultKind(
        "allocator_retries",
        "the rank's allocator gives its blocks back now and then, which waits for the device, and asks for new ones",
        {
            "retry_ms": _positive("length of the calls beyond the wait for the device, milliseconds", 20.0),
            "every": Field("once each so many compute segments", 8.0, 1.0),
        },
        simulated=True,
    ),
    FaultKind(
        "cpu_contention",
        "the rank's host shares its core: other processes run after each time slice of it",
        {
            "wait_ms": _positive("time for which the others run, milliseconds", 6.0),
            "slice_ms": _positive("time for which the rank's host runs between, milliseconds", 3.0),
        },
        simulated=True,
    ),
    FaultKind(
        "checkpoint",
        "the rank's host saves a checkpoint at the end of a step",
        {"save_ms": _positive("time to save, milliseconds", 500.0)},
        rank_meaning=_ALL_RANKS,
        simulated=True,
    ),
    FaultKind(
        "evaluation",
        "the rank evaluates at the end of a step: its device runs forwards that the other steps lack",
        {"evaluate_ms": _positive("compute of the evaluation, milliseconds", 500.0)},
        rank_meaning=_ALL_RANKS,
        simulated=True,
    ),
    _hang("skip_collective", "the rank leaves a communication out and goes on"),
    _hang("host_stall", "the rank never comes to a communication: asleep on the host"),
    _hang("hold_gil", "the rank never comes to a communication: a library call holds the interpreter's lock"),
    _hang("deadlock", "the rank never comes to a communication: it waits for a lock that it holds itself"),
    _hang("stuck_io", "the rank never comes to a communication: it reads what never arrives"),
    _hang(
        "stop", "the rank's process is stopped before a communication, as by a debugger or a frozen container"
    ),
    _hang("wrong_size", "the rank makes a communication with another size than its peers"),
    _hang("crash", "the rank is killed before a communication", dies=True),
    _hang(
        "out_of_memory", "the rank runs out of memory before a communication, and its program ends", dies=True
    ),
    _hang("leave", "the rank's program ends before a communication without an error", dies=True),
    _hang(
        "kill",
        "the rank is killed in each of its steps, once a step however often an elastic job repeats it",
        dies=True,
        repeats=True,
    ),
)

FAULT_KINDS: Final[Mapping[str, FaultKind]] = MappingProxyType({kind.name: kind for kind in _ALL})
"""All kinds by name."""

HANGS: Final = frozenset(kind.name for kind in _ALL if kind.hangs)
"""Names of the kinds that end a run."""
