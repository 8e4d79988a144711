"""What the layout of tracekit is measured by: `python -m tests.house.measures [FOLDER]` prints a table of it.

Every measure reads syntax trees alone, so that any state of the code can be measured. A test keeps each from getting
worse.
"""

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from statistics import quantiles
from typing import Any, Final, TypeVar

from tests.house.source import ROOT, tree

SLOWRANK: Final = "tracekit/analysis/slowrank"
CASE: Final = ("tracekit/case", "tracekit/expected")
"""Rooms of what slowrank and other analyses read of a run: slowrank held them before."""
MODEL: Final = ("tracekit/step_graph", "tracekit/matching")
ENTRY: Final = "tracekit.analysis.slowrank.analyse"
AXES: Final = {"tp", "cp", "pp", "dp", "ep"}
SENTENCES: Final = {"reason", "to_decide", "decide", "detail", "why", "what", "told", "notes", "note"}
"""Attributes that hold sentences for users."""
OTHER_WORDS: Final = {
    ("tracekit/evidence/log_deaths.py", "memory"),  # a kind of death
    ("tracekit/own_files.py", "memory"),  # a folder of a run
}
"""(module, string) that is spelled as a cause and names something else."""
READERS: Final = {"startswith", "endswith", "find", "index", "split", "partition", "count"}
"""Methods of a string that ask what it says."""
KINDS: Final = (
    ast.AnnAssign, ast.Assign, ast.Call, ast.Compare, ast.Constant, ast.FunctionDef, ast.Import, ast.ImportFrom,
    ast.Subscript,
)  # fmt: skip
"""Kinds of nodes that measures look at."""

Node = TypeVar("Node", bound=ast.AST)


