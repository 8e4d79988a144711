"""Llama 3 405B: throughput, bubbles, document masks, and the reduced model of figures 9 and 10.

One constant of h100.toml is fitted, on the one row marked so; everything else is predicted. See docs/planning.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from reftrain.config.run import MeshConfig
from reftrain.cost.hardware import GIB, Hardware
from reftrain.cost.job import Job
from reftrain.cost.memory import MemoryModel
from reftrain.cost.shapes import layer_counts
from reftrain.model.flops import flops_per_token
from reftrain.papers.document_imbalance import DocumentModel, Imbalance
from reftrain.papers.figure import Line
from reftrain.papers.llama3 import CALIBRATION, LLAMA_405B, PREDICTED, job_of_row, tflops
from reftrain.plan.projection import project

RATIO = 1.44
"""Total compute of the slowest GPU over the fastest at 131 K ("Scaling Llama 3 Training", section 7.3.2)."""
TFLOPS = "TFLOP/s"


def throughput(hardware: Hardware) -> list[Line]:
    """Return the throughput and the bubbles of the three published rows."""
    rows = (CALIBRATION, *PREDICTED)
    projected = [project(job_of_row(row), hardware) for row in rows]
    why = "documents of this phase are not masked here, and attention has one efficiency"
    lines = [
        Line(
            row.name, f"{TFLOPS} a GPU", row.tflops, tflops(row, found),
            "fitted" if row is CALIBRATION else "predicted",
            why=why if row is PREDICTED[1] else "",
        )
        for row, found in zip(rows, projected, strict=True)
    ]  # fmt: skip
    rounded = "the paper prints whole per cents; (p-1)/(m·v) is {:.1f}, the rest the first rank's stage without a layer"
    for published, m, found in ((5.0, 32, projected[0]), (12.0, 16, projected[1])):
        why = rounded.format(100 * 15 / (m * 8))
        lines.append(
            Line(f"bubble over compute, m = {m}, p = 16", "%", published, 100 * found.bubble, why=why)
        )
    return lines


def documents(hardware: Hardware, steps: int = 24) -> list[Line]:
    """Return the cost of document masks at 131 K; the mean length is fitted to the imbalance."""
    row = PREDICTED[1]
    model = DocumentModel(job_of_row(row), hardware, steps)
    effect: Imbalance = model.effect(model.fit_mean(RATIO), timed=min(steps, 12))
    work = flops_per_token(LLAMA_405B, row.seq_len) * (1 << 24) / row.gpus
    shorter = "the step is shorter than published (the row below), so the same waiting is a larger share"
    attention = (
        "compute is too short: the efficiency of attention is taken from publications, and 8 K is not masked"
    )
    return [
        Line("slowest over fastest GPU's compute", "", RATIO, effect.slowest_over_fastest, "fitted"),
        Line("exposed communication of cp, of the step", "%", 7.64, 100 * effect.cp_share, why=shorter),
        Line("of that waiting for the slowest rank", "%", 65.75, 100 * effect.waiting_part),
        Line(
            "with these documents", f"{TFLOPS} a GPU", row.tflops, work / effect.step_s / 1e12, why=attention
        ),
    ]


def reduced_job(
    schedule: str,
    k: int,
    layers: int = 26,
    *,
    micro_batches: int,
    dp: int,
    balanced: bool = True,
    recompute: str = "none",
) -> Job:
    """Reduced model of the paper's figures 9 and 10: 26 layers of the 405 B shape, tp 8, pp 4 with 7 virtual stages.

    The paper names the number of layers only; `figure_9` and `figure_10` say which readings of the rest they take.
    """
    return Job(
        model=replace(LLAMA_405B, layers=layers),
        mesh=MeshConfig(tp=8, pp=4, dp=dp, zero=1),
        seq_len=8192,
        micro_batches=micro_batches,
        layers=layer_counts(layers, 28, balanced=balanced),
        schedule=schedule,
        virtual=7,
        consecutive=k,
        recompute=recompute,
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


def figure_9(hardware: Hardware, micro_batches: int = 16, dp: int = 4) -> list[Outcome]:
    """Return 1F1B, flexible and all-forward-all-backward of the reduced model.

    The flexible schedule is there for numbers of micro-batches that its k does not divide: 16, with k = 6.
    """
    jobs = {
        "1F1B (k = 4)": ("flexible", 4),
        "flexible (k = 6)": ("flexible", 6),
        f"all forward, all backward (k = {micro_batches})": ("afab", micro_batches),
    }
    return [
        outcome(name, reduced_job(schedule, k, micro_batches=micro_batches, dp=dp), hardware)
        for name, (schedule, k) in jobs.items()
    ]


def figure_10(hardware: Hardware, micro_batches: int = 4, dp: int = 1) -> list[Outcome]:
    """Return the even and the balanced pipeline: 28 layers, or 26 with one less on the first and the last rank.

    Four micro-batches on four ranks, one replica: of the sizes that the paper leaves open those with its two figures.
    """
    even, balanced = _figure_10_jobs(micro_batches, dp)
    return [outcome("even, 28 layers", even, hardware), outcome("balanced, 26 layers", balanced, hardware)]


def _figure_10_jobs(micro_batches: int, dp: int) -> tuple[Job, Job]:
    return (
        reduced_job("flexible", 4, 28, micro_batches=micro_batches, dp=dp, balanced=False),
        reduced_job("flexible", 4, micro_batches=micro_batches, dp=dp),
    )


def figure_9_lines(hardware: Hardware) -> list[Line]:
    """Return figure 9 with what the paper says in words about it: the order of the three by time and by memory."""
    found = figure_9(hardware)
    one_f, flexible, all_forward = found
    divided = figure_9(hardware, 12)
    return [
        *_plotted(found),
        Line("flexible over 1F1B, TFLOP/s", "", 1.0, flexible.tflops / one_f.tflops, bound="≥"),
        Line(
            "all forward first over flexible, TFLOP/s",
            "",
            1.0,
            all_forward.tflops / flexible.tflops,
            bound="≥",
        ),
        Line(
            "the same of 12 micro-batches, which k = 6 divides",
            "",
            None,
            divided[2].tflops / divided[1].tflops,
        ),
        Line("flexible over 1F1B, memory", "", 1.0, flexible.memory / one_f.memory, bound="≥"),
        Line(
            "all forward first over flexible, memory",
            "",
            1.0,
            all_forward.memory / flexible.memory,
            bound="≥",
        ),
    ]


def figure_10_lines(hardware: Hardware) -> list[Line]:
    """Return figure 10: what one layer less on the first and last rank saves, and what recomputation had cost."""
    found = figure_10(hardware)
    saved, faster = _gain(found)
    others = {m: _gain(figure_10(hardware, m, 4)) for m in (4, 12)}
    before, after = (
        [r.peak / GIB for r in MemoryModel(job).ranks()] for job in _figure_10_jobs(micro_batches=4, dp=1)
    )
    again, part = (
        outcome("", reduced_job("flexible", 4, micro_batches=4, dp=1, recompute=what), hardware).tflops
        for what in ("full", "selective")
    )
    full = (
        "all layers are computed again here, a third more work; the paper does not say which parts it computed again: "
        "its gain lies between that of attention alone (next line) and of everything"
    )
    balanced = found[1].tflops
    return [
        *_plotted(found),
        Line("fullest rank, balanced less even", "GiB", -5.0, saved, "fitted"),
        Line("first rank, balanced less even", "GiB", None, after[0] - before[0]),
        Line("last rank, balanced less even", "GiB", None, after[-1] - before[-1]),
        Line("TFLOP/s, balanced over even", "%", 6.5, faster, "fitted"),
        *(
            line
            for m, (less, more) in others.items()
            for line in (
                Line(f"fullest rank with dp 4, m = {m}", "GiB", None, less),
                Line(f"TFLOP/s with dp 4, m = {m}", "%", None, more),
            )
        ),
        Line("TFLOP/s without recomputation", "%", 17.5, 100 * (balanced / again - 1), why=full),
        Line("the same, of attention alone", "%", None, 100 * (balanced / part - 1)),
    ]


def _gain(found: Sequence[Outcome]) -> tuple[float, float]:
    """Return GiB of the fullest rank and % of throughput, the second outcome less the first."""
    before, after = found
    return (after.memory - before.memory) / GIB, 100 * (after.tflops / before.tflops - 1)


def _plotted(found: Sequence[Outcome]) -> list[Line]:
    """Return throughput and memory of jobs that the paper plots without numbers."""
    lines = []
    for one in found:
        lines.append(Line(one.name, f"{TFLOPS} a GPU", None, one.tflops))
        lines.append(Line(one.name, "GiB of the fullest rank", None, one.memory / GIB))
    return lines
