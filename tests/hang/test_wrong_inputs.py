"""What an engineer is told who gives traces, one dump of many, or a wrong mesh beside rejected files."""

import gzip
import json

import pytest
from click.testing import CliRunner
from tracekit_cli.tracekit_commands.hang import hang

from tests.hang import simulate
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps
from tracekit.errors import InputError, TracekitError

TRACE = json.dumps({"traceEvents": []}).encode()
MESH = {"tp": 2, "cp": 2, "pp": 2, "dp": 2}


def refusal(given):
    with pytest.raises(InputError) as refused:
        load_dumps([str(given)])
    return str(refused.value)


def test_traces_are_told_from_dumps(tmp_path):
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(TRACE))
    assert "none of the 1 files in there is named as a dump is" in refusal(tmp_path)
    assert f"({path} looks like a profiler's trace: `tracekit slowrank` reads it)" in refusal(tmp_path)
    assert "it is a profiler's trace; `tracekit slowrank` reads it" in refusal(path)
    (tmp_path / "rank0.json").write_bytes(TRACE)
    assert "it is a profiler's trace; `tracekit slowrank` reads it" in refusal(tmp_path / "rank0.json")
    assert "give the folder that holds the dumps" in refusal(tmp_path)


def test_one_dump_of_many_is_said_first(tmp_path):
    folder = simulate.make(3, "host_stall", "tp", MESH).write(tmp_path / "fr")
    (first, *_) = sorted(folder.iterdir())
    finding = analyse(load_dumps([str(first)]))
    assert (finding.verdict, finding.culprits) == ("inconclusive", ())
    assert finding.reason.startswith("only rank 0 left a dump that was read: add the others' dumps; ")
    assert not analyse(load_dumps([str(folder)])).reason.startswith("only")


def test_a_refusal_lists_rejected_dumps(tmp_path):
    folder = simulate.make(3, "host_stall", "tp", MESH).write(tmp_path / "fr")
    (folder / "rank_99\x1b[31m").write_text("x")
    done = CliRunner().invoke(hang, [str(folder), "--mesh", "tp=3", "--quiet"], standalone_mode=False)
    assert isinstance(done.exception, TracekitError)
    assert [note.startswith(f"rejected {folder}/rank_99") for note in done.exception.__notes__] == [True]
