"""The run's ranks as coordinates in one process, and the groups in which they reduce."""

import itertools
from dataclasses import dataclass
from typing import Final

from reftrain.config.run import MeshConfig
from tracekit.axes import DESCENT

EVERYWHERE: Final = -1
"""Place on ep of a parameter that all ranks of ep hold."""


@dataclass(frozen=True, order=True)
class Seat:
    """The coordinates of a virtual rank."""

    dp: int
    pp: int
    cp: int
    tp: int


class Grid:
    """All seats of a mesh, their global ranks and groups."""

    def __init__(self, mesh: MeshConfig) -> None:
        self.mesh = mesh
        self.sizes = mesh.sizes

    def rank(self, seat: Seat) -> int:
        """Global rank of a seat: the first axis of the mesh's order is innermost."""
        rank = 0
        for axis in reversed(self.mesh.order):
            rank = rank * self.sizes[axis] + int(getattr(seat, axis))
        return rank

    def seats(self) -> list[Seat]:
        """All seats by global rank."""
        spans = (range(self.sizes[axis]) for axis in DESCENT)
        return sorted((Seat(*at) for at in itertools.product(*spans)), key=self.rank)

    def data_group(self, pp: int, tp: int) -> list[Seat]:
        """Seats that hold the same parameters: all of data and context parallelism, by global rank."""
        return [seat for seat in self.seats() if (seat.pp, seat.tp) == (pp, tp)]

    def place(self, seat: Seat) -> int:
        """Place of a seat on ep, EVERYWHERE where there is no such axis."""
        return seat.dp % self.mesh.ep if self.mesh.ep > 1 else EVERYWHERE

    def lock_step(self, dp: int, pp: int) -> list[Seat]:
        """Seats of a stage that exchange tokens or activations: `ep` neighbours from `dp` on, with all cp and tp."""
        mesh = self.mesh
        spans = range(dp, dp + mesh.ep), range(mesh.cp), range(mesh.tp)
        return [Seat(at, pp, cp, tp) for at, cp, tp in itertools.product(*spans)]

    def shard_groups(
        self, pp: int, tp: int, dealt: int = EVERYWHERE, *, whole: bool = False
    ) -> list[list[Seat]]:
        """Groups that shard a parameter among themselves: one, or with HSDP or ZeRO-0 several replicas.

        `dealt` is the place on ep of the ranks that hold it; each rank is a group where it is kept `whole`.
        """
        group = self.data_group(pp, tp)
        if whole:
            return [[seat] for seat in group]
        if dealt != EVERYWHERE:
            return [[seat for seat in group if seat.dp % self.mesh.ep == dealt]]
        if self.mesh.replicates:
            return [[seat] for seat in group]
        ranks = self.mesh.dp_shard or self.mesh.dp
        replicas = self.mesh.dp // ranks
        return [[seat for seat in group if seat.dp // ranks == replica] for replica in range(replicas)]
