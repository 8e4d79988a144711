"""Every command that takes traces takes the project's own samples, as they lie there and ingested."""

import json
from pathlib import Path

import pytest

from tests.marks import quick_first

SAMPLES = Path(__file__).parents[2] / "sample_traces"
RECORDED = sorted(p.parent.name for p in SAMPLES.glob("*/trace"))


@pytest.mark.parametrize("name", quick_first(1, sorted(RECORDED, key=lambda n: n != "demo_slow_tp")))
@pytest.mark.slow
def test_a_sample_is_ingested_and_answered_alike(name, tracekit, tmp_path):
    told = tracekit("ingest", SAMPLES / name, "--out", tmp_path / "run")
    assert (told.code, told.err) == (0, "")
    raw, kept = (tracekit("slowrank", run, "--json", "-") for run in (SAMPLES / name, tmp_path / "run"))
    assert kept.code == raw.code
    if raw.code:  # of one process: both are refused
        assert kept.err == raw.err.replace(str(SAMPLES / name), str(tmp_path / "run"))
    else:
        assert json.loads(kept.out) == json.loads(raw.out)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_a_sample_is_appended_to_itself(name, tracekit, tmp_path):
    told = tracekit("ingest", SAMPLES / name, "--out", tmp_path / "run")
    again = tracekit("ingest", SAMPLES / name, "--out", tmp_path / "run", "--append")
    if name == "nccl_inspector":
        assert again.code
        assert "format that is read as a whole" in again.err
    else:
        assert again.out == told.out


@pytest.mark.slow
@pytest.mark.parametrize("command", ["whatif", "breakdown", "mesh"])
@pytest.mark.parametrize("name", RECORDED)
def test_a_sample_is_answered_by_every_command(name, command, tracekit):
    assert tracekit(command, SAMPLES / name).code == 0
