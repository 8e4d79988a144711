"""Names of tests stay short enough to read at a glance, and none hides another of its module."""

import ast
from functools import cache
from pathlib import Path

from tests.house.source import functions_in

TESTS = Path(__file__).parents[1]
MOST_WORDS = 9


@cache
def names_in(path):
    """Names of a module's test functions, in its order."""
    names = [name.rpartition(".")[2] for name, _ in functions_in(ast.parse(path.read_text()))]
    return [name for name in names if name.startswith("test_")]


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
