"""Padding that counts in a loss, or that words see, leaves the verdict open; what no record tells is said."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from numerics import watch
from numerics.comparison.compare import Options, compare
from numerics.local.losses.padding import masked_out, repeated_id, runs_of, sequences_of, several_sequences
from numerics.local.proof import prove
from numerics.report.json import compare_document

CLASSES, LENGTH, PAD = 40, 10, 0


class Reader(nn.Module):
    """Words beside the mean of those that the mask lets in, or of those before them."""

    def __init__(self, causal=False, own_loss=False):
        super().__init__()
        self.words, self.head = nn.Embedding(CLASSES, 16), nn.Linear(32, CLASSES)
        self.causal, self.own_loss = causal, own_loss

    def forward(self, ids, mask=None, labels=None):
        x, seen = self.words(ids), torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        kept = x * seen[..., None]
        if self.causal:
            mean = kept.cumsum(1) / seen.cumsum(1).clamp_min(1)[..., None]
        else:
            mean = (kept.sum(1) / seen.sum(1)[:, None])[:, None].expand_as(x)
        logits = self.head(torch.cat([x, mean], -1))
        return loss_of(logits, labels) if self.own_loss else logits


def loss_of(logits, labels):
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def made(**kinds):
    torch.manual_seed(8)
    model = Reader(**kinds)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def padded(step, number, left=False):
    """Sequences that end (or begin) in padding, their labels, and which positions hold words."""
    ids = torch.randint(1, CLASSES, (3, LENGTH), generator=torch.Generator().manual_seed(10 * step + number))
    words = torch.arange(LENGTH) < torch.tensor([LENGTH, 6 - number, 4])[:, None]
    words = words.flip(-1) if left else words
    ids = ids.where(words, PAD)
    labels = torch.cat([ids[:, 1:], torch.full((3, 1), PAD)], 1)
    return ids, labels.where(labels != PAD, -100), words


def trained(tmp_path, *, mask="own", counted=False, left=False, targets=False, declared=False, **kinds):
    """The answer on two steps of two micro-batches; `mask` is given to both, to the first, to none, or inverted."""
    model, optimizer = made(**kinds)
    watcher = watch(model, optimizer, micro_batches=2, out=tmp_path / "run", level="tensors")
    for step in range(2):
        batches = [padded(step, number, left) for number in range(2)]
        every = sum(int((labels >= 0).sum()) for _, labels, _ in batches) if not counted else 60
        for number, (ids, labels, words) in enumerate(batches):
            due = labels.clamp_min(PAD) if counted else labels
            given = {"mask": words | (mask == "first" and number == 1)} if mask != "none" else {}
            given |= {"labels": due} if kinds.get("own_loss") else {}
            out = model(ids, **given)
            if targets:
                watcher.targets(due)
            own = int((due >= 0).sum())
            (out * own if out.dim() == 0 else loss_of(out, due) * own).div(every).backward()
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()
    model, optimizer = made(**kinds)
    proving = partial(prove, model=model, optimizer=optimizer, loss=partial(summed, 60) if declared else None)
    return compare(tmp_path / "run", None, Options(prove=proving))


def summed(every, logits, labels):
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / every


def said_of_padding(found):
    """What the answer's JSON says of padding: not checked, and as a note."""
    document = compare_document(found)
    return [
        [text for text in document[field] if text.startswith("padding: ")]
        for field in ("not_checked", "notes")
    ]


@pytest.mark.parametrize("left", [False, True])
def test_padding_that_does_not_count_is_told(tmp_path, left):
    found = trained(tmp_path, left=left)
    assert found.verdict in {"identical", "rounding"}, found.reason
    assert said_of_padding(found) == [[], ["padding: none of it (id 0) counts in the loss of step 0"]]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "positions of padding (id 0), which in.mask leaves out, count in the loss"),
        ({"mask": "none", "causal": True}, "positions of padding (id 0) count in the loss"),
    ],
)
def test_padding_that_counts_leaves_it_open(tmp_path, more, words):
    found = trained(tmp_path, counted=True, **more)
    assert found.verdict == "undecided"
    assert words in found.reason
    assert "return the loss function too" in found.next


def test_labels_that_count_are_taken_as_recorded(tmp_path):
    found = trained(tmp_path, counted=True, targets=True, declared=True)
    assert found.verdict in {"identical", "rounding"}, found.reason
    assert any("their labels were taken as recorded" in text for text in said_of_padding(found)[0])
    assert "not checked: " in found.reason
    assert "padding" in found.reason


