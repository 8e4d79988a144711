"""A slice of `make fuzz`: however a file is damaged, a command ends with an answer or one sentence."""

import pytest

from tests.fuzz.__main__ import FINE, READERS, play
from tests.marks import quick_first

INPUTS = {
    "ratios": 1,
    "streams": 4,
    "job": 1,
    "capture": 4,
    "trace": 6,
    "dumps": 6,
    "run.json": 4,
    "operation table": 6,
}
MOST = 10
UNNAMED = "nameless"
"""An answer about all files at once names none of them."""


@pytest.mark.parametrize("seed", quick_first(1, [77, 78, 79, 80, 81]))
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.quick(3)
def test_damaged_files_get_an_answer_or_a_sentence(tmp_path, reader, seed):
    ends = {}
    for number in range(INPUTS.get(reader, MOST)):
        folder = tmp_path / str(number)
        (folder / "in").mkdir(parents=True)
        (folder / "tmp").mkdir()
        ends[number] = play(reader, seed * 10_000_000 + number, folder)
    assert {n: end for n, end in ends.items() if end not in (*FINE, UNNAMED)} == {}
