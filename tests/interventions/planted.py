"""The faults that are planted into real runs of four ranks, and what `slowrank` must answer of each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Planted:
    """A fault as `reftrain run --fault` takes it, the mesh of its run, and the right cause and ranks.

    No ranks: the answer is an imbalance, of which no rank is asked for.
    """

    fault: str
    mesh: str
    cause: str
    ranks: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of the fault."""
        return self.fault.partition(":")[0]


TP_DP, TP_PP, CP_DP, PP_DP = "tp=2,dp=2", "tp=2,pp=2", "cp=2,dp=2", "pp=2,dp=2"
FAULTS = (
    Planted("slow_compute:rank=1,factor=1.3", TP_DP, "gpu_compute", (1,)),
    Planted("slow_compute:rank=2,factor=1.8", TP_DP, "gpu_compute", (2,)),
    Planted("pauses:rank=3,pause_ms=60,every=12", TP_DP, "host_stall", (3,)),
    Planted("launch_bound:rank=0,delay_us=300", TP_DP, "cpu_launch", (0,)),
    Planted("late_data:rank=2,delay_ms=200", TP_DP, "dataloader", (2,)),
    Planted("slow_link:rank=1,delay_ms=3", TP_DP, "network", (1,)),
    Planted("doc_imbalance:rank=2,factor=3", TP_DP, "data_imbalance"),
    Planted("slow_compute:rank=2,factor=1.4", TP_PP, "gpu_compute", (2,)),
    Planted("long_stage:rank=0,factor=1.4", TP_PP, "stage_imbalance"),
    Planted("pauses:rank=1,pause_ms=40,every=16", TP_PP, "host_stall", (1,)),
    Planted("late_data:rank=0,delay_ms=300", TP_PP, "dataloader", (0,)),
    Planted("slow_link:rank=3,delay_ms=4", TP_PP, "network", (3,)),
    Planted("slow_compute:rank=3,factor=1.5", CP_DP, "gpu_compute", (3,)),
    Planted("launch_bound:rank=1,delay_us=500", CP_DP, "cpu_launch", (1,)),
    Planted("slow_link:rank=0,delay_ms=6", CP_DP, "network", (0,)),
    Planted("doc_imbalance:factor=4", CP_DP, "data_imbalance"),
    Planted("slow_compute:rank=1,factor=1.5", PP_DP, "gpu_compute", (1,)),
    Planted("pauses:rank=2,pause_ms=150,every=30", PP_DP, "host_stall", (2,)),
    Planted("late_data:rank=2,delay_ms=150", PP_DP, "dataloader", (2,)),
    Planted("long_stage:factor=1.6", PP_DP, "stage_imbalance"),
)
