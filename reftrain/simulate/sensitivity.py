"""Whether the planner's choice holds when a hardware constant moves: `python -m reftrain.simulate.sensitivity`.

The meshes near the choice are collected once, with a fifth more memory than the machine has; then every
constant is moved down and up by a fifth, the collected jobs are replayed, and the decision is taken again.
For a constant that flips the choice, the factor nearest to 1 that does is sought.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

from reftrain.schedule.actions import Schedule
from reftrain.simulate.hardware import Hardware, load_hardware
from reftrain.simulate.job import Job
from reftrain.simulate.meshes import Mesh, Workload
from reftrain.simulate.plan import TIE, Planner, axes_of, mesh_of
from reftrain.simulate.plan_report import mesh_text
from reftrain.simulate.projection import cost_model, durations, network_bytes
from reftrain.simulate.published import LLAMA_405B, TOKENS
from reftrain.simulate.replay import replay

FACTORS = (0.8, 1.2)
MARGIN = 1.18
"""Jobs further than this above the fastest cannot come into a tie when one constant moves by a fifth."""


@dataclass(frozen=True)
class Near:
    """A job near the choice: what its memory is, what it sends, and its table."""

    job: Job
    memory: float
    sent: float
    table: Schedule


@dataclass(frozen=True)
class Moved:
    """A constant moved by a factor: the mesh then chosen, and how much slower it is than the fastest."""

    constant: str
    factor: float
    mesh: Mesh
    behind: float


class Sensitivity:
    """The decision of one workload, taken again under changed hardware."""

    def __init__(self, workload: Workload, hardware: Hardware) -> None:
        self.hardware = hardware
        roomy = hardware.with_constant("device.memory_gib", 1.2 * hardware.device.memory_gib)
        examined = Planner(workload, roomy).examine()
        fastest = min(step for _, _, step in examined)
        self.near = [
            Near(job, memory, network_bytes(job, cost_model(job, hardware)), job.lowered)
            for job, memory, step in examined
            if step <= MARGIN * fastest
        ]

    def seconds(self, near: Near, hardware: Hardware) -> float:
        """Projected step of a job on changed hardware."""
        return replay(near.table, durations(near.job, cost_model(near.job, hardware))).seconds

    def choose(self, hardware: Hardware) -> tuple[Mesh, float]:
        """Mesh that is chosen, and its step over the fastest's less 1."""
        best: dict[Mesh, tuple[float, float]] = {}
        for near in self.near:
            if near.memory <= hardware.usable_bytes:
                mesh = mesh_of(near.job)
                step = self.seconds(near, hardware)
                best[mesh] = min(best.get(mesh, (math.inf, 0.0)), (step, near.sent))
        fastest = min(step for step, _ in best.values())
        tied = [mesh for mesh, (step, _) in best.items() if step <= (1 + TIE) * fastest]
        taken = min(tied, key=lambda mesh: (axes_of(mesh), best[mesh][1], best[mesh][0]))
        return taken, best[taken][0] / fastest - 1

    def moved(self, constant: str, factor: float) -> Moved:
        """Move one constant."""
        value = self.hardware.constants()[constant] * factor
        mesh, behind = self.choose(self.hardware.with_constant(constant, value))
        return Moved(constant, factor, mesh, behind)

    def flip(self, constant: str, factor: float, steps: int = 5) -> float:
        """Factor between 1 and `factor` at which the choice turns."""
        held, other = 1.0, factor
        chosen, _ = self.choose(self.hardware)
        for _ in range(steps):
            middle = (held + other) / 2
            held, other = (middle, other) if self.moved(constant, middle).mesh == chosen else (held, middle)
        return other


def report(sequences: Sequence[int], hardware: Hardware, gpus: int = 16384) -> str:
    """Table of all constants and sequence lengths, as Markdown."""
    lines = []
    for seq_len in sequences:
        workload = Workload(LLAMA_405B, gpus, seq_len, TOKENS // seq_len)
        one = Sensitivity(workload, hardware)
        chosen, behind = one.choose(hardware)
        lines += [
            f"{seq_len} tokens: {mesh_text(chosen)}, {100 * behind:.1f} % behind the fastest.",
            "",
            "| constant | x 0.8 | x 1.2 |",
            "|---|---|---|",
        ]
        for constant in hardware.constants():
            cells = [_cell(one, constant, factor, chosen) for factor in FACTORS]
            lines.append(f"| {constant} | {cells[0]} | {cells[1]} |")
        lines.append("")
    return "\n".join(lines)


def _cell(one: Sensitivity, constant: str, factor: float, chosen: Mesh) -> str:
    moved = one.moved(constant, factor)
    if moved.mesh == chosen:
        return f"holds ({100 * moved.behind:.1f} % behind)"
    return f"{mesh_text(moved.mesh)} from x {one.flip(constant, factor):.2f} on"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Move every hardware constant by a fifth and plan again.")
    parser.add_argument("--hardware", default="h100", help="a known machine, or a .toml file (default h100)")
    parser.add_argument(
        "--seq", type=int, action="append", help="tokens of a sequence (default 8192 and 131072)"
    )
    given = parser.parse_args()
    print(report(given.seq or (8192, 131072), load_hardware(given.hardware)))  # noqa: T201 - the table is the answer


if __name__ == "__main__":
    main()
