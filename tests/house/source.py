"""The repository's own source as data, for tests that read code."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("tracekit", "numerics", "reftrain")
CODE = (*LIBRARIES, "cli", "studies")


def modules(*folders: str) -> list[str]:
    """Paths of all modules below the folders, from the root of the repository, sorted."""
    return sorted(
        path.relative_to(ROOT).as_posix() for name in folders for path in (ROOT / name).rglob("*.py")
    )


@cache
def tree(path: str) -> ast.Module:
    """Syntax tree of a module; treat it as read-only."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def functions(path: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Qualified name and definition of every function of a module, nested ones and methods too."""
    yield from functions_in(tree(path))


def functions_in(
    node: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Qualified name and definition of every function below a node of a syntax tree."""
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not isinstance(child, ast.ClassDef):
                yield prefix + child.name, child
            inner = f"{prefix}{child.name}."
        yield from functions_in(child, inner)
