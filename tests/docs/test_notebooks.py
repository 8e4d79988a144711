"""The notebooks in docs show what their cells show today, and hold no folder of the machine that ran them."""

import pytest

from tests.docs import notebooks
from tests.marks import quick_but

NAMES = sorted(path.name for path in notebooks.FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("name", quick_but(["slow.ipynb", "breakdown_and_diff.ipynb"], NAMES))
def test_a_notebook_shows_what_it_stores(name):
    assert notebooks.run(name) == notebooks.document(name), "python -m tests.docs.notebooks stores it again"


@pytest.mark.parametrize("name", NAMES)
def test_notebook_names_no_folder_of_a_machine(name):
    text = (notebooks.FOLDER / name).read_text(encoding="utf-8")
    assert [word for word in ("/home/", "/root/", "/work/", "/tmp/", "Users") if word in text] == []
