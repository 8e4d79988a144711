"""Names of tests stay short enough to read at a glance, and none hides another of its module."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
MOST_WORDS = 9


def names_in(path):
    """Names of a module's test functions, in its order."""
    tree = ast.parse(path.read_text())
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def test_names_have_under_ten_words():
    long = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for name in names_in(path)
        if len(name.removeprefix("test").split("_")) - 1 > MOST_WORDS
    ]
    assert not long


def test_no_test_hides_another():
    hidden = [
        path.name for path in TESTS.rglob("test_*.py") if len(set(names_in(path))) < len(names_in(path))
    ]
    assert not hidden
