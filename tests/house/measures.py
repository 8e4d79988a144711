"""What the layout of tracekit is measured by."""

import ast

from tests.house.source import modules, tree
from tracekit import axes

NAMED = {name for name in vars(axes) if getattr(axes, name) in axes.AXES}
"""The constants that stand for one axis."""


def literal_axis(path: str) -> bool:
    """Whether a module writes the name of an axis as a string of its own."""
    return any(isinstance(n, ast.Constant) and n.value in axes.AXES for n in ast.walk(tree(path)))


def files_naming_an_axis() -> list[str]:
    """Modules of tracekit that treat an axis by its name, as a string or by its constant."""
    return [path for path in modules("tracekit") if literal_axis(path) or NAMED & _imported_axes(path)]


def _imported_axes(path: str) -> set[str]:
    return {
        alias.name
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and node.module == axes.__name__
        for alias in node.names
    }
