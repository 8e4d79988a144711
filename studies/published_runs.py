"""Published figures beside ours, as one table: `python -m studies.published_runs`.

One constant is fitted, on the one row marked so; everything else is predicted. See docs/planning.md.
"""

from dataclasses import dataclass, replace

from reftrain.config.run import MeshConfig
from reftrain.cost.hardware import GIB, Hardware, load_hardware
from reftrain.cost.job import Job
from reftrain.cost.memory import MemoryModel
from reftrain.cost.shapes import layer_counts
from reftrain.model.flops import flops_per_token
from reftrain.plan.projection import project
from studies.document_imbalance import DocumentModel, Imbalance
from studies.llama3 import (
    CALIBRATION,
    LLAMA_405B,
    PREDICTED,
    fit_matmul,
    job_of_row,
    tflops,
)

RATIO = 1.44
"""Total compute of the slowest GPU over the fastest at 131 K ("Scaling Llama 3 Training", section 7.3.2)."""


@dataclass(frozen=True)
class Line:
    """One published figure, ours, and how ours came about (fitted or predicted)."""

    what: str
    published: float
    ours: float
    how: str

    @property
    def error(self) -> float:
        """Relative deviation."""
        return self.ours / self.published - 1


def throughput(hardware: Hardware) -> list[Line]:
    """Throughput of the three published rows."""
    lines = [
        Line(
            f"TFLOP/s a GPU, {CALIBRATION.name}",
            CALIBRATION.tflops,
            tflops(CALIBRATION, project(job_of_row(CALIBRATION), hardware)),
            "fitted",
        )
    ]
    for row in PREDICTED:
        ours = tflops(row, project(job_of_row(row), hardware))
        lines.append(Line(f"TFLOP/s a GPU, {row.name}", row.tflops, ours, "predicted"))
    return lines


def document_lines(hardware: Hardware, steps: int = 24) -> tuple[float, list[Line]]:
    """Return the mean document length fitted to the imbalance, in tokens, and the figures that it predicts."""
    row = PREDICTED[1]
    model = DocumentModel(job_of_row(row), hardware, steps)
    mean = model.fit_mean(RATIO)
    effect: Imbalance = model.effect(mean, timed=min(steps, 12))
    work = flops_per_token(LLAMA_405B, row.seq_len) * (1 << 24) / row.gpus
    return mean, [
        Line("slowest over fastest GPU's compute, 131 K", RATIO, effect.slowest_over_fastest, "fitted"),
        Line("exposed communication of cp, % of the step", 7.64, 100 * effect.cp_share, "predicted"),
        Line("of that waiting for the slowest rank, %", 65.75, 100 * effect.waiting_part, "predicted"),
        Line(
            "TFLOP/s a GPU at 131 K with these documents",
            row.tflops,
            work / effect.step_s / 1e12,
            "predicted",
        ),
    ]


def reduced_job(schedule: str, k: int, layers: int = 26, *, balanced: bool = True) -> Job:
    """Reduced model of the paper's figures 9 and 10 (26 layers of the 405 B shape), tp 8, pp 4, dp 4, m = 12."""
    model = replace(LLAMA_405B, layers=layers)
    return Job(
        model=model,
        mesh=MeshConfig(tp=8, pp=4, dp=4, zero=1),
        seq_len=8192,
        micro_batches=12,
        layers=layer_counts(layers, 28, balanced=balanced),
        schedule=schedule,
        virtual=7,
        consecutive=k,
    )


@dataclass(frozen=True)
class Outcome:
    """Throughput and memory of a reduced job: TFLOP/s a GPU, bytes of the fullest rank."""

    name: str
    tflops: float
    memory: float


def outcome(name: str, job: Job, hardware: Hardware) -> Outcome:
    """Project a job and its memory."""
    work = flops_per_token(job.model, job.seq_len) * job.micro_batches * job.seq_len
    seconds = project(job, hardware).step_s
    ranks = job.mesh.world_size // job.mesh.dp
    return Outcome(name, work / seconds / ranks / 1e12, max(r.peak for r in MemoryModel(job).ranks()))


def figure_9(hardware: Hardware) -> list[Outcome]:
    """1F1B, flexible and all-forward-all-backward of the reduced model."""
    return [
        outcome("1F1B (k = 4)", reduced_job("flexible", 4), hardware),
        outcome("flexible (k = 6)", reduced_job("flexible", 6), hardware),
        outcome("all forward, all backward (k = 12)", reduced_job("afab", 12), hardware),
    ]


def figure_10(hardware: Hardware) -> list[Outcome]:
    """Even and balanced pipeline: 28 layers, or 26 with one less on the first and the last rank."""
    return [
        outcome("even, 28 layers", reduced_job("flexible", 4, 28, balanced=False), hardware),
        outcome("balanced, 26 layers", reduced_job("flexible", 4), hardware),
    ]


def report() -> str:
    """All tables as Markdown."""
    hardware = load_hardware("h100")
    mean, documents = document_lines(hardware)
    fitted = (
        f"Matrix products reach {fit_matmul(hardware):.4f} of the peak by the fit to {CALIBRATION.name}; "
        f"h100.toml holds {hardware.efficiency.matmul}. Documents of {mean:.0f} tokens in the mean."
    )
    lines = [
        fitted,
        "",
        "| figure | published | ours | deviation | |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {x.what} | {x.published:g} | {x.ours:.4g} | {100 * x.error:+.1f} % | {x.how} |"
        for x in (*throughput(hardware), *documents)
    ]
    lines += ["", "| reduced model | TFLOP/s a GPU | GiB of the fullest rank |", "|---|---|---|"]
    lines += [
        f"| {x.name} | {x.tflops:.1f} | {x.memory / GIB:.2f} |"
        for x in (*figure_9(hardware), *figure_10(hardware))
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(report(), end="")  # noqa: T201 - the table is the answer
