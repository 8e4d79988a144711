"""Statistics over a batch differ by design where it is split: told by name, and neither drift nor a bug."""

from contextlib import nullcontext
from functools import partial
from unittest.mock import patch

import pytest
import torch
from torch.nn import functional

from numerics.comparison.compare import Options, compare
from numerics.local.places.batch_statistics import batch_statistics
from numerics.local.proof import prove
from tests.numerics.local.batch_trainers import LAYERS, WIDE, Net, build, trained

SPLITS = {"one": (1, 1), "two": (1, 2), "ddp": (3, 1), "ddp two": (3, 2)}


@pytest.fixture(scope="module")
def runs(ranks, tmp_path_factory):
    made = {}

    def run(layer, split, config=None):
        key = (layer, split, str(config))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("run") / "run"
            world, micro_batches = SPLITS[split]
            ranks.run(trained, world, layer, micro_batches, made[key], config)
        return made[key]

    return run


def answered(layer, run, baseline=None):
    model, optimizer = build(layer)
    return compare(run, baseline, Options(prove=partial(prove, model=model, optimizer=optimizer)))


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ("batch", "norm (BatchNorm1d)"),
        pytest.param("cumulative", "norm (BatchNorm1d)", marks=pytest.mark.slow),
        pytest.param("untracked", "norm (BatchNorm1d)", marks=pytest.mark.slow),
        pytest.param("mean taken", "norm (MeanTaken)", marks=pytest.mark.slow),
        ("rounded", "norm (Rounded)"),
    ],
)
@pytest.mark.parametrize("split", [pytest.param("two", marks=pytest.mark.slow), "ddp"])
def test_own_statistics_are_named(runs, layer, words, split):
    for baseline in (None, runs(layer, "one")):
        found = answered(layer, runs(layer, split), baseline)
        assert (found.verdict, found.proof) == ("undecided", "none"), found.reason
        assert found.reason.startswith(f"{words} computes statistics over the sequences of its batch")
        assert "different by design" in found.reason
        assert "SyncBatchNorm" in found.next


def test_a_baseline_that_splits_is_seen(runs):
    found = answered("batch", runs("batch", "one"), runs("batch", "ddp two"))
    assert found.verdict == "undecided"
    assert "3 data-parallel ranks with 2 micro-batches" in found.reason


@pytest.mark.parametrize("layer", ["frozen", "group", "layer", "routed"])
@pytest.mark.quick(1)
def test_layers_without_batch_statistics_stay_healthy(runs, layer):
    found = answered(layer, runs(layer, "ddp"), runs(layer, "one"))
    assert found.verdict in {"drift", "rounding"}, found.reason


def test_synchronised_statistics_are_healthy(runs):
    for baseline in (None, runs("synchronised", "one")):
        found = answered("synchronised", runs("synchronised", "ddp"), baseline)
        assert (found.verdict, found.proof) == ("rounding", "bound"), found.reason
        assert any("over the sequences of all data-parallel ranks" in note for note in found.notes)


@pytest.mark.slow
def test_declared_statistics_are_judged_as_others(runs):
    declared = runs("batch", "ddp", {"layout": {"batch_statistics": "local"}})
    found = answered("batch", declared)
    assert found.verdict == "identical", found.reason
    found = answered("batch", declared, runs("batch", "one"))
    assert found.verdict == "drift", found.reason
    assert "the order of sums and the declared statistics" in found.reason


def test_unequal_buffers_are_named(runs):
    found = answered("batch", runs("batch", "ddp"))
    assert "after step 0 the buffer norm.running_mean and 1 more differ" in found.reason
    found = answered("counted", runs("counted", "ddp"))
    assert found.verdict == "undecided"
    assert found.reason.startswith("after step 0 the buffer norm.seen differs")
    found = compare(runs("batch", "ddp"), runs("batch", "one"))
    assert "the buffer norm.running_mean and 1 more differ" in found.reason


class Given:
    """What `batch_statistics` asks of a recorded step."""

    def __init__(self, model, *inputs, targets=()):
        self.model, self._inputs, self._targets = model, list(inputs), list(targets)

    def inputs(self, _place):
        return self._inputs, {}

    def arranged(self, _place, tensors):
        return list(tensors.values()), {}

    def targets(self, _place):
        return self._targets

    def modes(self, _place):
        return nullcontext()


def asked(model, *inputs, targets=(), loss=None):
    given = Given(model, *inputs, targets=targets)
    with patch("numerics.local.places.batch_statistics.model_inputs", Given.inputs):
        return batch_statistics(given, (0, 0), dict(model.named_parameters()), loss).words


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_what_computes_over_a_batch_is_found(layer):
    torch.manual_seed(3)
    over = {"batch", "cumulative", "untracked", "mean taken", "synchronised", "rounded"}
    assert bool(asked(Net(layer), torch.randn(4, WIDE))) == (layer in over)


def contrastive(out, _labels):
    return functional.cross_entropy(out @ out.T, torch.arange(len(out)))


def balanced(out, labels):
    chosen = out.softmax(-1)
    share = functional.one_hot(out.argmax(-1), out.shape[1]).double().mean(0)
    return functional.cross_entropy(out, labels) + 0.01 * (chosen.mean(0) * share).sum()


def uneven(out, labels):
    return functional.cross_entropy(out, labels, ignore_index=0)


@pytest.mark.parametrize(("loss", "over"), [(contrastive, True), (balanced, True), (uneven, False)])
def test_losses_over_a_batch_are_found(loss, over):
    torch.manual_seed(3)
    model, labels = Net("layer"), torch.tensor([3, 0, 2, 5])
    assert bool(asked(model, torch.randn(4, WIDE), targets=[labels], loss=loss)) == over
