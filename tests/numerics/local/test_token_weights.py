"""What positions count in a loss, read from its gradient: means are told, other divisors leave the verdict open."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from numerics import watch
from numerics.comparison.compare import Options, compare
from numerics.local.losses.token_weights import masked_positions, reads_own_rows, weights_of
from numerics.local.model_source import build
from numerics.local.proof import prove

CLASSES, LENGTH = 16, 6


def entropy(logits, labels, **more):
    return functional.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), **more)


def drawn(seed, dtype=torch.float32):
    """Logits of two sequences, and labels of which some are left out."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, LENGTH, CLASSES, generator=random).to(dtype).requires_grad_()
    labels = torch.randint(0, CLASSES, (2, LENGTH), generator=random)
    labels[1, 3:] = -100
    return logits, labels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_a_mean_are_found(dtype):
    logits, labels = drawn(1, dtype)
    entropy(logits, labels).backward()
    found = weights_of(logits.detach(), logits.grad)
    assert found.alike
    assert found.count == 9
    assert found.typical == pytest.approx(1 / 9, rel=1e-5 if dtype == torch.float32 else 0.02)
    assert torch.equal(found.rows != 0, labels >= 0)


def test_weighted_positions_are_not_alike():
    logits, labels = drawn(2)
    each = entropy(logits, labels, reduction="none")
    (each * torch.linspace(1, 2, len(each))).sum().backward()
    found = weights_of(logits.detach(), logits.grad)
    assert torch.allclose(found.rows[0], torch.linspace(1, 2, 12).double()[:6], rtol=1e-4)
    assert not found.alike


def smoothed(logits, labels):
    return entropy(logits, labels, label_smoothing=0.1)


def squared(logits, labels):
    return logits.square().mean()


def with_normaliser(logits, labels):
    return entropy(logits, labels) + 1e-3 * logits.logsumexp(-1).square().mean()


def hinged(logits, labels):
    return functional.multi_margin_loss(logits.flatten(0, -2), labels.flatten().clamp_min(0))


@pytest.mark.parametrize("loss", [smoothed, squared, with_normaliser, hinged])
def test_other_losses_tell_no_weights(loss):
    logits, labels = drawn(3)
    loss(logits, labels).backward()
    assert weights_of(logits.detach(), logits.grad) is None


def test_few_classes_tell_no_weights():
    logits = torch.randn(4, 2, requires_grad=True)
    functional.cross_entropy(logits, torch.tensor([0, 1, 1, 0])).backward()
    assert weights_of(logits.detach(), logits.grad) is None


def test_confident_rows_are_left_out():
    logits, labels = drawn(4)
    sure = logits.detach().clone()
    sure[0, 0, labels[0, 0]] = 40.0
    sure.requires_grad_()
    entropy(sure, labels).backward()
    found = weights_of(sure.detach(), sure.grad)
    assert found.alike
    assert found.typical == pytest.approx(1 / 9, rel=1e-5)


def test_one_position_at_a_border_is_not_masked():
    logits, _ = drawn(5)
    labels = torch.randint(0, CLASSES, (2, LENGTH))
    entropy(logits, labels).backward()
    found = weights_of(logits.detach(), logits.grad)
    mask = torch.ones(2, LENGTH)
    mask[0, 0] = 0
    assert masked_positions(found, mask) == 0
    mask[1, 2:] = 0
    assert masked_positions(found, mask) == 3


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(CLASSES, 8), nn.Linear(8, CLASSES)

    def forward(self, ids, attention_mask=None):
        x = self.words(ids)
        return self.head(x if attention_mask is None else x * attention_mask[..., None])


def made():
    torch.manual_seed(5)
    model = Words()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def with_loss():
    return *made(), entropy


def trained(out, divided_by, *, masked=False, clip=False, scale=1.0, counts=(12, 9)):
    """Two steps of two micro-batches, of which `counts` positions have labels; `divided_by` maps a step's labels."""
    model, optimizer = made()
    watcher = watch(model, optimizer, micro_batches=2, out=out, level="tensors")
    for step in range(2):
        random = torch.Generator().manual_seed(step)
        batches = [torch.randint(0, CLASSES, (2, LENGTH + 1), generator=random) for _ in counts]
        labels = [ids[:, 1:].clone() for ids in batches]
        for own, count in zip(labels, counts, strict=True):
            own.view(-1)[count:] = -100
        for ids, own in zip(batches, labels, strict=True):
            mask = {"attention_mask": (own >= 0).float()} if masked else {}
            due = own if not masked or masked == "right" else ids[:, 1:]
            loss = entropy(model(ids[:, :-1], **mask), due, reduction="sum")
            watcher.targets(due)
            (scale * loss / divided_by(own, labels)).backward()
        for p in model.parameters():
            p.grad /= scale
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()
    return out


def all_tokens(_, labels):
    return sum(int((own >= 0).sum()) for own in labels)


def own_tokens(own, labels):
    return int((own >= 0).sum()) * len(labels)


