"""The mesh of a job: axes, their sizes, and the coordinates of every rank."""

from tracekit.mesh.families import GroupUse
from tracekit.mesh.grid import DIMS, Mesh, from_sizes, parse_mesh, parse_order, parse_sizes
from tracekit.mesh.infer import Inference, infer

__all__ = [
    "DIMS",
    "GroupUse",
    "Inference",
    "Mesh",
    "from_sizes",
    "infer",
    "parse_mesh",
    "parse_order",
    "parse_sizes",
]
