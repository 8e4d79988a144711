"""Without member lists an operation still counts its members: it is no operation of all ranks if it counts fewer."""

from random import Random

import pytest

from tests.localise.case import make, save
from tests.property.reach import RANKS, asked, read, word
from tests.property.taken_away import TAKEN

ERASED = "member lists and the table of groups"


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "kind"), [(9301, "pauses"), (9304, "slow_compute"), (9300, "pauses")])
def test_the_culprit_stays_or_the_answer_is_open(tmp_path, seed, kind):
    """The tensor groups of the first, a pipeline, were taken for one of all ranks, and half of the ranks for cut."""
    case = make(seed, kind, RANKS)
    save(case, tmp_path)
    traces = read(tmp_path)
    told = word(asked(TAKEN[ERASED](traces, Random(seed))), set(case.culprits), "slow_rank")
    assert told == "survives" if seed == 9301 else told != "wrong"
