"""Jobs of every generator and the samples: a folder of traces, and the truth in one form."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.accuracy.__main__ import HEALTHY_SEEDS, plan
from tests.generator import generate
from tests.localise import case as localise
from tests.localise.score import UNEVEN, accepted, begun
from tests.paired import other_evidence
from tests.shapes import case as shapes
from tests.shapes.draw import drawn_case

ROOT: Final = Path(__file__).resolve().parents[2]
SAMPLES: Final = ("data_imbalance", "demo_healthy", "demo_slow_tp", "healthy", "slow_compute", "slow_link")
COSTS_NOTHING: Final = 1.02  # a fault below this is not named: the threshold of the verdict


@dataclass(frozen=True)
class Truth:
    """What is known of a job, whichever generator made it.

    `culprits` are the ranks that cause the slowdown (empty: no rank is to blame), `accepted` those that may be first,
    `slowdown` the mean step with the fault over the mean without it. `recorded` says that a trace of a culprit is
    there, `uneven` that an imbalance is true without a culprit. `mesh` is what the user gives, or None. `steps` are
    each step's number in the traces and its time with the fault and without it, ns; empty where these are not known.
    """

    suite: str
    seed: int
    kind: str
    culprits: tuple[int, ...]
    accepted: tuple[int, ...]
    slowdown: float
    recorded: bool = True
    uneven: bool = False
    link: bool = False
    mesh: str | None = None
    steps: tuple[tuple[int, int, int], ...] = ()

    @property
    def key(self) -> str:
        """The name of the job, unique over all suites."""
        return f"{self.suite}-{self.seed}"

    def row(self) -> dict[str, object]:
        """The fields as JSON."""
        return {"key": self.key, **asdict(self)}


def localised(seed: int, folder: Path) -> Truth:
    """Write a job of `tests/localise` and return its truth."""
    case = localise.make(seed)
    localise.save(case, folder)
    told = begun(case)
    uneven = bool(case.job.documents or case.job.experts or case.kind in UNEVEN)
    recorded = not case.culprits or bool(set(case.culprits) & set(case.recorded))
    return Truth(
        "localise", seed, case.kind, case.culprits, tuple(sorted(accepted(case))), round(case.slowdown, 4),
        recorded, uneven, case.kind == "slow_link", told.mesh if case.told else None, case.steps,
    )  # fmt: skip


def shaped(seed: int, folder: Path) -> Truth:
    """Write a job of `tests/shapes` and return its truth."""
    made = shapes.make(drawn_case(seed))
    shapes.save(made, folder)
    case, slowdown = made.case, 1.0 + made.slowdown
    culprits = case.culprits if slowdown >= COSTS_NOTHING else ()
    recorded = not culprits or bool(set(culprits) & set(case.recorded))
    link = case.kind in {"slow_nic", "slow_nvlink", "nic_out", "flaky_nic", "slow_port"}
    return Truth(
        "shapes", seed, case.kind, culprits, culprits, round(slowdown, 4), recorded, case.uneven, link
    )  # fmt: skip


def generated(seed: int, folder: Path) -> Truth:
    """Write a job of `tests/generator` and return its truth."""
    kinds = dict(plan(1, seed, None) if seed < HEALTHY_SEEDS else plan(2, seed - HEALTHY_SEEDS, None))
    case = generate(seed, kind=kinds[seed])
    folder.mkdir(parents=True, exist_ok=True)
    case.write(folder)
    truth = case.truth
    suspects = tuple(sorted(truth.suspects)) if truth.verdict != "healthy" else ()
    uneven = truth.verdict == "imbalance"
    return Truth(
        "accuracy", seed, truth.kind, suspects, suspects, round(truth.slowdown, 4),
        uneven=uneven, link=truth.verdict == "slow_link",
    )  # fmt: skip


def sampled(number: int, folder: Path) -> Truth:
    """Link a sample of `sample_traces/` into `folder` and return its truth."""
    name = SAMPLES[number]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trace").symlink_to(ROOT / "sample_traces" / name / "trace", target_is_directory=True)
    told = json.loads((ROOT / "sample_traces" / name / "expected.json").read_text())
    ranks = tuple(sorted(s["rank"] for s in told.get("suspects", [])))
    uneven = told["verdict"] == "imbalance"
    return Truth("samples", number, name, ranks, ranks, 1.0, uneven=uneven, link=name == "slow_link")


def otherwise(number: int, folder: Path) -> Truth:
    """Write a job of `other_evidence` and return its truth."""
    kind, write = other_evidence.KINDS[number]
    culprits, slowdown, recorded, uneven, link = write(folder)
    culprits = culprits if slowdown >= COSTS_NOTHING else ()
    return Truth("other", number, kind, culprits, culprits, round(slowdown, 4), recorded, uneven, link)


SUITES: Final[dict[str, Callable[[int, Path], Truth]]] = {
    "samples": sampled,
    "accuracy": generated,
    "shapes": shaped,
    "localise": localised,
    "other": otherwise,
}
LOOKED_AT: Final[dict[str, tuple[int, ...]]] = {
    "samples": tuple(range(len(SAMPLES))),
    "accuracy": (*range(2, 40, 4), *range(5_002, 5_020, 4)),
    "shapes": (*range(8, 105, 16), *range(1015, 1060, 16), *range(2003, 2084, 16)),
    "localise": (*range(9997003, 9997120, 4), 9910194, 9940045, 9970010, 9985020, 9997433),
    "other": (),
}
"""Seeds that developers have looked at: a change is compared on them and never reported as a success by them."""


def make(suite: str, seed: int, folder: Path) -> Truth:
    """Write the traces of a job below `folder` once, and return its truth; later calls read it back."""
    mine = folder / f"{suite}-{seed}"
    told = mine / "truth.json"
    if told.is_file():
        return read(told)
    truth = SUITES[suite](seed, mine / "traces")
    told.write_text(json.dumps(truth.row()))
    return truth


def read(path: Path) -> Truth:
    """The truth that `make` wrote to `path`."""
    row = json.loads(path.read_text())
    row.pop("key")
    steps = tuple(tuple(step) for step in row.get("steps", ()))
    ranks = {name: tuple(row[name]) for name in ("culprits", "accepted")}
    return Truth(**{**row, **ranks, "steps": steps})


def asked(suites: Iterable[str], seeds: Sequence[int] | None) -> list[tuple[str, int]]:
    """(suite, seed) of all jobs to ask: those of `seeds`, or those looked at."""
    return [(suite, seed) for suite in suites for seed in (LOOKED_AT[suite] if seeds is None else seeds)]
