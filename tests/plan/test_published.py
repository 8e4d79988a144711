"""Llama 3's published figures: one row fitted, the others predicted (docs/planning.md)."""

import pytest

from reftrain.cost.hardware import load_hardware
from reftrain.cost.memory import MemoryModel
from reftrain.papers.bisection import bisect
from reftrain.papers.llama3 import CALIBRATION, PREDICTED, fit_matmul, job_of_row, tflops
from reftrain.papers.published_runs import figure_9, figure_10
from reftrain.plan.projection import project

H100 = load_hardware("h100")


@pytest.mark.slow
def test_the_hardware_file_holds_the_one_row_fit():
    assert fit_matmul(H100) == pytest.approx(H100.efficiency.matmul, rel=2e-3)


@pytest.mark.slow
def test_the_fit_finds_the_constant_from_elsewhere_too():
    other = H100.with_constant("efficiency.matmul", 0.4)
    assert fit_matmul(other) == pytest.approx(H100.efficiency.matmul, rel=2e-3)


@pytest.mark.parametrize("row", PREDICTED, ids=lambda row: row.name)
def test_the_other_rows_are_predicted_within_ten_percent(row):
    assert tflops(row, project(job_of_row(row), H100)) == pytest.approx(row.tflops, rel=0.10)


@pytest.mark.parametrize("row", [CALIBRATION, *PREDICTED], ids=lambda row: row.name)
def test_the_published_jobs_fit_without_recomputation(row):
    assert MemoryModel(job_of_row(row)).peak() < H100.usable_bytes


@pytest.mark.parametrize(("row", "bubble"), [(CALIBRATION, 0.05), (PREDICTED[0], 0.12)])
def test_bubbles_of_the_paper(row, bubble):
    """12 % at m = p and 5 % at m = 2p, printed without digits; (p-1)/(m·v) is 11.7 % and 5.9 %."""
    got = project(job_of_row(row), H100).bubble
    assert got == pytest.approx(15 / (job_of_row(row).micro_batches * 8), rel=0.10)
    assert got == pytest.approx(bubble, abs=0.015)


def test_figure_9_all_forward_costs_memory_1f1b_messages():
    one_f, flexible, all_forward = figure_9(H100)
    assert one_f.memory < flexible.memory < all_forward.memory
    assert one_f.tflops < flexible.tflops < all_forward.tflops


def test_flexible_is_fastest_where_k_divides():
    _, flexible, all_forward = figure_9(H100, micro_batches=12)
    assert all_forward.tflops < flexible.tflops


def test_figure_10_balance_lowers_the_peak_and_raises_throughput():
    even, balanced = figure_10(H100)
    assert balanced.memory < even.memory
    assert balanced.tflops > even.tflops


def test_bisect():
    assert bisect(lambda x: x * x > 2, 0, 2) == pytest.approx(2**0.5, rel=1e-6)
