"""The axes are written once, in tracekit/axes.py, and few files of tracekit treat one by its name."""

import ast

from tests.house.measures import files_naming_an_axis, here
from tests.house.source import CODE, modules, tree
from tracekit.axes import AXES, PARTS, TABLE

HOME = "tracekit/axes.py"
MOST_FILES = 17
"""The colours of pages are one of them, predictions of other meshes another; it was 33 before the mesh answered
questions about stages and replicas."""


def literal_axes(path):
    """Lines of tuples, lists and sets in a module that name all axes."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            named = [part.value for part in node.elts if isinstance(part, ast.Constant)]
            if set(AXES) <= set(map(str, named)):
                yield node.lineno


def test_axes_are_listed_nowhere_else():
    found = {path: list(literal_axes(path)) for path in modules(*CODE)}
    assert {path for path, lines in found.items() if lines} == set()


def test_axes_are_written_once():
    assert files_naming_an_axis(here(), literally=True) == [HOME]


def test_few_files_name_an_axis():
    assert len(files_naming_an_axis(here())) <= MOST_FILES, files_naming_an_axis(here())


def test_every_axis_is_of_the_mesh_or_inside_one():
    assert {*AXES, *PARTS} == {axis.name for axis in TABLE}
    assert {part.inside for part in PARTS.values()} <= set(AXES)
