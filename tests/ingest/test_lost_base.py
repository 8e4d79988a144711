"""A file that is cut off has lost the base time behind its events; its times must not lie decades before its peers'."""

import json

import pytest

from tests.ingest.sample import document, event, put
from tracekit.ingest import load

BASE = 1_771_588_800_000_000_000


def based(rank=0, base=BASE, events=None):
    """A whole file with its base time behind the events, as Kineto writes it."""
    made = document(events, rank=rank)
    return made if base is None else made | {"baseTimeNanoseconds": base}


def cut(rank=0, events=None):
    """A file that ends inside its fourth event."""
    text = json.dumps(based(rank, events=events))
    return text[: text.index('"op4"')]


def begins(run, rank):
    return run.events(rank).column("ts").to_pylist()


def row(run):
    return next((q for q in run.quality if q.kind == "base_time_lost"), None)


@pytest.mark.parametrize("append", [False, True])
def test_the_others_give_the_base(tmp_path, append):
    out = tmp_path / "run" if append else None
    put(tmp_path / "in" / "0.json", based())
    if append:
        load([str(tmp_path / "in")], out=out)
    put(tmp_path / "in" / "1.json", cut(1))
    run = load([str(tmp_path / "in")], out=out, append=append)
    assert begins(run, 1) == begins(run, 0)[:4]
    assert row(run).path.endswith("1.json")


def test_files_without_base_need_none(tmp_path):
    put(tmp_path / "0.json", based(base=None))
    put(tmp_path / "1.json", cut(1))
    run = load([str(tmp_path)])
    assert begins(run, 1) == begins(run, 0)[:4]
    assert row(run) is None


def test_bases_that_differ_are_not_taken(tmp_path):
    for rank in (0, 1):
        put(tmp_path / f"{rank}.json", based(rank, BASE + rank))
    put(tmp_path / "2.json", cut(2))
    run = load([str(tmp_path)])
    assert begins(run, 2)[0] + BASE == begins(run, 0)[0]
    assert "do not agree" in row(run).detail


def test_an_unusable_base_is_lost_as_well(tmp_path):
    put(tmp_path / "0.json", based())
    put(tmp_path / "1.json", based(1, "soon"))
    run = load([str(tmp_path)])
    assert begins(run, 1) == begins(run, 0)


@pytest.mark.parametrize("others", [(BASE,), (BASE, BASE + 1)])
def test_a_cut_copy_is_no_window(tmp_path, others):
    """Neither where the base is found again nor where it is not."""
    for rank, base in enumerate(others):
        put(tmp_path / f"{rank}.json", based(rank, base))
    put(tmp_path / "copy.json", cut(0))
    run = load([str(tmp_path)])
    assert not run.ranks[0].windows
    assert [r.path.endswith("copy.json") for r in run.rejected] == [True]


def test_steps_that_recur_are_windows(tmp_path):
    """Else step 5 would last from its begin in one file to its end in the other."""

    def recorded(rank, hours):
        mark = event(0, name="ProfilerStep#5", cat="user_annotation") | {"ts": 1000 + 3_600_000_000 * hours}
        return document([mark, event(1) | {"ts": mark["ts"] + 1}], rank=rank)

    for rank in (0, 1):
        put(tmp_path / f"of{rank}.json", recorded(rank, 1))
    put(tmp_path / "again.json", recorded(1, 0))
    run = load([str(tmp_path)])
    assert run.record(1).window_names == ("again.json", "of1.json")
    assert not run.record(0).window_names
