"""The notebooks in docs and what their cells show: `python -m tests.docs.notebooks` runs them and stores it again."""

import ast
import io
import json
from contextlib import chdir, redirect_stdout

from tests.house.source import ROOT

FOLDER = ROOT / "docs" / "notebooks"
PLAIN_CHARACTERS = 200
"""Characters kept of a value as text, which a notebook shows only where it can show no HTML."""


def document(name):
    """The notebook as it is stored."""
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def run(name):
    """The notebook with what its cells show now."""
    made, names = document(name), {}
    cells = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    with chdir(ROOT):
        for number, cell in enumerate(cells, 1):
            cell["execution_count"], cell["outputs"] = (
                number,
                _outputs("".join(cell["source"]), names, number),
            )
    return made


def _outputs(text, names, number):
    """What a cell shows: what it prints, and the value of its last expression."""
    tree, printed = ast.parse(text), io.StringIO()
    names["__shown"] = None
    if isinstance(tree.body[-1], ast.Expr):
        last = tree.body.pop()
        tree.body.append(ast.Assign([ast.Name("__shown", ast.Store())], last.value))
    with redirect_stdout(printed):
        exec(compile(ast.fix_missing_locations(tree), "cell", "exec"), names)
    value = names["__shown"]
    shown = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        shown.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        data = {"text/plain": repr(value)[:PLAIN_CHARACTERS].splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data = {"text/html": value._repr_html_().splitlines(keepends=True), **data}
        result = {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
        shown.append(result)
    return shown


def main():
    """Store what all notebooks show."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        made = json.dumps(run(path.name), indent=1, ensure_ascii=False, sort_keys=True)
        path.write_text(made + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
