"""Every threshold has a name and a reason: no bare number in a comparison, no constant without a sentence."""

import ast

import pytest

from tests.house.source import CODE, functions, modules, tree

FREE_INTEGERS = 2
"""Integers from -2 to 2 count, index and compare signs; nobody tunes them."""
FREE_FLOATS = (0.0, 1.0)


def bare_numbers(path):
    """Line and value of every number that a comparison of this module writes out."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                yield from numbers_in(side)


def numbers_in(side):
    """Numbers of one side of a comparison, without those that only choose an element or a slice."""
    if isinstance(side, ast.Constant) and is_threshold(side.value):
        yield side.lineno, side.value
    for part in ast.iter_child_nodes(side):
        if not (isinstance(side, ast.Subscript) and part is side.slice):
            yield from numbers_in(part)


def is_threshold(value):
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return abs(value) > FREE_INTEGERS
    return isinstance(value, float) and abs(value) not in FREE_FLOATS


def undocumented(path):
    """Names of constants of a module without a reason; lines without a gap between them share one."""
    body = tree(path).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            shares = isinstance(after, ast.Assign | ast.AnnAssign) and after.lineno == node.end_lineno + 1
            if not shares and not is_reason(after):
                yield ast.unparse(target)


def is_reason(node):
    told = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return told and isinstance(node.value.value, str) and len(node.value.value.split()) > FREE_INTEGERS


def test_comparisons_hold_no_bare_numbers():
    found = {path: sorted(set(bare_numbers(path))) for path in modules(*CODE)}
    assert {path: numbers for path, numbers in found.items() if numbers} == {}


@pytest.mark.parametrize("package", ["tracekit", "numerics", "reftrain"])
def test_every_threshold_has_its_reason(package):
    paths = [p for p in modules(package) if p.startswith(f"{package}/thresholds")]
    assert paths
    for path in paths:
        assert list(undocumented(path)) == []
        assert list(functions(path)) == []


def test_bare_number_is_found(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("LIMIT = 3\n\nfound = x[9] > 0.02 or len(y) >= 7 or z == 1.0 or i < 2\n")
    monkeypatch.setattr("tests.house.source.ROOT", tmp_path)
    tree.cache_clear()
    assert [value for _, value in bare_numbers("a.py")] == [0.02, 7]
    assert list(undocumented("a.py")) == ["LIMIT", "found"]
    tree.cache_clear()
