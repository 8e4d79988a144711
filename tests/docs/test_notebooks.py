"""The notebooks in docs run, cell by cell, and hold no folder of the machine that ran them."""

import ast
import json

import pytest

from tests.house.source import ROOT
from tests.marks import quick_but

NOTEBOOKS = sorted(path.name for path in (ROOT / "docs/notebooks").glob("*.ipynb"))


def cells(name):
    """Source of each code cell."""
    document = json.loads((ROOT / "docs/notebooks" / name).read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]


def shown(text, names):
    """Run a cell as a notebook does; what its last expression shows, None where it ends in none."""
    tree = ast.parse(text)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)


@pytest.mark.parametrize("name", quick_but(["slow.ipynb", "breakdown_and_diff.ipynb"], NOTEBOOKS))
def test_notebook_runs(name, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    names = {}
    told = [shown(text, names) for text in cells(name)]
    text = capsys.readouterr().out + " ".join(one for one in told if one)
    expected = {"slow.ipynb": "rank 5", "stuck.ipynb": "host_stalled", "breakdown_and_diff.ipynb": "slower"}
    assert expected[name] in text


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_names_no_folder_of_a_machine(name):
    text = (ROOT / "docs/notebooks" / name).read_text(encoding="utf-8")
    assert [word for word in ("/home/", "/root/", "/work/", "/tmp/", "Users") if word in text] == []