class Code:
    """The package of one checkout as syntax trees, each walked once."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.paths = [p.relative_to(root).as_posix() for p in sorted((root / "tracekit").rglob("*.py"))]
        self.module = {path: _module(path) for path in self.paths}
        self._nodes: dict[str, dict[type, list[Any]]] = {}
        for path in self.paths:
            parsed = tree(path) if root == ROOT else ast.parse((root / path).read_text(encoding="utf-8"))
            kinds = self._nodes[path] = {kind: [] for kind in KINDS}
            for node in ast.walk(parsed):
                if type(node) in kinds:
                    kinds[type(node)].append(node)
        self.strings = {
            path: {n.value for n in self.nodes(path, ast.Constant) if isinstance(n.value, str)}
            for path in self.paths
        }
        self.imports = {self.module[path]: set(self._imported(path)) for path in self.paths}

    def nodes(self, path: str, kind: type[Node]) -> list[Node]:
        """The nodes of a kind in a module."""
        return self._nodes[path][kind]

    def within(self, folder: str) -> list[str]:
        """Paths of the modules below a folder."""
        return [path for path in self.paths if path.startswith(f"{folder}/")]

    def names_from(self, path: str, module: str) -> set[str]:
        """The names that a module imports from another one, or from modules below it."""
        return {
            alias.name
            for node in self.nodes(path, ast.ImportFrom)
            if f"{node.module}.".startswith(f"{module}.")
            for alias in node.names
        }

    def _imported(self, path: str) -> Iterator[str]:
        """Modules of tracekit that a module imports; those it imports for type hints alone are among them."""
        known = set(self.module.values())
        for plain in self.nodes(path, ast.Import):
            yield from (alias.name for alias in plain.names if alias.name in known)
        for node in self.nodes(path, ast.ImportFrom):
            if node.module and not node.level:
                inner = {f"{node.module}.{alias.name}" for alias in node.names} & known
                yield from inner or {node.module} & known


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def here() -> Code:
    """This checkout."""
    return Code()


def files_naming_an_axis(code: Code, *, literally: bool = False) -> list[str]:
    """Modules that treat an axis by its name, as a string or, unless `literally`, by its constant."""
    constants = {
        node.target.id
        for node in code.nodes("tracekit/axes.py", ast.AnnAssign)
        if isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Constant)
        and node.value.value in AXES
    }
    return [
        path
        for path in code.paths
        if AXES & code.strings[path] or (not literally and constants & code.names_from(path, "tracekit.axes"))
    ]


def files_naming_a_cause(code: Code, *, literally: bool = True) -> Counter[str]:
    """How many modules name each cause of slowness, as a string or, unless `literally`, by its constant."""
    (causes,) = (
        node.value
        for node in code.nodes("tracekit/findings/slowrank.py", ast.Assign)
        if ast.unparse(node.targets[0]) == "Cause"
    )
    named = {n.value for n in ast.walk(causes) if isinstance(n, ast.Constant)} - {"unknown"}
    found = {
        path: {cause for cause in named & code.strings[path] if (path, cause) not in OTHER_WORDS}
        for path in code.paths
    }
    for path in () if literally else code.paths:
        found[path] |= named & {name.lower() for name in code.names_from(path, "tracekit.causes")}
    return Counter(cause for causes in found.values() for cause in causes)


def kinds_of_model(code: Code) -> int:
    """Questions which of the two models of a step stands in a variable."""
    return sum(
        1
        for path in code.paths
        for node in code.nodes(path, ast.Call)
        if isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and {"TableModel", "StepModel"} & {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
    )


def control_by_text(code: Code) -> list[str]:
    """Places of the analysis (`path:line`) that read a sentence for users back, or a row of evidence by its place."""
    found = []
    for path in code.within("tracekit/analysis"):
        methods = [c.func for c in code.nodes(path, ast.Call) if isinstance(c.func, ast.Attribute)]
        asked = [(method.lineno, method.value) for method in methods if method.attr in READERS]
        for test in code.nodes(path, ast.Compare):
            if any(isinstance(op, ast.In | ast.NotIn | ast.Eq | ast.NotEq) for op in test.ops):
                asked += [(test.lineno, side) for side in (test.left, *test.comparators)]
        read = {line for line, part in asked if isinstance(part, ast.Attribute) and part.attr in SENTENCES}
        read |= {
            node.lineno
            for node in code.nodes(path, ast.Subscript)
            if isinstance(node.value, ast.Attribute) and node.value.attr == "evidence"
        }
        found += [f"{path}:{line}" for line in sorted(read)]
    return found


def thresholds_of_slowrank(code: Code) -> set[str]:
    """Names of thresholds that modules of slowrank read, or those of its case."""
    paths = [path for room in (SLOWRANK, *CASE) for path in code.within(room)]
    return {name for path in paths for name in code.names_from(path, "tracekit.thresholds")}


def own_thresholds(code: Code) -> set[str]:
    """Names of these thresholds that have a number of their own: no other threshold gives it."""
    homes = [node for path in code.within("tracekit/thresholds") for node in code.nodes(path, ast.AnnAssign)]
    derived = {
        node.target.id
        for node in homes
        if isinstance(node.target, ast.Name)
        and node.value is not None
        and any(isinstance(part, ast.Name) for part in ast.walk(node.value))
    }
    return thresholds_of_slowrank(code) - derived


def one_importer(code: Code) -> tuple[int, int]:
    """(modules with exactly one importer, modules), packages' own files apart."""
    importers = Counter(target for targets in code.imports.values() for target in targets)
    counted = [
        name for path, name in code.module.items() if not path.endswith(("__init__.py", "__main__.py"))
    ]
    return sum(importers[name] == 1 for name in counted), len(counted)


def reached(code: Code, entry: str = ENTRY) -> tuple[int, int]:
    """(longest chain of imports below a module, modules that it reaches, itself among them)."""
    depth: dict[str, int] = {}

    def below(name: str, path: tuple[str, ...]) -> int:
        if name not in depth:
            inner = [
                below(n, (*path, name)) for n in sorted(code.imports[name]) if n not in path and n != name
            ]
            depth[name] = 1 + max(inner, default=-1)
        return depth[name]

    return below(entry, ()), len(depth)


def largest_room(code: Code) -> tuple[int, str]:
    """(modules, folder) of the flat room with most modules."""
    rooms = Counter(path.rpartition("/")[0] for path in code.paths)
    room, count = max(rooms.items(), key=lambda item: (item[1], item[0]))
    return count, room


