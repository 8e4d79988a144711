"""States of random-number generators, beside each other."""

import pytest
import torch
from torch.nn import functional

from numerics.columns import Names, read_columns
from numerics.comparison.broken_invariants.random_numbers import random_notes
from numerics.local.bounds.bounded import carrying, known
from numerics.record.recorder import Recorder
from numerics.store import open_capture


def noted(folder, seed_of, moves=True, starts=(0,)):
    """Notes on four ranks (tp 2, dp 2) whose generators start from `seed_of(tp, dp)`, each step's later by `starts`."""
    for rank in range(4):
        coords = {"tp": rank % 2, "dp": rank // 2}
        with Recorder(folder, rank, 4, coords) as recorder:
            for step, number in ((step, number) for step in range(len(starts)) for number in range(2)):
                seed = seed_of(**coords) + starts[step] + (100 * number if moves else 0)
                state = torch.full((16,), seed, dtype=torch.uint8)
                more = {"step": step, "phase": "forward", "kind": "input", "partial": f"rank={rank}"}
                recorder.record("rng.cpu", state, micro_batch=number, **more)
    return random_notes(read_columns(open_capture(folder), Names()))


@pytest.mark.parametrize(
    ("seed_of", "words"),
    [
        (lambda tp, dp: dp, []),
        (lambda tp, dp: 7, ["data-parallel ranks 0 and 2 draw the same random numbers"]),
        (lambda tp, dp: 2 * dp + tp, ["ranks 0 and 1 share sequences and draw other random numbers"]),
    ],
)
def test_ranks_draw_alike_or_apart(tmp_path, seed_of, words):
    found = noted(tmp_path, seed_of)
    assert len(found) == len(words)
    assert all(text.startswith(word) for text, word in zip(found, words, strict=True))


def test_generators_that_rest_say_nothing(tmp_path):
    assert noted(tmp_path, lambda tp, dp: 7, moves=False) == ()


def test_a_generator_set_back_is_told(tmp_path):
    (text,) = noted(tmp_path / "back", lambda tp, dp: dp, starts=(0, 10, 0))
    assert text.startswith("rank 0 draws in step 2 the random numbers of step 0 (micro-batch 0, cpu)")
    assert noted(tmp_path / "on", lambda tp, dp: dp, starts=(0, 10, 20)) == ()


def test_dropout_is_exact_only_from_a_recorded_state():
    x = torch.randn(50)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        right = functional.dropout(x, 0.5)
        torch.manual_seed(3)
        with carrying(draws=True) as carried:
            made = functional.dropout(known(x), 0.5)
        assert not carried.without_rule
        assert bool(((made.value - right).abs() <= made.error).all())
        with carrying():
            assert bool(functional.dropout(known(x), 0.5).error.isinf().any())
