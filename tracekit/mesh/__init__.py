"""The mesh of a job: axes, their sizes, and the coordinates of every rank."""

from tracekit.mesh.families import GroupUse
from tracekit.mesh.grid import Mesh, from_sizes
from tracekit.mesh.infer import Inference, infer
from tracekit.mesh.parse import parse_mesh, parse_order, parse_sizes

__all__ = [
    "GroupUse",
    "Inference",
    "Mesh",
    "from_sizes",
    "infer",
    "parse_mesh",
    "parse_order",
    "parse_sizes",
]
