"""Projected against executed step times on this machine: `python -m reftrain.simulate.executed`.

Real processes train with emulated computation (each segment sleeps its time), so that ranks overlap on few
cores, while schedule, messages, reductions and Python are real. Calibrated before: links by `calibrate`, and
what a kernel costs besides its sleep by a run of one rank. Source: the check of "Chimera" (SC'21), section
4.2, of its model against executed times, and of the (p, d) it picks.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reftrain.config import RunConfig
from reftrain.config_file import load
from reftrain.launcher import launch
from reftrain.simulate.calibrate import LinkFit, fit_link, measure_links
from reftrain.simulate.hardware import Device, Efficiency, Hardware, Host, Link
from reftrain.simulate.job import job_of_run
from reftrain.simulate.projection import project

LAYERS = 8
BACKWARD = 2 / 2.5
"""The emulated device takes twice the forward in attention's backward too, not 2.5 times as the cost model."""


@dataclass(frozen=True)
class Case:
    """One run: schedule, pipeline ranks p, data-parallel ranks d, micro-batches m a rank."""

    schedule: str
    p: int
    d: int
    m: int


@dataclass(frozen=True)
class Compared:
    """Seconds of a step, projected and executed."""

    case: Case
    projected: float
    executed: float

    @property
    def error(self) -> float:
        """Relative deviation of the projection."""
        return self.projected / self.executed - 1


def emulated_hardware(gflops: float, link: LinkFit, kernel_s: float) -> Hardware:
    """The emulated device with this machine's links."""
    way = Link(link.alpha * 1e6, 1e-9 / max(link.beta, 1e-12), 1.0)
    return Hardware(
        name="emulated",
        source="emulated computation, links measured",
        node_size=1024,
        device=Device(peak_tflops=gflops / 1e3, memory_gib=4.0, reserved_gib=0.1, memory_gb_s=1e6),
        efficiency=Efficiency(attention_backward=1 / BACKWARD),
        host=Host(launch_us=0.0, kernel_us=kernel_s * 1e6),
        node=way,
        network=way,
    )


def configure(case: Case, gflops: float, out: str, steps: int) -> RunConfig:
    """Configuration of a run: the tiny model, one sequence a micro-batch."""
    return load(
        None,
        {
            "model": {"preset": "tiny", "layers": LAYERS},
            "mesh": {"pp": case.p, "dp": case.d},
            "data": {"batch_size": case.m * case.d},
            "pipeline": {"schedule": case.schedule},
            "run": {"steps": steps, "compute": "emulated", "emulated_gflops": gflops, "out": out},
        },
    )


def execute(case: Case, gflops: float, steps: int) -> float:
    """Seconds of a step: median over the steps but the first of the slowest rank's."""
    with tempfile.TemporaryDirectory(prefix="reftrain-executed-") as folder:
        launch(configure(case, gflops, f"{folder}/run", steps), lambda _: [])
        slowest: dict[int, float] = {}
        for path in sorted(Path(folder, "run", "metrics").iterdir()):
            for line in path.read_text().splitlines():
                row = json.loads(line)
                slowest[row["step"]] = max(slowest.get(row["step"], 0.0), row["step_s"])
    return statistics.median(seconds for step, seconds in slowest.items() if step)


def projected(case: Case, gflops: float, link: LinkFit, kernel_s: float) -> float:
    """Seconds of a step by projection."""
    job = job_of_run(configure(case, gflops, "run", 1))
    return project(job, emulated_hardware(gflops, link, kernel_s)).step_s


def speed(layer_s: float) -> float:
    """GFLOP/s at which a layer's forward of one micro-batch takes about `layer_s` seconds."""
    link = LinkFit(0.0, 0.0, {})
    one = projected(Case("1f1b", 1, 1, 1), 1.0, link, 0.0) / (3 * LAYERS)
    return one / layer_s


def overhead(gflops: float, link: LinkFit, steps: int) -> float:
    """Seconds a kernel takes besides its sleep, from a run of one rank."""
    case = Case("1f1b", 1, 1, 2)
    without, with_one = (projected(case, gflops, link, kernel) for kernel in (0.0, 1e-3))
    return max(0.0, (execute(case, gflops, steps) - without) / (with_one - without) * 1e-3)


def compare(cases: Sequence[Case], layer_s: float, steps: int = 3) -> list[Compared]:
    """Calibrate, then project and execute all cases."""
    link = fit_link(measure_links(2))
    gflops = speed(layer_s)
    kernel_s = overhead(gflops, link, steps)
    return [Compared(c, projected(c, gflops, link, kernel_s), execute(c, gflops, steps)) for c in cases]


def grid(ranks: int, sequences: int) -> list[Case]:
    """Chimera with every even p that divides the ranks, and 1F1B and GPipe beside it."""
    cases = []
    for p in (n for n in range(2, ranks + 1) if ranks % n == 0 and LAYERS % n == 0):
        d = ranks // p
        m = sequences // d
        cases += [
            Case(name, p, d, m) for name in ("chimera", "1f1b", "gpipe") if name != "chimera" or m % 2 == 0
        ]
    return cases


def report(rows: Sequence[Compared]) -> str:
    """Table, and whether the mesh that the projection picks for Chimera is the fastest executed."""
    lines = [
        "| schedule | p | d | m | projected s | executed s | deviation |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {x.case.schedule} | {x.case.p} | {x.case.d} | {x.case.m} | {x.projected:.3f} | {x.executed:.3f} "
        f"| {100 * x.error:+.1f} % |"
        for x in rows
    ]
    chimera = [x for x in rows if x.case.schedule == "chimera"]
    if chimera:
        picked = min(chimera, key=lambda x: x.projected)
        slower = 100 * (picked.executed / min(x.executed for x in chimera) - 1)
        pick = f"p {picked.case.p}, d {picked.case.d}"
        lines += [
            "",
            f"Chimera: the projection picks {pick}, executed {slower:.1f} % slower than the fastest.",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description="Projected against executed step times.")
    parser.add_argument("--ranks", type=int, default=4, help="processes (default 4)")
    parser.add_argument("--sequences", type=int, default=8, help="sequences of a step (default 8)")
    parser.add_argument(
        "--layer-seconds", type=float, default=0.2, help="emulated forward of a layer (default 0.2)"
    )
    parser.add_argument("--steps", type=int, default=3, help="steps a run, the first not counted (default 3)")
    given = parser.parse_args()
    rows = compare(grid(given.ranks, given.sequences), given.layer_seconds, given.steps)
    print(report(rows), end="")  # noqa: T201 - the table is the answer


if __name__ == "__main__":
    main()
