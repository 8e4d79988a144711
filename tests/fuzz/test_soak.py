"""A process that answers for a thousand good and bad folders grows no larger than after the first hundreds."""

import gc
import os
from pathlib import Path

import pytest

from tests.fuzz.__main__ import READERS, play

FOLDERS = 1000
WARM = 400
MOST_MIB = 24
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_memory_is_flat_over_many_folders(tmp_path):
    names, sizes, files = list(READERS), [], []
    for number in range(FOLDERS):
        folder = tmp_path / str(number)
        (folder / "in").mkdir(parents=True)
        (folder / "tmp").mkdir()
        play(names[number % len(names)], 550_000_000 + number, folder)
        if number >= WARM:
            sizes.append(resident())
            files.append(len(list(Path("/proc/self/fd").iterdir())))
    assert max(sizes[-100:]) - max(sizes[:100]) < MOST_MIB
    assert files[-1] <= files[0]
