"""Every message of the packages that advises something, read from the code that raises it."""

import ast

from tests.house.source import ROOT

PACKAGES = ("tracekit", "cli", "numerics", "reftrain")
ENDINGS = ("Error", "BadParameter", "fails")
"""How classes of errors end, or a class that a function is given as its `fails`."""
PLAIN = frozenset(
    {"AssertionError", "AttributeError", "KeyError", "OSError", "RuntimeError", "TypeError", "ValueError"}
)
"""Errors that no user meets: a caller turns them into a message of its own, or they are faults of ours."""


def advised() -> dict[str, str]:
    """Return the text of each message with advice by its place, `package/module.py:function` and a number from 2 on."""
    found: dict[str, str] = {}
    for path in sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py")):
        where = str(path.relative_to(ROOT))
        for function, text in _raised(ast.parse(path.read_text())):
            key = f"{where}:{function}"
            number = 1 + sum(k == key or k.startswith(f"{key}#") for k in found)
            found[key if number == 1 else f"{key}#{number}"] = text
    return found


def _raised(tree: ast.Module) -> list[tuple[str, str]]:
    """(function, text) of every error with advice that is made in a module, in the order of the text."""
    made: list[tuple[int, str, str]] = []

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.Call) and (text := _advice(node)):
            made.append((node.lineno, function, text))
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(tree, "module")
    return [(function, text) for _, function, text in sorted(made)]


def _advice(call: ast.Call) -> str:
    """The text of an error that says what to do: a remedy of its own, or a sentence behind a semicolon."""
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    if not name.endswith(ENDINGS) or name in PLAIN or not call.args:
        return ""
    texts = [text_of(argument) for argument in call.args]
    if len(texts) == len(("field", "problem", "remedy")):
        return f"{texts[0]}: {texts[1]}; {texts[2]}"
    text = texts[-1]
    return text if "; " in text else ""


def text_of(node: ast.expr) -> str:
    """A text with `{}` for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(v) if isinstance(v, ast.Constant) else "{}" for v in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return "{}"
