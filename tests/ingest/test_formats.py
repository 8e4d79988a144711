"""The registry of formats: first bytes tell, names only choose what is tried in folders."""

import pickle

import pytest

from tests.ingest.sample import document, put
from tracekit.files.source import Source
from tracekit.ingest import load
from tracekit.ingest.readers import FORMATS, TRACES, format_of, format_of_file


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b'{"traceEvents": [', "kineto"),
        (b"\xef\xbb\xbf [{", "kineto"),
        (b"PAR1\x15\x04", "operation_table"),
        (pickle.dumps({"pg_config": {}, "entries": []}, 2), "flight_recorder"),
        (pickle.dumps({"entries": []}, 0), "flight_recorder"),
        (pickle.dumps({"a": 1}), None),
        (b"<html>", None),
        (b"", None),
    ],
)
def test_first_bytes_tell_the_format(head, name):
    found = format_of(head)
    assert (found.name if found else None) == name


def test_names_and_ends_of_formats_are_unique():
    names = [form.name for form in FORMATS]
    ends = [end for form in FORMATS for end in form.ends]
    assert len(set(names)) == len(names)
    assert len(set(ends)) == len(ends)
    assert all(TRACES.takes("RANK0" + end.upper()) for end in ends)
    assert not TRACES.takes("notes.txt")


def test_an_unreadable_file_has_no_format(tmp_path):
    missing = str(tmp_path / "missing")
    assert format_of_file(Source(missing, missing, 0)) is None


def test_links_back_up_are_followed_once(tmp_path):
    put(tmp_path / "traces" / "rank0.json", document(rank=0))
    put(tmp_path / "elsewhere" / "rank1.json", document(rank=1))
    (tmp_path / "traces" / "again").symlink_to(tmp_path / "traces")
    (tmp_path / "traces" / "more").symlink_to(tmp_path / "elsewhere")
    run = load([str(tmp_path / "traces")])
    assert [r.rank for r in run.ranks] == [0, 1]
    assert not run.quality
