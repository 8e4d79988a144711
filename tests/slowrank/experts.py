"""Hand-made jobs with experts: dense layers along tp, tokens along ep and back, gradients along dp and edp."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from tests.slowrank.events import Timeline, write_run
from tracekit.mesh import Mesh
from tracekit.store import Run

DENSE_US, ROUTER_US, EXPERT_US, TRANSFER_US = 900.0, 60.0, 700.0, 40.0
TOKENS = 4000
MEGATRON = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "edp": "EXPERT_DATA_PARALLEL_GROUP",
}
TORCHTITAN = {kind: f"mesh_{kind}" for kind in MEGATRON} | {"dp": "mesh_fsdp", "edp": "mesh_efsdp"}
UNDESCRIBED = dict.fromkeys(MEGATRON, "undefined")


class Experts:
    """A job on a mesh whose experts lie in the groups of its axis `ep`.

    slow: factor on all kernels of a rank. liked: tokens of each rank's experts over an even share, by rank. names: what
    groups are called, by kind. called: the number of each rank in the traces, by rank of the mesh.
    """

    def __init__(
        self,
        mesh: Mesh,
        *,
        slow: Mapping[int, float] = {},
        liked: Mapping[int, float] = {},
        names: Mapping[str, str] = MEGATRON,
        called: Sequence[int] = (),
        link: Mapping[tuple[int, ...], float] = {},
        even: bool = False,
        steps: int = 3,
        layers: int = 5,
    ) -> None:
        self.mesh, self.slow, self.liked, self.link, self.even = mesh, slow, liked, link, even
        self.steps, self.layers = steps, layers
        self.name = dict(zip(sorted(mesh.coordinates), called or sorted(mesh.coordinates), strict=True))
        self.lines = {rank: Timeline(self.name[rank]) for rank in sorted(mesh.coordinates)}
        kinds = [axis for axis in mesh.order if mesh.sizes[axis] > 1]
        found = {(kind, mesh.line(rank, [kind])) for kind in (*kinds, "ep") for rank in mesh.coordinates}
        found |= {("edp", mesh.copies(rank, "ep")) for rank in mesh.coordinates}
        self.groups = [(kind, ranks) for kind, ranks in sorted(found) if len(ranks) > 1]
        self.number: dict[tuple[int, ...], int] = {}
        self.descs: dict[int, list[str]] = {}
        for kind, ranks in self.groups:  # one group for all descriptions of the same members
            number = self.number.setdefault(ranks, len(self.number))
            self.descs.setdefault(number, []).append(names[kind])
        self.random = np.random.default_rng(7)

    def write(self, folder: Path, lost: Collection[int] = ()) -> Run:
        """Record all steps; ranks in `lost` leave no file."""
        for step in range(self.steps):
            begins = {rank: line.at for rank, line in self.lines.items()}
            self.one_step()
            for rank, line in self.lines.items():
                line.step(step, begins[rank])
        groups = {number: tuple(sorted(self.name[r] for r in ranks)) for ranks, number in self.number.items()}
        kept = sorted((line for r, line in self.lines.items() if r not in lost), key=lambda line: line.rank)
        descs = {number: tuple(names) for number, names in self.descs.items()}
        return write_run(folder, kept, groups, descs, self.mesh.world_size)

    def one_step(self) -> None:
        """Forward and backward on one stage after the other, as of one micro-batch, then gradients."""
        stages = range(self.mesh.stages)
        for back, order in ((False, stages), (True, reversed(stages))):
            for stage in order:
                mine = [rank for rank in self.lines if self.mesh.stage(rank) == stage]
                if stage != (self.mesh.stages - 1 if back else 0):
                    self.messages(mine, 1 if back else -1)
                for _ in range(self.layers):
                    self.layer(mine, 2.0 if back else 1.0)
        for kind in ("edp", "dp"):
            self.together(list(self.lines), kind, "all_reduce")

    def layer(self, ranks: Sequence[int], scale: float) -> None:
        """A dense part and experts."""
        self.compute(ranks, dict.fromkeys(ranks, DENSE_US * scale))
        self.together(ranks, "tp", "all_reduce")
        self.together(ranks, "cp", "all_gather")
        self.compute(ranks, dict.fromkeys(ranks, ROUTER_US * scale), "router")
        share = {r: self.liked.get(r, 1.0) * self.random.uniform(0.97, 1.03) for r in ranks}
        taken = {r: TOKENS if self.even else round(TOKENS * share[r]) for r in ranks}
        self.together(ranks, "ep", "all_to_all", lambda r: {"in_nelems": TOKENS, "out_nelems": taken[r]})
        self.compute(ranks, {r: EXPERT_US * scale * taken[r] / TOKENS for r in ranks}, "grouped_gemm")
        self.together(ranks, "ep", "all_to_all", lambda r: {"in_nelems": taken[r], "out_nelems": TOKENS})

    def compute(self, ranks: Sequence[int], us: Mapping[int, float], name: str = "gemm") -> None:
        for rank in ranks:
            noise = self.random.uniform(0.996, 1.004)
            self.lines[rank].compute(us[rank] * noise * self.slow.get(rank, 1.0), name)

    def together(self, ranks, kind, op, more=lambda rank: {}) -> None:
        """An operation of all groups of a kind among `ranks`."""
        for members in (m for k, m in self.groups if k == kind and set(m) <= set(ranks)):
            handles = {r: self.lines[r].post(self.number[members], op) for r in members}
            end = max(handle[0] for handle in handles.values()) + TRANSFER_US * self.link.get(members, 1.0)
            for r in members:
                self.lines[r].finish(handles[r], end, **more(r))

    def messages(self, ranks: Sequence[int], step: int) -> None:
        """What `ranks` receive from the stage `step` before or behind them; the sender goes on."""
        for rank in ranks:
            line = sorted(self.mesh.pipeline(rank), key=self.mesh.stage)
            other = line[self.mesh.stage(rank) + step]
            ends = {"src_rank": self.name[other], "dst_rank": self.name[rank]}
            number = self.number[self.mesh.pipeline(rank)]
            sent, came = self.lines[other].post(number, "send"), self.lines[rank].post(number, "recv")
            end = max(sent[0], came[0]) + TRANSFER_US
            self.lines[other].finish(sent, end, **ends)
            self.lines[rank].finish(came, end, **ends)
