"""Traces of jobs of two programs: image encoders on ranks of their own beside a language model."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.reports.jobs import UNIT, traced
from tests.reports.uneven import Grouped
from tests.shapes.calls import Group
from tests.shapes.layers import layer, load, update
from tests.shapes.rank import Rank

ENCODERS, WORLD = tuple(range(4)), 12
DATA, TENSOR, BRIDGE = "DATA_PARALLEL_GROUP", "TENSOR_MODEL_PARALLEL_GROUP", "BRIDGE_GROUP"
Groups = dict[str, Sequence[Sequence[int]]]
GROUPS: Groups = {
    DATA: [ENCODERS, *((rank, rank + 4) for rank in range(4, 8))],
    TENSOR: [range(4, 8), range(8, 12)],
    BRIDGE: [range(WORLD)],
}
"""Four replicas of the encoder (dp=4) and eight ranks of the language model (tp=4, dp=2)."""


@dataclass(frozen=True)
class Beside:
    """Encoders of `layers` layers beside a language model of six; ranks `slow` take `factor` times as long.

    An encoder alone reduces nothing. Without tensor groups, the language model reduces each layer among its replicas.
    """

    layers: int = 6
    slow: Collection[int] = ()
    factor: float = 1.5
    encoders: Collection[int] = ENCODERS

    def __call__(self, groups: dict[str, Group], rank: Rank) -> None:
        """Run one step of a rank."""
        unit = UNIT * (self.factor if rank.number in self.slow else 1.0)
        encodes = rank.number in self.encoders
        if encodes:
            load(rank)
            for _ in range(self.layers):
                layer(rank, unit)
        rank.collective(groups.get(BRIDGE, groups["world"]), "_allgather_base", 10**6, 12 * 10**6)
        for back in (False, True) if not encodes else ():
            for _ in range(6):
                layer(rank, unit, backward=back)
                rank.collective(groups.get(TENSOR, groups[DATA]), "allreduce", 10**6, 10**6)
        if DATA in groups:
            rank.collective(groups[DATA], "allreduce", 8 * 10**6, 8 * 10**6, "Float")
        update(rank, unit * (1 if encodes else 2))


def beside(folder: Path, body: Beside, groups: Groups = GROUPS, lost: Collection[int] = ()) -> Path:
    """Return the folder with the traces of such a job, of the ranks in `groups` without the `lost` ones."""
    world = 1 + max(rank for members in groups.values() for group in members for rank in group)
    traced(folder, world, Grouped(groups, body), steps=5, recorded=[r for r in range(world) if r not in lost])
    return folder
