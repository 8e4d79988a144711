"""The peak that the roofline needs: of the device that traces name, unless an option gives it."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import tracekit
from tests.floor.jobs import GEMM_US, LAYERS, RANKS, alike
from tracekit.mesh.hardware import peak_tflops
from tracekit.report.floor import floor_document, floor_text

H100, OTHER = "NVIDIA H100 80GB HBM3", "AMD Radeon Graphics"
TENTH = round(GEMM_US * 1e3 * 989 / 10 * 1e3)
"""FLOPs of a product that takes ten times as long as on an H100 at peak."""


def named(folder, devices, flops=TENTH):
    """Three ranks with recorded shapes and the names of their devices."""
    run = alike(folder, late=50.0, flops=flops)
    return replace(run, ranks=tuple(replace(r, device=devices[r.rank]) for r in run.ranks))


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        (H100, 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA H200", 989), ("NVIDIA GH200 480GB", 989),
        ("NVIDIA A100-PG509-200", 312), ("NVIDIA A100-SXM4-40GB", 312), ("Tesla V100-SXM2-32GB", 125),
        ("Tesla V100-PCIE-16GB", 112), ("Tesla P100-PCIE-16GB", 18.7), ("h100", 989), ("NVIDIA GB200", 2500),
        ("AMD Instinct MI300X", 1307), (OTHER, None), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None), ("", None),
        ("NVIDIA GeForce RTX 4090", None), ("Quadro T400", None),
    ],
)  # fmt: skip
def test_names_give_data_sheet_peaks(name, peak):
    assert peak_tflops(name) == peak


def test_the_trainer_knows_the_same_peaks():
    from reftrain.model.flops import PEAK_TFLOPS

    assert {name: peak_tflops(f"NVIDIA {name}") for name in PEAK_TFLOPS} == PEAK_TFLOPS


@pytest.mark.parametrize("machine", ["a100", "h100", "h200", "p100"])
def test_machines_of_the_planner_agree(machine):
    from reftrain.cost.hardware import load_hardware

    assert load_hardware(machine).device.peak_tflops == peak_tflops(machine)


def test_the_named_device_gives_the_roofline(tmp_path):
    found = tracekit.floor(named(tmp_path, [H100] * RANKS))
    given = tracekit.floor(named(tmp_path, [""] * RANKS), peak_tflops=989)
    assert (found.peak_from, found.device, given.peak_from, given.device) == ("device", H100, "given", None)
    assert (found.peak_tflops, found.mfu, found.parts) == (989, given.mfu, given.parts)
    assert found.mfu == pytest.approx(LAYERS * GEMM_US / 10_000 / found.step_ms)
    assert f"the dense 16-bit peak of {H100}, which the traces name" in floor_text(found)
    assert floor_document(found)["peak_from"] == "device"


def test_an_option_overrides_the_name(tmp_path):
    found = tracekit.floor(named(tmp_path, [H100] * RANKS), peak_tflops=494.5)
    assert (found.peak_from, found.peak_tflops, found.device) == ("given", 494.5, H100)


@pytest.mark.parametrize(
    ("devices", "flops", "needs"),
    [
        ([""] * RANKS, TENTH, "--hardware h100"),
        ([OTHER] * RANKS, TENTH, f"--hardware peak_tflops=N: no peak is known of {OTHER}"),
        ([H100, H100, OTHER], TENTH, "--hardware peak_tflops=N: the traces name several devices"),
        ([H100, H100, ""], TENTH, "--hardware peak_tflops=N: the traces name several devices"),
        ([H100] * RANKS, 20 * TENTH, f"at the 16-bit peak of {H100} the FLOPs need longer"),
    ],
)
def test_without_a_peak_the_answer_says_which_option(tmp_path, devices, flops, needs):
    found = tracekit.floor(named(tmp_path, devices, flops))
    (roofline,) = (limit for limit in found.limits if limit.limit == "roofline")
    assert (found.peak_tflops, found.peak_from, found.mfu, roofline.step_ms) == (None, None, None, None)
    assert needs in roofline.needs
    assert needs in floor_text(found)


def test_other_work_has_a_remedy_and_a_bound(tmp_path):
    """Ranks of this job overlap nothing, so that what a part takes is what it brings."""
    found = tracekit.floor(named(tmp_path, [H100] * RANKS))
    (other,) = (p for p in found.parts if p.part == "other_work")
    assert other.brings_ms == pytest.approx(other.mean_ms, rel=0.1)
    assert f"→ {other.remedy}" in floor_text(found)


@pytest.mark.parametrize("machine", ["a100", "h100", "h200", "p100"])
def test_planned_machines_have_the_peak_of_their_device(machine):
    path = Path(__file__).parents[2] / "reftrain" / "cost" / "hardware" / f"{machine}.toml"
    known = tomllib.loads(path.read_text(encoding="utf-8"))["device"]["peak_tflops"]
    assert peak_tflops(f"NVIDIA {machine.upper()}") == known
