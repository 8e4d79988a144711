"""`tracekit floor` as a user and as a script call it."""

import json

import pytest
from tracekit_cli.tracekit_commands.floor import _flops, _peak

from tracekit.errors import UsageError


def test_text_names_parts_limits_and_unknowns(tracekit, slow):
    done = tracekit("floor", slow[0], "--verbose")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("FLOOR  ")
    for label in ("part", "imbalance", "launch gaps", "no waiting", "roofline", "plan", "unknown"):
        assert f"\n  {label} " in done.out
    missing = "give --model parameters=8e9,tokens=4M, or traces with record_shapes=True"
    assert f"  roofline              unknown; {missing}\n" in done.out
    assert (
        "756 TFLOP/s a device: the dense 16-bit peak of NVIDIA H100 PCIe, which the traces name" in done.out
    )


def test_json_of_raw_and_ingested_traces_agree(tracekit, slow, tmp_path):
    assert tracekit("ingest", slow[0], "--out", tmp_path / "run").code == 0
    given = ("--model", "flops=1e9", "--hardware", "peak_tflops=100", "--json", "-")
    raw, kept = (tracekit("floor", f, *given).out for f in (slow[0], tmp_path / "run"))
    assert raw == kept
    assert json.loads(raw)["mfu"] > 0


def test_model_by_numbers_or_by_preset():
    assert _flops("parameters=8e9,tokens=4M") == 6 * 8e9 * 4 * 2**20
    attention = 12 * 32 * 4096 * 8192
    assert _flops("parameters=8B,tokens=1K,layers=32,dim=4K,seq=8K") == (6 * 8e9 + attention) * 1024
    assert _flops("8b,tokens=1M,seq=8K") == pytest.approx(6 * 7.5e9 * 2**20 + attention * 2**20, rel=0.02)


def test_hardware_by_name_or_number():
    assert _peak("h100") == _peak("peak_tflops=989") == 989


@pytest.mark.parametrize(
    "model",
    ["8e9", "parameters=8e9", "flops=1,tokens=2", "tokens=4X", "8b", "flops=0", "flops=nan", "a=1", ""],
)
def test_other_models_are_usage_errors(model, tracekit, slow):
    done = tracekit("floor", slow[0], f"--model={model}")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1


def test_flops_beyond_the_peak_are_refused(tracekit, slow):
    done = tracekit("floor", slow[0], "--model", "flops=1e20", "--hardware", "peak_tflops=1")
    assert (done.code, done.out) == (2, "")
    assert "correct FLOPs or peak" in done.err


def test_what_is_no_plan_is_refused(tracekit, slow, tmp_path):
    for text in ("[]", "{", '{"schema": "reftrain.plan/1"}'):
        (tmp_path / "plan.json").write_text(text)
        done = tracekit("floor", slow[0], "--plan", tmp_path / "plan.json")
        assert (done.code, done.out) == (3, "")
        assert done.err.startswith("tracekit: --plan ")
    assert tracekit("floor", slow[0], "--plan", tmp_path / "none.json").code in (2, 3)


def test_a_preset_too_large_is_refused():
    with pytest.raises(UsageError, match="beyond any machine"):
        _flops("parameters=1e30,tokens=1024G")
