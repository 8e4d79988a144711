"""The forced replay: benign changes of source are rounding, bugs stay bugs and are placed."""

from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from numerics.comparison import forced_replay
from numerics.comparison.compare import Options, compare
from numerics.comparison.joins.row_table import RowTable
from numerics.comparison.joins.tensor_table import Status
from numerics.comparison.lone_difference import lone_ranks
from numerics.local.bounds.bounded import known, sum_in_any_order
from reftrain.config.run import OptimizerConfig
from reftrain.job.launcher import prepare_folder
from reftrain.replay.command import replay
from reftrain.replay.forcing import bounded_replay
from reftrain.replay.ring import ring_sum
from tests.marks import quick_but, quick_first
from tests.numerics.replay_runs import config_of, replayed, unequal
from tests.numerics.source_changes import changed_run
from tracekit.errors import InputError

TINY = {
    "model": {"layers": 1, "dim": 24, "ffn_dim": 48, "heads": 3, "kv_heads": 3, "vocab_size": 261},
    "data": {"batch_size": 3, "seq_len": 12, "micro_batch_size": 1},
    "run": {"steps": 1},
    "evidence": {"capture": "tensors"},
}
DP3 = {"mesh": {"dp": 3}}
TP3 = {"mesh": {"tp": 3}}
TP3_WHOLE = {"mesh": {"tp": 3, "sequence_parallel": False}}
TP3_BIAS = {"mesh": {"tp": 3}, "model": {"bias": True}}
RING3 = {"mesh": {"cp": 3}, "numerics": {"cp_method": "ring"}}
GEMS = {"mesh": {"pp": 3}, "model": {"layers": 3}, "pipeline": {"schedule": "gems"}}
ZB_H1 = {"mesh": {"pp": 3}, "model": {"layers": 3}, "pipeline": {"schedule": "zb_h1"}}
BF16 = {"mesh": {"dp": 3}, "numerics": {"policy": "bf16"}}


def changed(ranks, folder, name, *tables, level="tensors"):
    """Run with a change of source, and give the folder."""
    merged = {}
    for source in (TINY, {"numerics": {"policy": "fp32"}}, *tables, {"evidence": {"capture": level}}):
        for table, values in source.items():
            merged.setdefault(table, {}).update(values)
    config = config_of(folder, merged)
    prepare_folder(folder)
    ranks.run(changed_run, config.mesh.world_size, config, name)
    return folder


def made(run, out=None, *, variants=(), steps=None, forced=False):
    """Make a replay in this process."""
    target = out or run / "replay"
    replay(run, target, "tensors", (), variants, steps, forced=forced)
    return target


BENIGN = [
    ("norm_by_square_root", DP3),
    ("silu_by_sigmoid", TP3),
    ("attention_by_softmax", DP3),
    ("product_in_halves", DP3),
    ("entropy_by_logsumexp", DP3),
    ("entropy_by_powers_of_two", TP3),
    ("update_written_out", DP3),
    ("norm_of_gradient_by_torch", DP3),
    ("ring_by_powers_of_two", RING3),
    ("silu_by_sigmoid", BF16),
    ("attention_by_softmax", BF16),
    ("attention_by_math_kernel", BF16),
    ("update_written_out", BF16),
    ("norm_by_square_root", GEMS),
    ("silu_by_sigmoid", ZB_H1),
]


@pytest.mark.parametrize(("name", "tables"), quick_but([b for b in BENIGN if b != BENIGN[6]], BENIGN))
@pytest.mark.slow
def test_benign_change_is_rounding(ranks, tmp_path, name, tables):
    finding = compare(changed(ranks, tmp_path / "run", name, tables), None, Options(make_replay=made))
    assert (finding.verdict, finding.proof) == ("rounding", "bound"), finding.reason
    assert "within the bound" in finding.reason


BUGS = [
    ("norm_and_missing_sum", TP3_WHOLE, r"layers.0.feed_forward.out"),
    ("slightly_larger_epsilon", DP3, "layers.0.attention_norm.out"),
    ("larger_epsilon", DP3, "layers.0.attention_norm.out"),
    ("larger_scale", DP3, "layers.0.attention.wo.in"),
    ("missing_sum", TP3_WHOLE, "layers.0.feed_forward.out"),
    ("doubled_bias", TP3_BIAS, "layers.0.attention.out"),
    ("one_wrong_mask", DP3, "layers.0.attention.wo.in"),
    ("norm_of_one_rank", DP3, "layers.0.attention_norm.out"),
]


@pytest.mark.parametrize(("name", "tables", "tensor"), quick_first(1, BUGS))
@pytest.mark.slow
def test_bug_stays_a_bug(ranks, tmp_path, name, tables, tensor):
    finding = compare(changed(ranks, tmp_path / "run", name, tables), None, Options(make_replay=made))
    assert finding.verdict == "bug", finding.reason
    assert finding.first_divergence.tensor == tensor


def test_capture_of_digests_names_what_tells(ranks, tmp_path):
    folder = changed(ranks, tmp_path / "run", "norm_by_square_root", DP3, level="digest")
    finding = compare(folder, None, Options(replay=replayed(folder)))
    assert finding.verdict == "bug"
    assert "--capture tensors" in finding.next


