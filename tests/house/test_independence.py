"""Generators that measure the analysis share nothing with it nor with each other: they ask it as a program."""

import ast
import sys

import pytest

from tests.house.source import modules, tree

OTHERS = sys.stdlib_module_names | {"pytest", "hta"}
"""What such a room may import beside itself: HTA is a baseline."""
SHARED = {"tests.marks"}


def imported(path):
    """Names of modules that a module imports, wherever it does; a relative import begins with a dot."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


@pytest.mark.parametrize("room", ["localise", "shapes", "hang_shapes"])
def test_a_generator_imports_itself_alone(room):
    names = {(path, name) for path in modules(f"tests/{room}") for name in imported(path)}
    strange = {
        (path, name)
        for path, name in names
        if f"{name}.".split(f"tests.{room}.")[0] and name.split(".")[0] not in OTHERS and name not in SHARED
    }
    assert names
    assert strange == set()
