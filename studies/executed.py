"""Projected against executed step times on this machine: `python -m studies.executed`.

Real processes train with emulated computation (each segment sleeps its time), so that ranks overlap on few cores, while
schedule, messages, reductions and Python are real. Links are calibrated first by `calibrate`, and the time of a kernel
beside its sleep by a run of one rank. With `--real` two ranks compute for real. Their speed is fitted to a run of one
rank beside another such run, and the row says so: two processes that compute at once share caches and memory, and each
is slower than one alone. Source: the comparison of the model of "Chimera" (SC'21), section 4.2, with executed times.
"""

import argparse
import json
import multiprocessing as mp
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from reftrain.config.file import load
from reftrain.config.run import RunConfig
from reftrain.cost.calibrate import LinkFit, Speed, fit_link, measure_links, measure_speed
from reftrain.cost.hardware import Device, Efficiency, Hardware, Host, Link, Operations
from reftrain.cost.job import job_of_run
from reftrain.job.launcher import launch
from reftrain.papers.bisection import bisect
from reftrain.plan.projection import project
from reftrain.thresholds import CARRIED_OVERLAP

LAYERS = 8
SCHEDULES = ("chimera", "1f1b", "gpipe")
FITTED = "fitted on"
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


def real_hardware(speed: Speed, link: LinkFit, share: float) -> Hardware:
    """This machine's processes, all of whose measured speeds are multiplied by `share`."""
    way = Link(link.alpha * 1e6, 1e-9 / max(link.beta, 1e-12), 1.0)
    of_matmul = speed.attention_forward / speed.matmul, speed.attention_backward / speed.matmul
    return Hardware(
        name="this-machine",
        source="measured, one share fitted",
        node_size=1024,
        device=Device(
            peak_tflops=share * speed.matmul / 1e12,
            memory_gib=4.0,
            reserved_gib=0.1,
            memory_gb_s=share * speed.memory / 1e9,
        ),
        efficiency=Efficiency(
            attention_forward=of_matmul[0], attention_backward=of_matmul[1], overlap=CARRIED_OVERLAP
        ),
        host=Host(launch_us=0.0, kernel_us=speed.kernel_s * 1e6),
        node=way,
        network=way,
        operations=Operations(**link.ratios),
    )


def configure(case: Case, gflops: float, out: str, steps: int) -> RunConfig:
    """Configuration of a run of one-sequence micro-batches: the tiny model emulated, or the small one for real."""
    emulated = {"compute": "emulated", "emulated_gflops": gflops} if gflops else {}
    return load(
        None,
        {
            "model": {"preset": "tiny" if gflops else "small", "layers": LAYERS},
            "mesh": {"pp": case.p, "dp": case.d},
            "data": {"batch_size": case.m * case.d},
            "pipeline": {"schedule": case.schedule},
            "numerics": {"policy": "bf16" if gflops else "fp32"},
            "run": {"steps": steps, "out": out, **emulated},
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


def execute_side_by_side(case: Case, steps: int, runs: int = 2) -> float:
    """Seconds of a step of `case` computed for real while `runs` - 1 other such runs compute, without messages."""
    with ProcessPoolExecutor(runs, mp.get_context("spawn")) as pool:
        return statistics.mean(pool.map(execute, [case] * runs, [0.0] * runs, [steps] * runs))


def projected(case: Case, gflops: float, hardware: Hardware) -> float:
    """Seconds of a step by projection."""
    return project(job_of_run(configure(case, gflops, "run", 1)), hardware).step_s


def speed(layer_s: float) -> float:
    """GFLOP/s at which a layer's forward of one micro-batch takes about `layer_s` seconds."""
    hardware = emulated_hardware(1.0, LinkFit(0.0, 0.0, {}), 0.0)
    return projected(Case("1f1b", 1, 1, 1), 1.0, hardware) / (3 * LAYERS) / layer_s


def overhead(gflops: float, link: LinkFit, steps: int) -> float:
    """Seconds a kernel takes besides its sleep, from a run of one rank."""
    case = Case("1f1b", 1, 1, 2)
    without, with_one = (
        projected(case, gflops, emulated_hardware(gflops, link, kernel)) for kernel in (0.0, 1e-3)
    )
    return max(0.0, (execute(case, gflops, steps) - without) / (with_one - without) * 1e-3)


def compare(cases: Sequence[Case], layer_s: float, steps: int = 3) -> list[Compared]:
    """Calibrate emulated devices, then project and execute all cases."""
    link = fit_link(measure_links(2))
    gflops = speed(layer_s)
    hardware = emulated_hardware(gflops, link, overhead(gflops, link, steps))
    return [Compared(c, projected(c, gflops, hardware), execute(c, gflops, steps)) for c in cases]


def compare_real(micro_batches: int, steps: int = 3) -> list[Compared]:
    """Two ranks that compute for real; the share of their measured speed is fitted to two runs of one rank at once."""
    link, measured = fit_link(measure_links(2)), measure_speed()
    alone = Case("1f1b", 1, 1, micro_batches)
    executed = execute_side_by_side(alone, steps)

    def slower(share: float) -> bool:
        return projected(alone, 0.0, real_hardware(measured, link, share)) < executed

    hardware = real_hardware(measured, link, bisect(slower, 1e-3, 10.0, steps=40))
    rows = [Compared(replace(alone, schedule=FITTED), projected(alone, 0.0, hardware), executed)]
    cases = [Case("1f1b", 1, 2, micro_batches // 2), *(Case(name, 2, 1, micro_batches) for name in SCHEDULES)]
    return rows + [Compared(c, projected(c, 0.0, hardware), execute(c, 0.0, steps)) for c in cases]


def grid(ranks: int, sequences: int) -> list[Case]:
    """Chimera with every even p that divides the ranks, and 1F1B and GPipe beside it."""
    cases = []
    for p in (n for n in range(2, ranks + 1) if ranks % n == 0 and LAYERS % n == 0):
        d = ranks // p
        m = sequences // d
        cases += [Case(name, p, d, m) for name in SCHEDULES if name != "chimera" or m % 2 == 0]
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
    parser.add_argument("--ranks", type=int, nargs="+", default=[4], help="processes, several in turn")
    parser.add_argument("--sequences", type=int, default=0, help="sequences of a step; as many as ranks if 0")
    parser.add_argument(
        "--layer-seconds", type=float, default=0.2, help="emulated forward of a layer (default 0.2)"
    )
    parser.add_argument("--steps", type=int, default=3, help="steps a run, the first not counted (default 3)")
    parser.add_argument("--real", action="store_true", help="two ranks that compute for real")
    given = parser.parse_args()
    for ranks in [2] if given.real else given.ranks:
        if given.real:
            rows = compare_real(given.sequences or 8, given.steps)
        else:
            cases = grid(ranks, given.sequences or ranks)
            rows = compare(cases, given.layer_seconds, given.steps)
        print(report(rows), flush=True)  # noqa: T201 - the table is the answer


if __name__ == "__main__":
    main()
