"""The program in docs/frames.md runs."""

import importlib.util
import re

import pytest

from tests.house.source import ROOT


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")
def test_documented_program_runs(monkeypatch, capsys):
    text = (ROOT / "docs/frames.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(ROOT)
    exec(compile(program, "docs/frames.md", "exec"), {})
    lines = capsys.readouterr().out.split("\n")
    assert [line.split() for line in lines[:3]] == [
        ["rank", "cause", "lost_ms_per_step"], ["5", "gpu_compute", "711.0"], ["pp"],
    ]  # fmt: skip
