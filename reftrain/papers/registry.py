"""Every figure that `reftrain reproduce` prints, in the order of the papers, and those it cannot."""

from collections.abc import Sequence
from typing import Final

from reftrain.papers import (
    chimera,
    chimera_asynchronous,
    context_parallel,
    encoder_share,
    inference,
    interruptions,
    meshes,
    published_runs,
    spmd,
)
from reftrain.papers.figure import Figure, Missing

_LLAMA_4D: Final = "Scaling Llama 3 Training (ISCA'25)"
_HERD: Final = "The Llama 3 Herd of Models"
_CHIMERA: Final = "Chimera (SC'21)"
_SPMD: Final = "Llama 2 with PyTorch/XLA SPMD"

_ENTRIES: Final = (
    Figure("runs", _HERD, "throughput of 405 B on H100, bubbles", published_runs.throughput),
    Figure("figure9", _LLAMA_4D, "three schedules of 26 layers, m = 16, dp 4", published_runs.figure_9_lines),
    Figure(
        "figure10",
        _LLAMA_4D,
        "one layer less on the first and last rank, m = 4, dp 1",
        published_runs.figure_10_lines,
    ),
    Figure("figure11", _LLAMA_4D, "attention on four GPUs beside one", context_parallel.figure_11),
    Figure("figure12", _LLAMA_4D, "rate of the gather of keys and values", context_parallel.figure_12),
    Figure("figure13", _LLAMA_4D, "gathered keys and values beside a ring", context_parallel.figure_13),
    Figure("encoder", _LLAMA_4D, "share of the image encoder by its place", encoder_share.encoder_share),
    Figure("documents", _LLAMA_4D, "document masks at 131 K", published_runs.documents),
    Figure("meshes", _HERD, "sizes of the axes, published and planned", meshes.meshes),
    Figure("interruptions", _HERD, "effective training time of 54 days", interruptions.effective_time),
    Figure("chimera-bubbles", _CHIMERA, "table 2, bubbles", chimera.bubbles, "p100"),
    Figure("chimera-bert", _CHIMERA, "throughput of Bert-48 on 64 nodes", chimera.bert_throughput, "p100"),
    Figure("chimera-gpt", _CHIMERA, "throughput of GPT-2 on 2 048 nodes", chimera.gpt_throughput, "p100"),
    Figure(
        "chimera-asynchronous",
        _CHIMERA,
        "throughput beside PipeDream and PipeDream-2BW",
        chimera_asynchronous.asynchronous,
        "p100",
    ),
    Figure("inference", _SPMD, "70B served on 16 chips", inference.llama2_70b, "tpu_v5e"),
    Figure("spmd", _SPMD, "two-dimensional sharding beside FSDP", spmd.spmd, "tpu_v4"),
)
FIGURES: Final[dict[str, Figure]] = {figure.name: figure for figure in _ENTRIES}
"""All figures by name."""

MISSING: Final[Sequence[Missing]] = (
    Missing(
        "chimera-v100", _CHIMERA, "1.10 to 2.39 times over synchronous schemes on 32 V100",
        "the document gives neither batch sizes nor sequence lengths of these runs",
    ),
    Missing(
        "chimera-batches", _CHIMERA, "figures 17 and 18, means over growing batches: 1.06 to 2.60 times",
        "the batches over which the means are taken are in a plot alone",
    ),
    Missing(
        "chimera-pipelines", _CHIMERA, "figure 19, four pipelines beside two",
        "a plot without numbers; `reftrain schedule chimera --pipelines 4` counts their bubbles",
    ),
)  # fmt: skip
