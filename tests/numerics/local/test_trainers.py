"""The local proof on trainers that this project did not design: healthy ones, and each with a bug."""

from functools import partial

import pytest
import torch

from numerics.columns import Names, read_columns
from numerics.comparison.compare import Options, compare
from numerics.local.model_source import build
from numerics.local.proof import prove
from numerics.store import open_capture
from tests.numerics.local.changes import BENIGN, BUGS, drops
from tests.numerics.local.trainers import pipelined, trained

WORLDS = {"plain": 1, "ddp": 3, "fsdp_tp": 6, "by_hand": 6}


def answered(run, baseline=None, function="build", change=lambda model: None):
    made = build(f"tests.numerics.local.model:{function}")
    change(made.model)
    prover = partial(prove, model=made.model, optimizer=made.optimizer, loss=made.loss)
    return compare(run, baseline, Options(prove=prover))


@pytest.fixture(scope="module")
def runs(ranks, tmp_path_factory):
    made = {}

    def run(kind, bug="", dtype=torch.float32):
        key = (kind, bug, dtype)
        if key not in made:
            made[key] = tmp_path_factory.mktemp(f"{kind}{bug}") / "run"
            ranks.run(trained, WORLDS[kind], kind, made[key], bug, dtype)
        return made[key]

    return run


def test_one_process_equals_itself_in_every_bit(runs):
    found = answered(runs("plain"))
    assert (found.verdict, found.proof) == ("identical", "local")


@pytest.mark.parametrize(
    ("kind", "proof", "order"),
    [
        (
            "ddp",
            ("drift", "local"),
            "with what was accumulated, at each micro-batch: a ring, downwards, scaled",
        ),
        (
            "fsdp_tp",
            ("rounding", "bound"),
            "reduce_scatter (avg) of float32 over ranks 0, 2, 4: a ring, downwards",
        ),
        pytest.param(
            "by_hand",
            ("rounding", "bound"),
            "all_reduce (sum) of float32 over ranks 0, 2, 4: a ring, downwards",
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.slow
def test_healthy_trainers_of_others_are_proved(runs, kind, proof, order):
    found = answered(runs(kind), runs("plain"))
    assert (found.verdict, found.proof) == proof, found.reason
    assert any("0 beyond it, 0 not checked" in note for note in found.notes)
    assert any(order in note for note in found.notes)


def test_a_pipeline_of_torch_is_proved(ranks, runs, tmp_path):
    ranks.run(pipelined, 2, tmp_path / "run")
    found = answered(tmp_path / "run", runs("plain"))
    assert (found.verdict, found.proof) == ("drift", "local"), found.reason


@pytest.mark.slow
def test_sixteen_bit_formats_stay_within_their_bounds(runs):
    found = answered(runs("by_hand", dtype=torch.bfloat16), function="build_narrow")
    assert found.verdict == "rounding", found.reason


@pytest.mark.parametrize(
    ("bug", "tensor", "axis", "words"),
    [
        pytest.param(
            "no_forward_sum", "layers.1.attention.wo.out", "tp", "missing all-reduce", marks=pytest.mark.slow
        ),
        pytest.param(
            "no_backward_sum",
            "layers.1.ffn_norm.out.grad",
            "tp",
            "missing all-reduce",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "doubled_output", "layers.1.attention.wo.out", "tp", "2 (= tp) times", marks=pytest.mark.slow
        ),
        pytest.param(
            "skipped",
            "norm.weight.grad",
            "dp",
            "it was not summed over dp",
            marks=pytest.mark.slow,
        ),
        pytest.param("epsilon", "layers.1.ffn_norm.out", None, None, marks=pytest.mark.slow),
        pytest.param(
            "scaled_gradient", "layers.1.ffn.w1.weight.grad", "tp", "2 (= tp) times", marks=pytest.mark.slow
        ),
    ],
)
def test_bugs_are_called_and_placed(runs, bug, tensor, axis, words):
    found = answered(runs("by_hand", bug))
    assert (found.verdict, found.proof) == ("bug", "local")
    assert found.first_divergence.tensor == tensor
    assert found.first_divergence.axis == axis
    assert (found.explanation is None) == (words is None)
    assert words is None or words in found.explanation


@pytest.mark.slow
def test_a_weight_changed_alike_may_be_a_projection(runs):
    found = answered(runs("by_hand", "touched_weight"))
    assert found.verdict == "undecided"
    assert "norm.weight at the start of step 1 (rank 0) is not what the optimiser left" in found.reason


@pytest.mark.parametrize(
    ("function", "verdict", "words"),
    [
        ("build_with_loss", "identical", "its gradient was scaled by 1"),
        ("build_with_half_the_loss", "rounding", "its gradient was scaled by 2"),
        ("build_with_another_loss", "bug", None),
    ],
)
@pytest.mark.quick(1)
def test_the_loss_function_is_repeated(runs, function, verdict, words):
    found = answered(runs("plain"), function=function)
    assert found.verdict == verdict
    assert words is None or any(note.endswith(words) for note in found.notes)
    assert words is not None or found.first_divergence.tensor == "out.grad"


@pytest.mark.slow
def test_random_numbers_are_drawn_anew(runs):
    found = answered(runs("plain", "dropout left on"), change=drops)
    assert (found.verdict, found.proof) == ("identical", "local"), found.reason


@pytest.mark.slow
def test_wrong_average_shows_beside_the_baseline(runs):
    found = answered(runs("by_hand", "no_average"), runs("plain"))
    assert found.verdict == "bug"
    assert "3 times the baseline's" in found.reason


QUICK = ("silu by sigmoid", "word off by one")


def some(changes):
    """All changes; those that only `make test-all` runs are marked."""
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in changes]


MAY_KEEP_BITS = ("attention on copied heads", "product by einsum", "words by a product", "recomputed layer")
"""Changes that a processor's kernels may compute in the very bits; all others round elsewhere on any processor."""


def bits(run):
    """The digests of all recorded values, each once: what is recomputed may be recorded again."""
    return set(read_columns(open_capture(run), Names()).digest.tolist())


@pytest.mark.parametrize("change", some(BENIGN))
@pytest.mark.slow
def test_the_same_function_computed_otherwise_is_rounding(runs, change):
    kept = change in MAY_KEEP_BITS and bits(runs("ddp", change)) == bits(runs("ddp"))
    assert answered(runs("ddp", change)).verdict == ("identical" if kept else "rounding")


@pytest.mark.parametrize("change", some(BUGS))
@pytest.mark.slow
def test_changed_functions_are_bugs(runs, change):
    found = answered(runs("ddp", change))
    assert found.verdict == "bug"
    assert BUGS[change][1] in {None, found.first_divergence.tensor}
