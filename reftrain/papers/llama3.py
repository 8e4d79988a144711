"""Published runs of Llama 3 405B on H100: the row that calibrates the hardware file, and the rows it predicts.

Sources: "The Llama 3 Herd of Models", table 4 (meshes, sequences, throughput), and "Scaling Llama 3 Training"
(ISCA'25), sections 5 and 7.3. Throughput counts model FLOPs as Chowdhery et al. 2022 (attention in full):
at 131 K only this count agrees with the other figures, because gathering keys and values at 50 GB/s takes
2.62 % of a step of about 15 s, and not of 11 s or 6.5 s as without the masked half or without attention.
"""

from dataclasses import dataclass

from reftrain.config.presets import MODEL_PRESETS
from reftrain.config.run import MeshConfig, ModelConfig
from reftrain.cost.hardware import Hardware
from reftrain.cost.job import Job
from reftrain.cost.shapes import layer_counts
from reftrain.model.flops import flops_per_token
from reftrain.papers.bisection import bisect
from reftrain.plan.projection import Projection, project

LLAMA_405B = ModelConfig(preset="405b", **MODEL_PRESETS["405b"])  # type: ignore[arg-type]
TOKENS = 1 << 24


@dataclass(frozen=True)
class Row:
    """One row of the table: mesh, sequence length in tokens, published TFLOP/s a GPU."""

    name: str
    tp: int
    cp: int
    pp: int
    dp: int
    seq_len: int
    tflops: float

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.tp * self.cp * self.pp * self.dp


CALIBRATION = Row("8 192 GPUs, 8 K", 8, 1, 16, 64, 8192, 430.0)
PREDICTED = (
    Row("16 384 GPUs, 8 K", 8, 1, 16, 128, 8192, 400.0),
    Row("16 384 GPUs, 131 K", 8, 16, 16, 8, 131072, 380.0),
)


def zero_coupling(ranks: int, micro_batches: int) -> tuple[str, int]:
    """Return the schedule and the ZeRO stage that go together ("Scaling Llama 3 Training", pipeline with FSDP).

    From m = 2p on it is 1F1B with ZeRO-1: gradients stay whole until the last micro-batch, and memory in flight is
    bounded by p. Below, it is all-forward-all-backward with ZeRO-2: few micro-batches are in flight anyway, and their
    gradients are reduce-scattered as each stage's run of backwards ends.
    """
    return ("1f1b", 1) if micro_batches >= 2 * ranks else ("afab", 2)


def job_of_row(row: Row) -> Job:
    """Return the job of a row: one layer a virtual stage, one layer less on the first and last rank, m sequences each.

    From m = 2p on the flexible schedule with ZeRO-1, below all-forward-all-backward with ZeRO-2.
    """
    micro_batches = TOKENS // row.seq_len // row.dp
    coupled, zero = zero_coupling(row.pp, micro_batches)
    virtual = (LLAMA_405B.layers + 2) // row.pp
    return Job(
        model=LLAMA_405B,
        mesh=MeshConfig(tp=row.tp, cp=row.cp, pp=row.pp, dp=row.dp, zero=zero),
        seq_len=row.seq_len,
        micro_batches=micro_batches,
        layers=layer_counts(LLAMA_405B.layers, row.pp * virtual, balanced=True),
        schedule="afab" if coupled == "afab" else "flexible",
        virtual=virtual,
        consecutive=row.pp,
    )


def tflops(row: Row, projection: Projection) -> float:
    """Return the projected TFLOP/s a GPU."""
    work = flops_per_token(LLAMA_405B, row.seq_len) * TOKENS / row.gpus
    return work / projection.step_s / 1e12


def fit_matmul(hardware: Hardware, row: Row = CALIBRATION) -> float:
    """Return the share of the peak at which the projection of a row is its published figure.

    It is the share that matrix products reach: the one constant that is fitted, to the one row that calibrates.
    """
    job = job_of_row(row)

    def too_fast(share: float) -> bool:
        return tflops(row, project(job, hardware.with_constant("efficiency.matmul", share))) > row.tflops

    return bisect(too_fast, 0.2, 1.0)
