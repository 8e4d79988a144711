"""What an open comparison advises is done, and then it is decided."""

import pytest

from tests.advice.next_steps import BEGINS_AT_A_BUG, ENDS_AT_A_BUG, FOLLOWED, next_steps
from tests.marks import quick_but

SLOW = [
    "or before the backward, and not between",
    "compare with a baseline that goes on from the same checkpoint",
    "numerics compare --model FILE.py:FUNCTION --parallel ",
    "all-reduce or broadcast the buffers",
    "capture the run in FP32, and compare again",
    "capture one step more",
    "take statistics over all data-parallel ranks",
    "seed each data-parallel rank by its number",
    "give each rank the positions that its piece has",
    "give each data-parallel rank and micro-batch sequences of its own",
    "compare with a baseline that changes its weights in the same way",
    "divide each rank's loss by what all ranks count",
    "compute it over the sequences of all ranks and micro-batches",
    "capture again with `watch(place=...)`",
    "call `model.train()` after each evaluation; or",
    "call `model.eval()` in both runs or in neither",
    "or before the first backward of a step",
    "let both runs begin with a loss scale that overflows in neither",
]


@pytest.mark.quick(5)
@pytest.mark.parametrize("part", quick_but(SLOW, FOLLOWED))
def test_the_next_step_decides(part, tmp_path, ranks):
    before, after = FOLLOWED[part](tmp_path, ranks)
    assert before.verdict == ("bug" if part in BEGINS_AT_A_BUG else "undecided")
    assert part in before.next
    assert after.verdict in ({"bug"} if part in ENDS_AT_A_BUG else {"identical", "rounding", "drift"}), (
        after.reason
    )


def test_every_next_step_has_one_case():
    told = {text: [part for part in FOLLOWED if part in text] for text in next_steps()}
    assert [text for text, parts in told.items() if len(parts) != 1] == []
    assert set(FOLLOWED) == {part for parts in told.values() for part in parts}
    assert set(FOLLOWED) >= ENDS_AT_A_BUG
