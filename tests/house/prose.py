"""Turns of phrase that the project does not write, and the texts that a user or a reader of the code meets."""

import ast
import re
from collections.abc import Iterator

from tests.house.source import ROOT, modules, tree

PACKAGES = ("tracekit", "numerics", "reftrain", "cli")
PATTERNS = {
    "meant": r"\b(?:is|are|was|were|be|been) meant\b",
    "none": r"(?<!there )\b(?:is|are|was|were|be) none\b(?! of)",
    "told": r"\b(?:told|untold|tells?|telling)\b(?!:)",
    "who": r"\b(?:who|whose|whom|whoever)\b",
    "somebody": r"\b(?:some|no|any|every)body(?:'s)?\b",
    "of which": r"\bof (?:which|whom)\b",
    "by how much": r"\bby how (?:much|many)\b",
    "stands": r"(?<!-)\b(?:stands?|stood|standing)\b(?!-)",
    "those that": r"\bthose (?:that|who|which|whose)\b",
    "starts with Of": r"\AOf\b",
    "inverted": (
        r"(?:\A|(?<=[.:;] )|(?<=\n\n))(?:Is|Are|Was|Were|Has|Have|Had|Does|Do|Did|Can|Could|Should)\s"
        r"[^.?!;]*?,[^?!;.]*\."
    ),
}
"""What each test is called, and the expression that finds it; style: a subject, a verb, an object, in this order."""
_COMPILED = {
    name: re.compile(pattern, 0 if name in {"inverted", "none", "starts with Of"} else re.IGNORECASE)
    for name, pattern in PATTERNS.items()
}
_PEOPLE = re.compile(
    r"\b(authors?|colleagues?|developers?|engineers?|operators?|people|readers?|users?) who\b", re.IGNORECASE
)
_SHOWN = re.compile(r"^```\n\$ .*?^```$", re.MULTILINE | re.DOTALL)
"""Sessions of a page: commands and what they print, which messages are searched for already."""
_CODE = re.compile(r"`[^`\n]*`")


def phrases(text: str) -> list[str]:
    """Return the turns of phrase in a text that the project does not write, each with a few words around it."""
    text = _PEOPLE.sub(r"\1 that", _CODE.sub("`code`", text))
    return [
        f"{name}: …{' '.join(text[max(m.start() - 40, 0) : m.end() + 30].split())}…"
        for name, pattern in _COMPILED.items()
        for m in pattern.finditer(text)
    ]


def pages() -> Iterator[tuple[str, str]]:
    """Yield path and text of each page of documentation, without the sessions that it shows."""
    paths = [p for p in ROOT.glob("*.md") if p.name != "CHANGELOG.md"]
    paths += [p for folder in ("docs", "sample_traces", "launch") for p in (ROOT / folder).rglob("*.md")]
    for path in sorted([*paths, ROOT / "tests" / "README.md"]):
        yield path.relative_to(ROOT).as_posix(), _SHOWN.sub("", path.read_text(encoding="utf-8"))


def messages(package: str) -> Iterator[tuple[str, str]]:
    """Yield place and text of each string of a package with several words, without docstrings."""
    for path in modules(package):
        docs = {id(node) for node, _ in _docstrings(tree(path))}
        for node in ast.walk(tree(path)):
            text = getattr(node, "value", None)
            if (
                isinstance(node, ast.Constant)
                and isinstance(text, str)
                and " " in text
                and id(node) not in docs
            ):
                yield f"{path}:{node.lineno}", text


def docstrings(package: str) -> Iterator[tuple[str, str]]:
    """Yield place and text of each docstring of a package, those of constants and fields too."""
    for path in modules(package):
        for node, text in _docstrings(tree(path)):
            yield f"{path}:{node.lineno}", text


def _docstrings(module: ast.Module) -> Iterator[tuple[ast.Constant, str]]:
    """Yield the strings of a module that are statements by themselves."""
    for node in ast.walk(module):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value, value.value
