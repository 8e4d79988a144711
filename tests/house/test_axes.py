"""The axes of the mesh are written once: in tracekit/axes.py."""

import ast

from tests.house.source import CODE, modules, tree
from tracekit.axes import AXES

HOME = "tracekit/axes.py"


def literal_axes(path):
    """Lines of tuples, lists and sets in a module that name all axes."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            named = [part.value for part in node.elts if isinstance(part, ast.Constant)]
            if set(AXES) <= set(map(str, named)):
                yield node.lineno


def test_axes_are_written_once():
    found = {path: list(literal_axes(path)) for path in modules(*CODE)}
    assert {path for path, lines in found.items() if lines} == {HOME}
