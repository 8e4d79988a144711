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
    schedule: str, k: int, layers: int = 26, *, balanced: bool = True, recompute: str = "none", dp: int = 4
) -> Job:
    """Reduced model of the paper's figures 9 and 10 (26 layers of the 405 B shape), tp 8, pp 4, m = 12."""
    return Job(
        model=replace(LLAMA_405B, layers=layers),
        mesh=MeshConfig(tp=8, pp=4, dp=dp, zero=1),
        seq_len=8192,
        micro_batches=12,
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


def figure_9(hardware: Hardware) -> list[Outcome]:
    """Return 1F1B, flexible and all-forward-all-backward of the reduced model."""
    return [
        outcome("1F1B (k = 4)", reduced_job("flexible", 4), hardware),
        outcome("flexible (k = 6)", reduced_job("flexible", 6), hardware),
        outcome("all forward, all backward (k = 12)", reduced_job("afab", 12), hardware),
    ]


def figure_10(hardware: Hardware) -> list[Outcome]:
    """Return the even and the balanced pipeline: 28 layers, or 26 with one less on the first and the last rank."""
    return [
        outcome("even, 28 layers", reduced_job("flexible", 4, 28, balanced=False), hardware),
        outcome("balanced, 26 layers", reduced_job("flexible", 4), hardware),
    ]


def figure_9_lines(hardware: Hardware) -> list[Line]:
    """Return figure 9 with what the paper says in words about it: the order of the three by time and by memory."""
    found = figure_9(hardware)
    one_f, flexible, all_forward = found
    plots = _plotted(found)
    ends = (
        "k above p by one or two hides all messages, so that what is left between them are uneven stages, which fewer "
        "consecutive micro-batches even out better; without a stage that has no layer (next line) they nearly agree"
    )
    even = [
        outcome("", reduced_job(schedule, k, 28, balanced=False), hardware).tflops
        for schedule, k in (("flexible", 6), ("afab", 12))
    ]
    return [
        *plots,
        Line("flexible over 1F1B, TFLOP/s", "", 1.0, flexible.tflops / one_f.tflops, bound="≥"),
        Line(
            "all forward first over flexible, TFLOP/s",
            "",
            1.0,
            all_forward.tflops / flexible.tflops,
            bound="≥",
            why=ends,
        ),
        Line("the same with one layer in every stage", "", None, even[1] / even[0]),
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
    even, balanced = found
    again = outcome("", reduced_job("flexible", 4, recompute="full"), hardware)
    part = outcome("", reduced_job("flexible", 4, recompute="selective"), hardware)
    alone = [
        MemoryModel(reduced_job("flexible", 4, layers, balanced=balance, dp=1)).peak() / GIB
        for layers, balance in ((28, False), (26, True))
    ]
    before, after = (
        [r.peak / GIB for r in MemoryModel(job).ranks()]
        for job in (reduced_job("flexible", 4, 28, balanced=False), reduced_job("flexible", 4))
    )
    middle = (
        "the ranks between keep their layers and are the fullest afterwards; what is saved are the embedding's states, "
        "which dp shards: the paper does not name the mesh of its reduced model, and with dp 1 (next line) they agree"
    )
    head = (
        "the head takes about 0.6 of the time of a layer here; the published gain needs one of a whole layer"
    )
    full = (
        "all layers are computed again here, a third more work; the paper does not say which parts it computed again: "
        "its gain lies between that of attention alone (next line) and of everything"
    )
    return [
        *_plotted(found),
        Line(
            "fullest rank, balanced less even", "GiB", -5.0, (balanced.memory - even.memory) / GIB, why=middle
        ),
        Line("the same with dp 1, which the paper does not name", "GiB", None, alone[1] - alone[0]),
        Line("first rank, balanced less even", "GiB", None, after[0] - before[0]),
        Line("last rank, balanced less even", "GiB", None, after[-1] - before[-1]),
        Line("TFLOP/s, balanced over even", "%", 6.5, 100 * (balanced.tflops / even.tflops - 1), why=head),
        Line(
            "TFLOP/s without recomputation", "%", 17.5, 100 * (balanced.tflops / again.tflops - 1), why=full
        ),
        Line("the same, of attention alone", "%", None, 100 * (balanced.tflops / part.tflops - 1)),
    ]


def _plotted(found: Sequence[Outcome]) -> list[Line]:
    """Return throughput and memory of jobs that the paper plots without numbers."""
    lines = []
    for one in found:
        lines.append(Line(one.name, f"{TFLOPS} a GPU", None, one.tflops))
        lines.append(Line(one.name, "GiB of the fullest rank", None, one.memory / GIB))
    return lines
