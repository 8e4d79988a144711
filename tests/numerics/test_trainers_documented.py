"""Every trainer of docs/numerics_trainers.md runs as it is written there, and is proved."""

import importlib.util
import os
import re
import runpy
import socket
import sys

import pytest

from numerics.comparison.compare import Options, compare
from numerics.local.model_source import build_model
from numerics.local.proof import prove
from numerics.record.switch import LEVEL, OUT
from tests.house.source import ROOT

WORLDS = {"ddp.py": 3, "fsdp_tp.py": 4, "pipeline.py": 2, "by_hand.py": 2, "hugging_face.py": 1}
LINES = re.compile(r"#\s[123]$", re.MULTILINE)


def programs():
    """The document's programs by the name in their first line."""
    text = (ROOT / "docs" / "numerics_trainers.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(# (\w+\.py).*?)^```$", text, re.MULTILINE | re.DOTALL)
    return {name: block for block, name in blocks}


def started(rank, world, _store, folder, name, port):
    """Run a program as torchrun does, recording itself."""
    told = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in told.items()})
    os.environ.update({OUT: str(folder / "run"), LEVEL: "tensors"})
    sys.path.insert(0, str(folder))
    try:
        runpy.run_path(str(folder / name), run_name="__main__")
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("model", None)
        for key in (*told, OUT, LEVEL):
            os.environ.pop(key, None)


def free_port():
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


def test_the_document_holds_all_programs_in_three_lines():
    found = programs()
    assert found.keys() == {"model.py", *WORLDS}
    for name, program in found.items():
        compile(program, name, "exec")
        assert len(LINES.findall(program)) == (0 if name == "model.py" else 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_each_program_runs_and_is_proved(ranks, tmp_path, monkeypatch, name):
    if name == "hugging_face.py" and importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    for file, program in programs().items():
        (tmp_path / file).write_text(program, encoding="utf-8")
    ranks.run(started, WORLDS[name], tmp_path, name, free_port())
    builder = "hugging_face.py" if name == "hugging_face.py" else "model.py"
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        model, optimizer = build_model(f"{tmp_path / builder}:build")
    finally:
        sys.modules.pop(builder.removesuffix(".py"), None)
    found = compare(tmp_path / "run", None, Options(prove=lambda columns: prove(columns, model, optimizer)))
    assert found.verdict in {"identical", "rounding"}, found.reason
    assert any("0 beyond it, 0 not checked" in note for note in found.notes), found.notes
