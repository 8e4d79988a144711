"""Names that are no UTF-8: files keep their answer, a run folder that no table's library can open is refused."""

import os

import pytest

from tests.hostile.job import answer, documents, write
from tracekit.errors import InputError
from tracekit.ingest import load

ODD = os.fsdecode(b"\xff\n\x1b[31m")


@pytest.fixture
def traces(tmp_path):
    """A folder with an odd name of files with odd names, of a job whose rank 6 is slow."""
    folder = write(tmp_path / f"traces{ODD}", documents())
    for path in sorted(folder.iterdir()):
        path.rename(folder / f"{ODD}{path.name}")
    return folder


@pytest.mark.slow
def test_files_with_odd_names_are_read_and_kept(traces, tmp_path):
    assert answer(traces).suspects[0].rank == 6
    (traces / f"{ODD}cut.json").write_text('{"traceEvents": [')
    load(traces, out=tmp_path / "run", append=True)
    grown = load(traces, out=tmp_path / "run", append=True)
    assert [r.path for r in grown.rejected] == [str(traces / f"{ODD}cut.json")]
    assert answer(tmp_path / "run").suspects[0].rank == 6


def test_a_run_is_kept_under_no_odd_name(traces, tmp_path):
    with pytest.raises(InputError, match="not UTF-8; name another"):
        load(traces, out=tmp_path / f"run{ODD}")
    load(traces, out=tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / f"run{ODD}")
    with pytest.raises(InputError, match="not UTF-8; rename it"):
        load(tmp_path / f"run{ODD}")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([f"run{ODD}", f"traces{ODD}"])
