"""Modules have at most 300 lines, functions at most 40; what is longer stands here with its reason."""

import ast

from tests.house.source import CODE, ROOT, functions, modules

MODULE_LINES = 300
FUNCTION_LINES = 40

LONG_MODULES: dict[str, str] = {}
"""Modules that splitting would make harder to read, and why."""

LONG_FUNCTIONS: dict[str, str] = {}
"""Functions (`path:name`) that splitting would make harder to read, and why."""


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end."""
    return function.end_lineno - function.lineno + 1


def test_modules_are_short():
    long = {path for path in modules(*CODE) if len((ROOT / path).read_text().splitlines()) > MODULE_LINES}
    assert long == set(LONG_MODULES)


def test_functions_are_short():
    long = {
        f"{path}:{name}"
        for path in modules(*CODE)
        for name, function in functions(path)
        if lines_of(function) > FUNCTION_LINES
    }
    assert long == set(LONG_FUNCTIONS)


def test_every_exception_has_a_reason():
    assert all(reason.strip() for reason in [*LONG_MODULES.values(), *LONG_FUNCTIONS.values()])
