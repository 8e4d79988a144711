"""Llama 2 on TPU v4: SPMD 2-D sharding with hidden transfers beside one-dimensional FSDP without.

Source: "Llama 2 with PyTorch/XLA SPMD", figure 1 and table 3. One constant of tpu_v4.toml is fitted to one published
figure, 53 % of the peak with 70 B; the ratio to FSDP is predicted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reftrain.config.file import load
from reftrain.config.run import MeshConfig
from reftrain.cost.cost_model import CostModel
from reftrain.cost.hardware import Hardware
from reftrain.cost.job import Job, cost_model_of
from reftrain.model.flops import flops_per_token
from reftrain.papers.bisection import bisect
from reftrain.papers.figure import Line
from reftrain.plan.projection import project

MORE = 28.0
"""Published: per cent more MFU than FSDP on the same machine, for every size."""
BEST = 54.3
"""Published: the highest MFU of all sizes, per cent."""
OF_70B = 53.0
"""Published: MFU of 70 B, per cent."""


@dataclass(frozen=True)
class Row:
    """A column of table 3 at 1 024 tokens: model, mesh (data, model), sequences a step."""

    preset: str
    data: int
    model: int
    sequences: int

    @property
    def chips(self) -> int:
        """Number of chips."""
        return self.data * self.model


ROWS = (Row("llama2_7b", 16, 1, 256), Row("llama2_13b", 32, 1, 256), Row("llama2_70b", 32, 4, 512))
LENGTH = 1024


def job_of(row: Row, sharding: str) -> Job:
    """Return the job of a row: its mesh, or all chips on one axis; one micro-batch, weights gathered at each use."""
    model = load(None, {"model": {"preset": row.preset}}).model
    dp, tp = (row.data, row.model) if sharding == "spmd_2d" else (row.chips, 1)
    return Job(
        model=model,
        mesh=MeshConfig(tp=tp, dp=dp, zero=3, sharding=sharding),
        seq_len=LENGTH,
        micro_batches=1,
        micro_batch_size=row.sequences // dp,
        layers=(model.layers,),
    )


def utilisation(row: Row, seconds: float, hardware: Hardware) -> float:
    """Return MFU in per cent, model FLOPs as Chowdhery et al. 2022 count them."""
    job = job_of(row, "fsdp")
    work = flops_per_token(job.model, LENGTH) * row.sequences * LENGTH
    return 100 * work / (seconds * hardware.flops_per_s * row.chips)


def hidden_step(row: Row, sharding: str, hardware: Hardware) -> float:
    """Return the seconds of a step in which the data axis' transfers run beside the computation, layer by layer.

    The pipeline's projection hides transfers of a whole stage; without one, all layers but one hide theirs.
    """
    job = job_of(row, sharding)
    costs = cost_model_of(job, hardware)
    alone, moved = _alone(job, hardware), _transfers(job, costs)
    return max(alone, moved) + min(alone, moved) / job.model.layers


def exposed_step(row: Row, sharding: str, hardware: Hardware) -> float:
    """Return the seconds of a step in which nothing runs beside a transfer."""
    job = job_of(row, sharding)
    return _alone(job, hardware) + _transfers(job, cost_model_of(job, hardware))


def _alone(job: Job, hardware: Hardware) -> float:
    """Seconds of a step but for the data axis' transfers; those of the model axis lie between the products."""
    projection = project(job, hardware)
    return projection.step_s * (1 - projection.exposed["dp"])


def _transfers(job: Job, costs: CostModel) -> float:
    """Seconds of the data axis: weights gathered for forward and for backward, gradients reduced."""
    (stage,) = job.stages
    return 2 * costs.gather_weights(stage).seconds + costs.reduce_gradients(stage).seconds


def fit_matmul(hardware: Hardware, row: Row = ROWS[-1], published: float = OF_70B) -> float:
    """Return the share of the peak of matrix products at which a row has its published MFU."""

    def too_fast(share: float) -> bool:
        machine = hardware.with_constant("efficiency.matmul", share)
        return utilisation(row, hidden_step(row, "spmd_2d", machine), machine) > published

    return bisect(too_fast, 0.2, 1.0)


def spmd(hardware: Hardware) -> Sequence[Line]:
    """Return MFU by size under both shardings, and the ratio split into hidden transfers and annotation."""
    lines, ratio = [], "figure 1 is a plot; the text says 28 % for all sizes"
    why = {
        1: "the mesh is (n, 1): the annotation is FSDP's, and what remains is that transfers are hidden; how much of "
        "FSDP's the compiler hid is not published, and here it is nothing",
        4: "FSDP's transfers are taken as fully exposed, on one dimension of the torus; both are assumed",
    }
    best = 0.0
    for row in ROWS:
        two, one = (hidden_step(row, s, hardware) for s in ("spmd_2d", "fsdp"))
        fsdp = exposed_step(row, "fsdp", hardware)
        own = utilisation(row, two, hardware)
        best = max(best, own)
        name = f"{row.preset} on ({row.data}, {row.model})"
        fitted = row is ROWS[-1]
        lines += [
            Line(
                f"{name}: MFU, 2-D", "%", OF_70B if fitted else None, own, "fitted" if fitted else "predicted"
            ),
            Line(f"{name}: MFU, 1-D FSDP, nothing hidden", "%", None, utilisation(row, fsdp, hardware)),
            Line(f"{name}: MFU, 1-D FSDP, transfers hidden", "%", None, utilisation(row, one, hardware)),
            Line(f"{name}: 2-D over 1-D FSDP", "% more", MORE, 100 * (fsdp / two - 1), why=why[row.model]),
            Line(f"{name}: of that by the annotation alone", "% more", None, 100 * (one / two - 1)),
        ]
    lines.append(
        Line("highest MFU of the three", "%", BEST, best, why=f"{ratio}, and 54.3 % without its size")
    )
    return lines