def test_a_mask_that_a_micro_batch_lacks_is_doubted(tmp_path):
    found = trained(tmp_path, mask="first")
    assert found.verdict == "undecided"
    assert (
        "in.mask leaves out padding (id 0), but not 9 positions of it of data-parallel rank 0, micro-batch 1"
        in (found.reason)
    )


def test_padding_that_no_word_sees_needs_no_mask(tmp_path):
    found = trained(tmp_path, mask="first", causal=True)
    assert found.verdict in {"identical", "rounding"}, found.reason
    assert any("outputs of words do not depend on it" in note for note in said_of_padding(found)[1])


def test_words_that_may_see_padding_are_not_checked(tmp_path):
    found = trained(tmp_path, mask="none")
    assert found.verdict in {"identical", "rounding"}
    assert "no mask leaves out 10 positions of padding (id 0)" in said_of_padding(found)[0][0]
    assert "padding" in found.reason.partition("not checked: ")[2]


@pytest.mark.parametrize("counted", [False, True])
def test_labels_tell_of_a_loss_inside_the_model(tmp_path, counted):
    found = trained(tmp_path, own_loss=True, causal=True, counted=counted)
    assert (found.verdict == "undecided") == counted, found.reason
    assert not counted or "which in.mask leaves out, count in the loss" in found.reason
    assert said_of_padding(found)[0] == []


class Sorter(nn.Module):
    """One of ten classes for each sequence, by the mean of all its positions, or by its first word."""

    def __init__(self, first):
        super().__init__()
        self.words, self.head, self.first = nn.Embedding(CLASSES, 16), nn.Linear(16, 10), first

    def forward(self, ids):
        x = self.words(ids)
        return self.head(x[:, 0] if self.first else x.mean(1))


@pytest.mark.parametrize("first", [False, True])
def test_padding_of_whole_sequences_is_told(tmp_path, first):
    torch.manual_seed(9)
    model = Sorter(first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = watch(model, optimizer, out=tmp_path / "run", level="tensors")
    functional.cross_entropy(model(padded(0, 0)[0]), torch.arange(3)).backward()
    optimizer.step()
    watcher.close()
    torch.manual_seed(9)
    found = compare(
        tmp_path / "run", None, Options(prove=partial(prove, model=Sorter(first), optimizer=optimizer))
    )
    (texts, _) = said_of_padding(found)
    assert len(texts) == (not first)
    assert first or "whether words see it was not checked" in texts[0]


def test_any_mask_is_found_by_what_it_leaves_out():
    ids, _, words = padded(0, 0)
    for mask in (words, ~words):
        name, out = masked_out({"0": ids, "1": mask}, ids)
        assert (name, out.tolist()) == ("1", (~words).tolist())
    kinds = (ids > CLASSES // 2).long()
    assert masked_out({"0": ids, "token_type_ids": words.long(), "2": kinds.bool()}, ids) is None
    assert masked_out({"0": ids, "mask": torch.ones_like(ids)}, ids) is None


def test_ids_of_words_are_told_from_other_whole_numbers():
    ids, labels, words = padded(0, 0)
    positions = torch.arange(LENGTH).expand(3, LENGTH)
    given = {"position_ids": positions + 100, "0": ids, "labels": labels + 1000, "kinds": words.long()}
    assert sequences_of(given) is ids
    assert sequences_of({"image": torch.rand(3, LENGTH), "0": positions[0]}) is None


def test_two_sequences_share_no_mask():
    ids, labels, words = padded(0, 0)
    other, _, _ = padded(5, 1)
    both = {"input_ids": ids, "attention_mask": words.long(), "decoder_input_ids": other}
    assert several_sequences(both)
    assert sequences_of(both) is None
    assert not several_sequences({"0": ids, "1": labels, "segments": words.long()})


def test_ends_that_chance_makes_are_no_padding():
    ids, _, words = padded(0, 0)
    assert repeated_id(ids) == PAD
    assert torch.equal(runs_of(ids, PAD), ~words)
    drawn = torch.randint(0, CLASSES, (8, 64), generator=torch.Generator().manual_seed(1))
    drawn[:2, -2:] = 7
    assert repeated_id(drawn) is None
    spaces = drawn.clone()
    spaces[:4, -8:] = spaces[4:, 20:28] = 3
    assert repeated_id(spaces) is None
    assert repeated_id(torch.zeros(4, 16, dtype=torch.int64)) is None
    assert repeated_id(torch.randint(0, 2, (8, 16), generator=torch.Generator().manual_seed(2))) is None
