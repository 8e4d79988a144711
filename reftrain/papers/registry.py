"""Every figure that `reftrain reproduce` prints, in the order of the papers, and those it cannot."""

from collections.abc import Sequence
from typing import Final

from reftrain.papers import (
    chimera,
    context_parallel,
    encoder_share,
    inference,
    interruptions,
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
    Figure("figure9", _LLAMA_4D, "three schedules of a model of 26 layers", published_runs.figure_9_lines),
    Figure(
        "figure10", _LLAMA_4D, "one layer less on the first and last rank", published_runs.figure_10_lines
    ),
    Figure("figure11", _LLAMA_4D, "attention on four GPUs beside one", context_parallel.figure_11),
    Figure("figure12", _LLAMA_4D, "rate of the gather of keys and values", context_parallel.figure_12),
    Figure("figure13", _LLAMA_4D, "gathered keys and values beside a ring", context_parallel.figure_13),
    Figure(
        "encoder", _LLAMA_4D, "share of the image encoder, first rank or all", encoder_share.encoder_share
    ),
    Figure("documents", _LLAMA_4D, "document masks at 131 K", published_runs.documents),
    Figure("interruptions", _HERD, "effective training time of 54 days", interruptions.effective_time),
    Figure("chimera-bubbles", _CHIMERA, "table 2, bubbles", chimera.bubbles, "p100"),
    Figure("chimera-bert", _CHIMERA, "throughput of Bert-48 on 64 nodes", chimera.bert_throughput, "p100"),
    Figure("chimera-gpt", _CHIMERA, "throughput of GPT-2 on 2 048 nodes", chimera.gpt_throughput, "p100"),
    Figure("inference", _SPMD, "70B served on 16 chips", inference.llama2_70b, "tpu_v5e"),
    Figure("spmd", _SPMD, "two-dimensional sharding beside FSDP", spmd.spmd, "tpu_v4"),
)
FIGURES: Final[dict[str, Figure]] = {figure.name: figure for figure in _ENTRIES}
"""All figures by name."""

MISSING: Final[Sequence[Missing]] = (
    Missing(
        "chimera-asynchronous", _CHIMERA, "speed-up over PipeDream and PipeDream-2BW, 1.16 to 2.01",
        "a projection times one step with its flush, and asynchronous schemes have none: they would come out too slow",
    ),
    Missing(
        "mesh-8192", _HERD, "tp 8, pp 16, dp 64 on 8 192 GPUs",
        "the planner takes pp 32, dp 32 by its rule of least traffic; the published mesh ties with it",
    ),
)  # fmt: skip
