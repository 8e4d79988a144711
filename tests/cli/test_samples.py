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
    assert tracekit("ingest", SAMPLES / name, "--out", tmp_path / "run", "--append").out == told.out
    raw, kept = (tracekit("slowrank", run, "--json", "-").out for run in (SAMPLES / name, tmp_path / "run"))
    assert json.loads(kept) == json.loads(raw)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["whatif", "breakdown", "mesh"])
@pytest.mark.parametrize("name", RECORDED)
def test_a_sample_is_answered_by_every_command(name, command, tracekit):
    assert tracekit(command, SAMPLES / name).code == 0
