"""Process groups of known meshes, as the traces of a launcher would show them."""

from collections.abc import Mapping, Sequence

from tests.generator.mesh import MEGATRON, SPANS, TORCHTITAN
from tracekit.axes import AXES
from tracekit.mesh import GroupUse, Mesh, from_sizes

AXIS_KINDS = ("tp", "cp", "pp", "dp")
STYLES: Mapping[str, Mapping[str, str]] = {"megatron": MEGATRON, "torchtitan": TORCHTITAN}
HABITS = {  # what an axis does in training, for groups that nothing names
    "tp": {
        "collectives": 400,
        "ops": frozenset({"all_gather", "reduce_scatter"}),
        "exposed": 0.95,
        "alternation": 1.0,
    },
    "cp": {"collectives": 96, "ops": frozenset({"all_gather"}), "exposed": 0.9, "alternation": 0.0},
    "pp": {"p2p": 64, "ops": frozenset({"p2p"})},
    "dp": {"collectives": 4, "ops": frozenset({"all_reduce"}), "exposed": 0.2},
}


def grid(order: Sequence[str] = AXES, **sizes: int) -> Mesh:
    """A mesh numbered along `order`; axes left out have size 1."""
    return from_sizes(dict.fromkeys(AXES, 1) | sizes, order)


def members(mesh: Mesh, dims: Sequence[str]) -> list[tuple[int, ...]]:
    """All groups along `dims`."""
    return sorted({mesh.line(r, dims) for r in mesh.coordinates})


def groups(mesh: Mesh, kinds: Sequence[str] = AXIS_KINDS, style: str | None = "torchtitan") -> list[GroupUse]:
    """The groups of `kinds` with what they do; `style` None leaves them without a description."""
    uses = []
    for kind in kinds:
        habits = HABITS.get(kind, {"collectives": 2, "ops": frozenset({"all_reduce"})})
        descs = (STYLES[style][kind],) if style else ()
        uses += [GroupUse(ranks, descs, **habits) for ranks in members(mesh, SPANS[kind])]
    return uses


def relabelled(uses: Sequence[GroupUse], labels: Sequence[int]) -> list[GroupUse]:
    """The same groups with rank r called `labels[r]`."""
    return [
        GroupUse(
            tuple(sorted(labels[r] for r in u.ranks)),
            u.descs,
            u.collectives,
            u.p2p,
            u.ops,
            u.exposed,
            u.alternation,
        )
        for u in uses
    ]


def same_lines(found: Mesh, truth: Mesh) -> bool:
    """Whether both meshes have the same groups along every axis, whatever the index of each."""
    return all(found.line(r, [d]) == truth.line(r, [d]) for r in truth.coordinates for d in AXES)