def all_positions(_, labels):
    return sum(own.numel() for own in labels)


def sequences(_, labels):
    return sum(len(own) for own in labels)


def second_double(own, labels):
    return all_tokens(own, labels) * (0.5 if own is labels[1] else 1)


class Judge(nn.Module):
    """A model that gives its loss itself."""

    def __init__(self):
        super().__init__()
        self.inner = Words()

    def forward(self, ids, labels):
        return entropy(self.inner(ids), labels)


def judge():
    torch.manual_seed(6)
    return Judge()


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_losses_that_a_model_gives_are_weighed(tmp_path, micro_batches):
    model = judge()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = watch(model, optimizer, micro_batches=micro_batches, out=tmp_path / "run", level="tensors")
    for count in (12, 9)[:micro_batches]:
        ids = torch.randint(0, CLASSES, (2, LENGTH), generator=torch.Generator().manual_seed(count))
        labels = ids.clone()
        labels.view(-1)[count:] = -100
        (model(ids, labels) / micro_batches).backward()
    optimizer.step()
    watcher.close()
    found = answered(tmp_path / "run", "judge")
    assert not any(text.startswith("the loss:") for text in found.not_checked)
    if micro_batches == 1:
        assert found.verdict in {"identical", "rounding"}
        assert "not checked: the average of losses" not in found.reason
        return
    assert found.verdict == "undecided"
    assert "a mean of the means over micro-batches of each rank, which hold 9 to 12 positions" in found.reason


def answered(run, function="made"):
    built = build(f"tests.numerics.local.test_token_weights:{function}")
    proving = partial(prove, model=built.model, optimizer=built.optimizer, loss=built.loss)
    return compare(run, None, Options(prove=proving))


@pytest.mark.parametrize(
    ("divided_by", "more"),
    [
        (all_tokens, {}),
        (all_tokens, {"clip": True}),
        (all_tokens, {"scale": 1024.0}),
        (all_tokens, {"masked": "right"}),
        (all_tokens, {"counts": (12, 0)}),
        (own_tokens, {"counts": (9, 9)}),
        (all_positions, {"counts": (12, 12)}),
        (sequences, {}),
    ],
    ids=["mean", "clipped", "scaled", "masked", "empty", "even", "all count", "by sequences"],
)
@pytest.mark.quick(2)
def test_a_sound_mean_is_told_and_not_doubted(tmp_path, divided_by, more):
    found = answered(trained(tmp_path / "run", divided_by, **more))
    assert found.verdict in {"identical", "rounding"}, found.reason
    told = f"the loss: a cross entropy; in step 0 {sum(more.get('counts', (12, 9)))} of 24 positions count"
    assert any(note.startswith(told) for note in found.notes), found.notes


@pytest.mark.parametrize(
    ("divided_by", "more", "said"),
    [
        (own_tokens, {}, "a mean of the means over micro-batches of each rank, which hold 9 to 12 positions"),
        (
            own_tokens,
            {"clip": True},
            "counts 1.333 times as much as one of data-parallel rank 0, micro-batch 0",
        ),
        (all_positions, {}, "the loss is divided by all 24 positions, though 21 of them count"),
        (all_positions, {"clip": True}, "the loss is divided by all 24 positions, though 21 of them count"),
        (
            second_double,
            {},
            "positions count unequally in the loss: a position of data-parallel rank 0, micro-",
        ),
        (all_positions, {"masked": "wrong"}, "2 positions that attention_mask leaves out count in the loss"),
    ],
    ids=["means", "clipped means", "divisor", "clipped divisor", "double", "masked"],
)
@pytest.mark.quick(2)
def test_another_divisor_leaves_the_verdict_open(tmp_path, divided_by, more, said):
    found = answered(trained(tmp_path / "run", divided_by, **more))
    assert found.verdict == "undecided"
    assert said in found.reason
    assert "watcher.targets(...)" in found.next


@pytest.mark.parametrize("divided_by", [own_tokens, all_positions])
def test_the_loss_that_is_meant_settles_it(tmp_path, divided_by):
    run = trained(tmp_path / "run", divided_by)
    verdict = {own_tokens: "identical", all_positions: "identical"}[divided_by]
    meant = "with_loss" if divided_by is own_tokens else "with_sum"
    found = answered(run, meant)
    assert found.verdict in {verdict, "rounding"}, found.reason


def with_sum():
    return *made(), partial(entropy, reduction="sum")


def test_another_loss_than_meant_is_a_bug(tmp_path):
    found = answered(trained(tmp_path / "run", own_tokens), "with_sum")
    assert (found.verdict, found.proof) == ("bug", "local")


def test_classes_that_pad_a_vocabulary_are_not_read():
    logits = torch.randn(12, 20, requires_grad=True)
    functional.cross_entropy(logits[:, :17], torch.randint(0, 17, (12,))).backward()
    found = weights_of(logits.detach(), logits.grad)
    assert found is not None
    assert found.alike
    assert reads_own_rows(logits.detach(), logits.grad, 1e-4)
