"""Chimera (SC'21): bubbles of its table 2, and its throughput beside other schemes, each at its best (p, d, b).

The search is the paper's (section 4.2.1): every scheme takes the pipeline ranks p, replicas d and sequences of a
micro-batch b that are fastest for it, with recomputation only where memory needs it. Kernels are eager, as those of
PyTorch 1.6 that the paper ran. `chimera_asynchronous` has the schemes without a flush.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Final

from reftrain.config.run import MeshConfig, ModelConfig
from reftrain.cost.hardware import Hardware
from reftrain.cost.job import Job
from reftrain.cost.memory import MemoryModel
from reftrain.cost.shapes import layer_counts
from reftrain.errors import ReftrainError
from reftrain.papers.figure import Line
from reftrain.papers.schedule_formulas import PUBLISHED, with_middle, without_middle
from reftrain.plan.projection import project
from reftrain.schedule.costs import Costs
from reftrain.schedule.evaluation import evaluate
from reftrain.schedule.generators import generate
from reftrain.schedule.spec import CONCATENATIONS, ScheduleSpec

LAYERS: Final = 48
STAGES: Final = (4, 8, 16)
"""Pipeline ranks that divide the layers evenly."""
WIDEST_MICRO_BATCH: Final = 64
MOST_MICRO_BATCHES: Final = 64
"""More, and smaller, micro-batches add kernels and save no bubble worth them; their tables take minutes."""
DIGITS: Final = 9
"""Decimals to which a counted bubble equals the formula's."""
OTHERS: Final = {"gpipe": "GPipe", "1f1b": "DAPPLE", "gems": "GEMS"}


@dataclass(frozen=True)
class Workload:
    """A model on P100 nodes, `batch` sequences a step; `low` and `high` are Chimera's speed-ups as published."""

    name: str
    model: ModelConfig
    seq_len: int
    nodes: int
    batch: int
    low: float
    high: float


BERT: Final = Workload(
    "Bert-48", ModelConfig(layers=LAYERS, dim=1024, heads=16, kv_heads=16, ffn_dim=2736, vocab_size=30528),
    128, 64, 1024, 1.19, 2.41,
)  # fmt: skip
GPT_2: Final = Workload(
    "GPT-2", ModelConfig(layers=LAYERS, dim=1536, heads=16, kv_heads=16, ffn_dim=4096, vocab_size=50304),
    632, 2048, 2048, 1.38, 2.34,
)  # fmt: skip


def jobs(work: Workload, scheme: str) -> Iterator[Job]:
    """Yield every job of a scheme: all (p, b) that use all nodes and the whole batch, Chimera's concatenations too."""
    for p in STAGES:
        replicas = work.nodes // p
        size = max(1, work.batch // replicas // MOST_MICRO_BATCHES)
        while size <= min(WIDEST_MICRO_BATCH, work.batch // replicas):
            for concatenation in CONCATENATIONS if scheme == "chimera" else ("direct",):
                for recompute in ("none", "full"):
                    yield Job(
                        model=work.model, mesh=MeshConfig(pp=p, dp=replicas, zero=0), seq_len=work.seq_len,
                        micro_batches=work.batch // replicas // size, layers=layer_counts(LAYERS, p, balanced=False),
                        schedule=scheme, micro_batch_size=size, recompute=recompute, policy="fp32",
                        kernels="eager", attention="sdpa", clips=False, concatenation=concatenation,
                    )  # fmt: skip
            size *= 2


def best(work: Workload, scheme: str, hardware: Hardware) -> float:
    """Return the sequences a second of a scheme's fastest job that fits."""
    fastest = 0.0
    for job in jobs(work, scheme):
        try:
            rate = work.batch / project(job, hardware).step_s
            if rate > fastest and MemoryModel(job).peak() <= hardware.usable_bytes:
                fastest = rate
        except ReftrainError:
            continue  # the scheme has no table of these sizes
    return fastest


def throughput(work: Workload, hardware: Hardware) -> list[Line]:
    """Return Chimera's speed-up over each synchronous scheme, and the interval that the paper prints."""
    ours = best(work, "chimera", hardware)
    ratios = {label: ours / best(work, name, hardware) for name, label in OTHERS.items()}
    why = "a P100 has one assumed efficiency at every micro-batch size; the width of the model is assumed"
    lines = [Line(f"{work.name}, Chimera over {label}", "", None, ratio) for label, ratio in ratios.items()]
    least, most = min(ratios.values()), max(ratios.values())
    return [
        *lines,
        Line(
            f"{work.name}, {work.nodes} nodes, least over synchronous schemes", "", work.low, least, why=why
        ),
        Line(f"{work.name}, {work.nodes} nodes, most over synchronous schemes", "", work.high, most, why=why),
    ]


bert_throughput = partial(throughput, BERT)
gpt_throughput = partial(throughput, GPT_2)


def bubbles(hardware: Hardware) -> list[Line]:
    """Return the bubbles of table 2 at p = 8, m = p and 2p, f = 1, b = 2, counted on our tables."""
    del hardware
    lines = []
    for multiple in (1, 2):
        p, m = 8, 8 * multiple
        for scheme in PUBLISHED:
            if multiple == 1 and scheme.concatenation != "direct":
                continue
            spec = ScheduleSpec(scheme.name, p, m, concatenation=scheme.concatenation)
            ours = float(evaluate(generate(spec), Costs(), spec).steady.bubble_ratio)
            paper = with_middle if scheme.name == "chimera" and m == p else scheme.paper
            published = float(paper(p, m))
            what = f"{scheme.label}, p = {p}, m = {m}"
            why = _WHY.get(scheme.label, "") if round(ours - published, DIGITS) else ""
            lines.append(Line(what, "%", 100 * published, 100 * ours, "counted", why=why))
    return [*lines, _joined_without_gaps(8, 16)]


def _joined_without_gaps(p: int, m: int) -> Line:
    """Return the bubble of units joined directly where a backward takes as long as a forward (section 3.5)."""
    spec = ScheduleSpec("chimera", p, m)
    ours = float(evaluate(generate(spec), Costs(b=Fraction(1)), spec).steady.bubble_ratio)
    what = f"chimera direct, p = {p}, m = {m}, backward as long as forward"
    return Line(what, "%", 100 * float(without_middle(p, m)), 100 * ours, "counted")


_WHY: Final = {
    "gems": "the paper's formula leaves out the first forward's way down the pipeline",
    "chimera direct": "the formula counts p-2 slots in the middle of one unit (m = p), and two units have two; the "
    "paper joins units without gaps where a backward takes as long as a forward, and so does ours (last line)",
    "chimera doubling": "a pair of forwards takes 2f and a backward with recomputation 3f, so the slots are not equal",
}