SOUND = [
    (RING3, "bf16", {}),
    (TP3_BIAS, "fp32", {"recompute": "full"}),
    ({"mesh": {"pp": 2, "dp": 2}, "data": {"batch_size": 4}, "model": {"layers": 2}}, "bf16_pure", {}),
]


@pytest.mark.parametrize(("tables", "policy", "numerics"), quick_but(SOUND[1:], SOUND))
def test_forced_replay_of_sound_run_equals_it(ranks, tmp_path, tables, policy, numerics):
    folder = changed(ranks, tmp_path / "run", "nothing", tables, {"numerics": {"policy": policy, **numerics}})
    forced = made(folder, tmp_path / "forced", forced=True)
    assert unequal(folder, forced) == []
    assert not (forced / "exact").exists()


@pytest.mark.slow
def test_forced_replay_stops_what_drifts(ranks, tmp_path):
    """Only rows of the changed operation differ, not all that is computed from them."""
    folder = changed(ranks, tmp_path / "run", "larger_epsilon", DP3)
    forced = made(folder, tmp_path / "forced", forced=True)
    assert {name for name in unequal(folder, forced) if not name.endswith(".grad")} == {
        "layers.0.attention_norm.out",
        "layers.0.ffn_norm.out",
        "norm.out",
    }
    rows = [pq.read_table(path).num_rows for path in sorted((forced / "exact" / "capture").glob("*.parquet"))]
    assert rows == [
        pq.read_table(p).num_rows for p in sorted((forced / "error" / "capture").glob("*.parquet"))
    ]
    assert min(rows) > 0


def test_replayer_without_forced_replay_is_no_error():
    run = SimpleNamespace(capture=SimpleNamespace(values={0: "there"}, folder="run"))

    def refuses(*_, **__):
        raise InputError("unrecognized arguments: --forced")

    with forced_replay.forced_replay(run, refuses) as found:
        assert found is None


def columns(rank, different):
    """Rows of one tensor on some ranks, as `lone_ranks` sees them."""
    rank = np.array(rank)
    same = np.zeros(len(rank), np.int64)

    class Run(dict):
        def __len__(self):
            return len(rank)

    status = np.where(different, Status.DIFFERENT, Status.EQUAL)
    none = np.zeros(0, np.int64)
    run = Run(rank=rank, tensor=same, kind=same, numel=same + 64)
    return run, RowTable(status=status, match=np.arange(len(rank)), missing=none, extra=none)


@pytest.mark.parametrize(
    ("wrong", "alone"),
    [
        (lambda rank, place: rank == 1, True),
        (lambda rank, place: (rank == 1) & (place < 2), False),
        (lambda rank, place: place < 8, False),
    ],
    ids=["all of one rank", "two of one rank", "some of each rank"],
)
def test_rank_that_differs_alone(wrong, alone):
    rank, place = np.repeat([0, 1, 2], 12), np.tile(np.arange(12), 3)
    run, rows = columns(rank, wrong(rank, place))
    assert bool(lone_ranks(run, rows, rows.different)) == alone


def test_one_rank_of_thousands_of_rows_differs_alone():
    rank, place = np.repeat([0, 1, 2], 3000), np.tile(np.arange(3000), 3)
    run, rows = columns(rank, (rank == 1) & (place < 1500))
    assert len(lone_ranks(run, rows, rows.different)) == 1500


def test_every_order_of_a_sum_is_within_its_bound():
    torch.manual_seed(3)
    for dtype in (torch.float32, torch.bfloat16):
        parts = [torch.randn(200).to(dtype) for _ in range(5)]
        bound = sum_in_any_order([known(part) for part in parts])
        for _ in range(6):
            order = torch.randperm(5).tolist()
            total = parts[order[0]]
            for place in order[1:]:
                total = total + parts[place]
            assert bool(((total.double() - bound.value).abs() <= bound.error).all())
        assert torch.equal(ring_sum([known(p) for p in parts]).value, bound.value)


@pytest.mark.parametrize(("beta", "within"), [(0.95, True), (0.9501, False)])
def test_bound_of_the_update(beta, within):
    torch.manual_seed(4)
    config = OptimizerConfig(beta2=0.95)
    value, grads = torch.randn(300), [torch.randn(300) for _ in range(3)]
    real = torch.nn.Parameter(value.clone())
    inner = torch.optim.AdamW([real], lr=0.01, betas=(config.beta1, beta), eps=config.eps, weight_decay=0.1)
    first = second = torch.zeros(300)
    for step, grad in enumerate(grads):
        before = real.detach().clone()
        new = bounded_replay.adamw(config, before, known(grad), first, second, step + 1, 0.01, 0.1)
        real.grad = grad
        inner.step()
        state = inner.state[real]
        first, second = state["exp_avg"].clone(), state["exp_avg_sq"].clone()
    found = (real.detach(), first, second)
    shares = [float(((f.double() - n.value).abs() / n.error).max()) for f, n in zip(found, new, strict=True)]
    assert (max(shares) <= 1) == within
