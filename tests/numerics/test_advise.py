"""Which buffers need FP32: from real shadow sums of real runs, and from figures worked out by hand."""

import json
import math

import pytest
import torch

from numerics.precision.advise import advise
from numerics.precision.rounding_error import running_sum_error
from numerics.thresholds.precision import ADDITION_ERROR
from reftrain.config.file import load
from reftrain.rank.hooks import HookList
from reftrain.record.shadow_gradients import Shadow, Sums
from tests.reftrain.workers import trainer, whole_run
from tracekit.errors import InputError


def configuration(out, **tables):
    base = {
        "model": {"layers": 2},
        "data": {"batch_size": 16, "seq_len": 48, "micro_batch_size": 1},
        "numerics": {"policy": "bf16_pure"},
        "evidence": {"shadow_gradients": True},
        "run": {"steps": 1, "out": str(out)},
    }
    for table, values in tables.items():
        base.setdefault(table, {}).update(values)
    out.mkdir(parents=True, exist_ok=True)
    return load(None, base)


def narrow_sums_and_gradients(rank, world, store, config):
    """Shadow sums beside the gradients that the trainer itself accumulated (one rank: nothing is reduced)."""
    shadow = Shadow()
    with trainer(rank, world, store, config, HookList([shadow])) as made:
        made.compute_gradients(0)
        return [
            (name, torch.equal(shadow._sums[name].narrow.reshape(-1), grad.reshape(-1)))
            for name, grad in made.local_gradients().items()
        ]


def test_the_narrow_sum_is_the_runs_own_buffer(ranks, tmp_path):
    found = ranks.run(narrow_sums_and_gradients, 1, configuration(tmp_path))[0]
    assert len(found) > 15
    assert all(equal for _, equal in found), [name for name, equal in found if not equal]


def test_sixteen_micro_batches_need_fp32_and_two_do_not(ranks, tmp_path):
    ranks.run(whole_run, 1, configuration(tmp_path / "16"))
    ranks.run(whole_run, 1, configuration(tmp_path / "2", data={"micro_batch_size": 8}))
    many, few = advise(tmp_path / "16"), advise(tmp_path / "2")
    matrices = [b for b in many.buffers if b.extra_bytes > 128 and "tok_embeddings" not in b.tensor]
    assert len(matrices) == 2 * 7 + 1
    assert all(b.needs_fp32 and b.micro_batches == 16 for b in matrices)
    assert not few.flagged
    for buffer in matrices:
        assert buffer.agreement == pytest.approx(1, abs=0.15), buffer.tensor
        assert buffer.in_fp32 < 1e-6 < buffer.measured
    assert many.extra_bytes == sum(b.extra_bytes for b in many.flagged)


@pytest.mark.slow
def test_all_ranks_count(ranks, tmp_path):
    ranks.run(whole_run, 2, configuration(tmp_path / "run", mesh={"tp": 2}))
    found = advise(tmp_path / "run")
    assert found.ranks == 2
    assert {b.kept for b in found.buffers} == {"bfloat16"}
    (tmp_path / "run" / "shadow" / "rank00001.json").unlink()
    with pytest.raises(InputError, match="rank 1 of 2 left no file"):
        advise(tmp_path / "run")


def write(folder, rank=0, world=1, **row):
    figures = {
        "step": 0, "tensor": "w.grad", "kept": "bfloat16", "micro_batches": 16, "numel": 100,
        "squares_of_sums": 1500.0, "square_of_last": 100.0, "square": 100.0,
        "error_bfloat16": 0.0025, "error_float32": 1e-12, "error_rounded_once": 0.000256,
    }  # fmt: skip
    path = folder / "shadow" / f"rank{rank:05d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**figures, **row}]
    path.write_text(
        json.dumps({"schema": "numerics.shadow/1", "rank": rank, "world_size": world, "rows": rows})
    )
    return folder


def test_figures_by_hand(tmp_path):
    buffer = advise(write(tmp_path)).buffers[0]
    assert buffer.measured == pytest.approx(0.005)
    assert buffer.rounded_once == pytest.approx(0.0016)
    assert buffer.in_fp32 == pytest.approx(1e-7)
    assert buffer.predicted == pytest.approx(ADDITION_ERROR / 256 * math.sqrt(15))
    assert buffer.ratio == pytest.approx(3.125)
    assert buffer.extra_bytes == 200
    assert buffer.needs_fp32
    assert not advise(tmp_path, budget=3.2).buffers[0].needs_fp32


def test_infinities_need_fp32(tmp_path):
    assert advise(write(tmp_path, error_bfloat16=math.inf)).flagged


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"numel": -1}, "without all its figures"),
        ({"numel": 10**40}, "without all its figures"),
        ({"step": True}, "without all its figures"),
        ({"square": 10**400}, "without all its figures"),
        ({"square": 1e308}, "without all its figures"),
        ({"error_float32": -1.0}, "without all its figures"),
        ({"error_float32": -math.inf}, "without all its figures"),
        ({"square": "1"}, "without all its figures"),
        ({"tensor": 3}, "figures"),
    ],
)
def test_damaged_rows(tmp_path, row, said):
    with pytest.raises(InputError, match=said):
        advise(write(tmp_path, **row))


def test_foreign_files(tmp_path):
    with pytest.raises(InputError, match="shadow_gradients=true"):
        advise(tmp_path)
    path = write(tmp_path) / "shadow" / "rank00000.json"
    path.write_text("[]")
    with pytest.raises(InputError, match=r"not numerics\.shadow/1|not a numerics\.shadow/1"):
        advise(tmp_path)
    path.write_text("{")
    with pytest.raises(InputError, match="unreadable"):
        advise(tmp_path)
    write(tmp_path, rank=0, world=0)
    with pytest.raises(InputError, match="rank 0 of 0"):
        advise(tmp_path)
    with pytest.raises(InputError, match="budget"):
        advise(write(tmp_path), budget=0.5)


@pytest.mark.parametrize("addends", [4, 32])
def test_the_bound_foretells_running_sums_of_random_numbers(addends):
    """Neither fitted to gradients nor to one length: plain normal numbers."""
    generator = torch.Generator().manual_seed(addends)
    sums = Sums()
    for _ in range(addends):
        sums.add(torch.randn(100_000, generator=generator).to(torch.bfloat16))
    figures = sums.figures()
    measured = math.sqrt(figures["error_bfloat16"] / figures["square"])
    predicted = running_sum_error(figures["squares_of_sums"], figures["square_of_last"], "bfloat16")
    assert predicted == pytest.approx(measured, rel=0.15)


def test_one_addend_costs_nothing():
    assert running_sum_error(0.0, 4.0, "bfloat16") == 0
    assert math.isnan(running_sum_error(0.0, 0.0, "bfloat16"))
