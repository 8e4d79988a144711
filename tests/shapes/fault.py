"""What is wrong in a job: which ranks, what of them, by how much, in which steps."""

from dataclasses import dataclass

CAUSES = {
    "slow_gpu": "gpu_compute",
    "slow_gemm": "gpu_compute",
    "slow_memory": "gpu_compute",
    "slow_host": "cpu_launch",
    "pauses": "host_stall",
    "slow_nic": "network",
    "slow_nvlink": "network",
    "late_data": "dataloader",
    "slow_node": "gpu_compute",
    "two_gpus": "gpu_compute",
    "intermittent": "gpu_compute",
}
"""The cause that an answer should tell, by kind of fault."""
NEWER = {
    "throttling": "gpu_compute",
    "power_cap": "gpu_compute",
    "slow_pcie": "gpu_compute",
    "busy_host": "cpu_launch",
    "allocations": "memory",
    "logging": "host_stall",
    "compiling": "host_stall",
    "late_host": "dataloader",
    "nic_out": "network",
    "flaky_nic": "network",
    "slow_port": "network",
}
"""The same for kinds that seeds from 3000 have beside those."""
LINKS = ("slow_nic", "slow_nvlink", "nic_out", "flaky_nic", "slow_port")
STALLS = ("pauses", "late_data", "allocations", "logging", "compiling", "late_host")


@dataclass(frozen=True)
class Part:
    """One thing that is slow.

    By a factor: `gpu`, `gemm`, `memory`, `copy` (over PCIe), `host`, `nic`, `nic_out`, `port`, `nvlink`; by µs: `retry`
    of a card, `pause`, `data`, `log` of a step, `allocate`, `compile`.
    """

    what: str
    ranks: tuple[int, ...]
    amount: float
    steps: tuple[int, ...] | None = None

    def applies(self, what: str, step: int) -> bool:
        """Whether this part slows such work in a step."""
        return self.what == what and (self.steps is None or step in self.steps)


@dataclass(frozen=True)
class Fault:
    """A fault of one kind (a key of CAUSES or NEWER)."""

    kind: str
    parts: tuple[Part, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The culprits."""
        return tuple(sorted({rank for part in self.parts for rank in part.ranks}))

    @property
    def once(self) -> bool:
        """Whether it is a stall in one step alone."""
        return self.kind in STALLS and all(
            part.steps is not None and len(part.steps) == 1 for part in self.parts
        )

    def factor(self, what: str, rank: int, step: int) -> float:
        """By how much a rank's work is longer."""
        product = 1.0
        for part in self.parts:
            if part.applies(what, step) and rank in part.ranks:
                product *= part.amount
        return product

    def stall_us(self, what: str, rank: int, step: int) -> float:
        """How long a rank's host stalls, before chance; 0 where it does not."""
        return sum(part.amount for part in self.parts if part.applies(what, step) and rank in part.ranks)
