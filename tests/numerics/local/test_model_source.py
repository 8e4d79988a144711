"""The function that builds a user's model is the one of the named file, and its errors say where."""

import pytest

from numerics.local.model_source import build_model
from tracekit.errors import InputError

GOOD = """
from torch import nn
from helper_of_model import WIDTH
def build():
    return nn.Linear(WIDTH, WIDTH)
"""


def written(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["train.py", "json.py", "numpy.py", "my model.py"])
def test_a_file_is_loaded_whatever_its_name(tmp_path, name):
    written(tmp_path, "helper_of_model.py", "WIDTH = 3")
    model, optimizer = build_model(f"{written(tmp_path, name, GOOD)}:build")
    assert (model.in_features, optimizer) == (3, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "def build():\n    raise KeyError('width')\n",
            r"the function failed \(KeyError: 'width', .*m.py:2\)",
        ),
        ("import nowhere_to_be_found\n", r"cannot be imported \(ModuleNotFoundError.*m.py:1\)"),
        ("def build(:\n", r"cannot be imported \(SyntaxError"),
        ("def build():\n    return 3\n", "returned int; return an nn.Module"),
        ("def other():\n    pass\n", "has no function build"),
    ],
)
def test_what_fails_is_said_with_its_line(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        build_model(f"{written(tmp_path, 'm.py', text)}:build")
