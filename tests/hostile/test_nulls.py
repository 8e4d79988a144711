"""Every text of a stored table may be null: no sort, join or set of any command stumbles over that."""

import shutil

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tracekit_cli.tracekit import tracekit

from tests.fuzz.outcome import outcome
from tests.hostile.job import documents, write
from tests.hostile.test_run_folders import signed
from tests.marks import quick_first
from tracekit.ingest import load
from tracekit.schema import EVENTS

TEXTS = [field.name for field in EVENTS if pa.types.is_dictionary(field.type)]
COMMANDS = ("slowrank --explain", "mesh", "whatif", "breakdown", "floor", "trend", "triage")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    load([str(write(folder / "in", documents()))], out=folder / "run")
    return folder / "run"


def emptied(run, columns, every):
    """Put null into each of `every` rows of columns, and sign the run again."""
    for path in (run / "events").iterdir():
        table = pq.read_table(path)
        gone = pa.array([row % every == 0 for row in range(table.num_rows)])
        for name in columns:
            at = table.schema.get_field_index(name)
            texts = table.column(at).combine_chunks()
            table = table.set_column(
                at, table.schema.field(at), pc.if_else(gone, pa.scalar(None, texts.type), texts)
            )
        pq.write_table(table, path)
    signed(run)


@pytest.mark.parametrize("columns", quick_first(1, [TEXTS, *([name] for name in TEXTS)]))
@pytest.mark.parametrize("words", quick_first(1, COMMANDS))
def test_nulls_among_texts_end_no_command(whole, tmp_path, words, columns):
    run = shutil.copytree(whole, tmp_path / "run")
    emptied(run, columns, every=3)
    name, *options = words.split()
    command = tracekit.get_command(None, name)
    for form in ("--json", "--html") if name != "slowrank" else ("--json",):
        answer = [form, "-" if form == "--json" else str(tmp_path / "page.html")]
        word, _ = outcome(command, [str(run), *options, *answer, "--quiet"], run)
        assert word in {"answered", "refused"}
