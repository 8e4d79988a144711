"""The faults that are planted into real runs of four ranks, and what `slowrank` must answer of each."""

from dataclasses import dataclass

BLOCK = 3
"""Steps of a block; a run has blocks without the fault and with it in turn, first and last without."""
WARM_UP = 2
STRUCK = 2
"""Blocks with the fault."""


@dataclass(frozen=True)
class Planted:
    """A fault as `reftrain run --fault` takes it, the mesh of its run, and the right cause and ranks.

    No ranks: the answer is an imbalance, and its ranks are not compared.
    """

    fault: str
    mesh: str
    cause: str
    ranks: tuple[int, ...] = ()

    def options(self) -> list[str]:
        """Return the options that plant it in its blocks."""
        texts = [f"{self.fault},steps={block.start}:{block.stop}" for block in blocks()[1::2]]
        return [part for text in texts for part in ("--fault", text)]


def blocks() -> list[range]:
    """Return the steps of each block; those with odd numbers are struck."""
    begins = [WARM_UP + BLOCK * number for number in range(2 * STRUCK + 1)]
    return [range(begin, begin + BLOCK) for begin in begins]


TP_DP, TP_PP, CP_DP, PP_DP = "tp=2,dp=2", "tp=2,pp=2", "cp=2,dp=2", "pp=2,dp=2"
FAULTS = (
    Planted("slow_compute:rank=1,factor=1.3", TP_DP, "gpu_compute", (1,)),
    Planted("pauses:rank=3,pause_ms=60,every=8", TP_DP, "host_stall", (3,)),
    Planted("late_data:rank=2,delay_ms=200", TP_DP, "dataloader", (2,)),
    Planted("slow_link:rank=1,delay_ms=6", TP_DP, "network", (1,)),
    Planted("slow_compute:rank=2,factor=1.4", TP_PP, "gpu_compute", (2,)),
    Planted("long_stage:rank=0,factor=1.4", TP_PP, "stage_imbalance"),
    Planted("late_data:rank=0,delay_ms=300", TP_PP, "dataloader", (0,)),
    Planted("slow_compute:rank=3,factor=1.5", CP_DP, "gpu_compute", (3,)),
    Planted("launch_bound:rank=1,delay_us=1000", CP_DP, "cpu_launch", (1,)),
    Planted("doc_imbalance:factor=4", CP_DP, "data_imbalance"),
    Planted("slow_compute:rank=1,factor=1.5", PP_DP, "gpu_compute", (1,)),
    Planted("pauses:rank=2,pause_ms=150,every=10", PP_DP, "host_stall", (2,)),
    Planted("long_stage:factor=1.6", PP_DP, "stage_imbalance"),
    Planted("slow_compute:rank=2,factor=1.8", TP_DP, "gpu_compute", (2,)),
    Planted("launch_bound:rank=0,delay_us=600", TP_DP, "cpu_launch", (0,)),
    Planted("pauses:rank=1,pause_ms=60,every=10", TP_PP, "host_stall", (1,)),
    Planted("slow_link:rank=3,delay_ms=8", TP_PP, "network", (3,)),
    Planted("slow_link:rank=0,delay_ms=12", CP_DP, "network", (0,)),
    Planted("late_data:rank=2,delay_ms=150", PP_DP, "dataloader", (2,)),
    Planted("doc_imbalance:rank=2,factor=3", TP_DP, "data_imbalance"),
)
