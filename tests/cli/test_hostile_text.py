"""Text from a trace that would command a terminal, or is not text at all, never gets through."""

import re

import pytest

from tests.cli.program import Program
from tests.generator import generate


@pytest.fixture
def tracekit(monkeypatch, capfd):
    return Program(monkeypatch, capfd)


def hostile(tmp_path, escape):
    """Traces whose group descriptions and host names carry `escape`, as JSON spells it."""
    case = generate(
        101, kind="slow_compute", world=4, steps=4, missing=set(), truncated={}, gz=False, style="megatron",
        pg_config=True, host_name=True,
    )  # fmt: skip
    for path in case.write(tmp_path / "t"):
        text = path.read_text().replace("TENSOR_MODEL_PARALLEL", f"TENSOR{escape}")
        path.write_text(text.replace(".cluster", f"{escape}.cluster"))
    return tmp_path / "t"


def test_error_sentences_carry_no_control_characters(tracekit, tmp_path):
    done = tracekit("slowrank", hostile(tmp_path, "\\u009b31m\\u0007"), "--mesh", "pp=4")
    assert done.code == 2
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", done.err)


def test_json_on_stdout_carries_no_raw_control_character(tracekit, tmp_path):
    done = tracekit("slowrank", hostile(tmp_path, "\\u009b31m"), "--json", "-")
    assert not re.search(r"[\x7f-\x9f]", done.out)


def test_half_a_surrogate_pair_is_no_fault(tracekit, tmp_path):
    done = tracekit("slowrank", hostile(tmp_path, "\\ud800"), "--json", tmp_path / "o.json")
    assert done.code == 0