def answers(code: Code) -> tuple[int, int, int]:
    """(places of slowrank that make an `Answer`, functions named after one, functions that return one)."""
    paths = code.within(SLOWRANK)
    calls = [c.func for path in paths for c in code.nodes(path, ast.Call) if isinstance(c.func, ast.Name)]
    functions = [f for path in paths for f in code.nodes(path, ast.FunctionDef)]
    returned = [ast.unparse(f.returns) for f in functions if f.returns is not None]
    return (
        sum(f.id == "Answer" for f in calls),
        sum(f.name.endswith("_answer") for f in functions),
        sum(kind in ("Answer", "Answer | None") for kind in returned),
    )


def lines(code: Code, *folders: str) -> int:
    """Lines of the modules below some folders."""
    paths = [path for folder in folders for path in code.within(folder)]
    return sum(len((code.root / path).read_text(encoding="utf-8").splitlines()) for path in paths)


def function_lines(code: Code) -> int:
    """Lines that nine of ten functions stay within."""
    functions = [node for path in code.paths for node in code.nodes(path, ast.FunctionDef)]
    return round(quantiles([f.end_lineno - f.lineno + 1 for f in functions if f.end_lineno], n=10)[-1])


def _percent(part: tuple[int, int]) -> str:
    return f"{part[0]} of {part[1]} ({part[0] / part[1]:.0%})"


MEASURES: Final[dict[str, tuple[Callable[[Code], object], str, str]]] = {
    "files that name an axis as a string": (
        lambda c: len(files_naming_an_axis(c, literally=True)),
        "33",
        "1",
    ),
    "files that name an axis, by a constant too": (lambda c: len(files_naming_an_axis(c)), "33", "15"),
    "files that name one cause as a string, at most": (
        lambda c: max(files_naming_a_cause(c).values()),
        "8",
        "2",
    ),
    "files that name one cause, by a constant too": (
        lambda c: max(files_naming_a_cause(c, literally=False).values()),
        "8",
        "2",
    ),
    "places that ask which model it is": (kinds_of_model, "41", "0"),
    "places of the analysis that ask what a sentence says": (
        lambda c: len(control_by_text(c)),
        "4",
        "0",
    ),
    "thresholds that slowrank reads; with a number of their own": (
        lambda c: f"{len(thresholds_of_slowrank(c))}; {len(own_thresholds(c))}",
        "157; 154",
        "40",
    ),
    "modules with exactly one importer": (lambda c: _percent(one_importer(c)), "167 of 411 (41%)", "25%"),
    "longest chain of imports below slowrank's analyse": (lambda c: reached(c)[0], "36", "10"),
    "modules that it reaches": (lambda c: reached(c)[1], "222", "80"),
    "modules of the largest room": (lambda c: largest_room(c)[0], "98", "25"),
    "places that make an `Answer`; functions `*_answer`; functions that return one": (
        lambda c: "{}; {}; {}".format(*answers(c)),
        "60; 44; 70",
        "1; 0; –",
    ),
    "lines of slowrank": (lambda c: lines(c, SLOWRANK), "12226", "4000"),
    "lines of slowrank with its case, graph and matching": (
        lambda c: lines(c, SLOWRANK, *CASE, *MODEL),
        "–",
        "8000",
    ),
    "lines that nine of ten functions stay within": (function_lines, "22", "40"),
}
"""By what is measured: how, what it was at BEFORE, and the goal."""
BEFORE: Final = "22e41bd9"
"""The commit at which the values before were measured: the last one ahead of the paired comparison."""


def table(code: Code) -> str:
    """All measures as a table in Markdown: before, now, goal."""
    rows = [
        f"| {what} | {before} | {measure(code)} | {goal} |"
        for what, (measure, before, goal) in MEASURES.items()
    ]
    return "\n".join([f"| | at {BEFORE} | now | goal |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    print(table(Code(Path(sys.argv[1])) if len(sys.argv) > 1 else here()))
