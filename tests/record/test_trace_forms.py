"""What each version of torch writes of a call, and that slowrank reads every one of them on a real pipeline."""

import copy
import gzip
import json

import pytest

from reftrain.config.file import load
from reftrain.config.trace_forms import FORMS, HOST_FORMS, NEWEST, title_of
from reftrain.errors import ConfigError
from reftrain.record.kineto import standard_form
from reftrain.record.spans import SPAN_NAME
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.ingest import load as ingest

SEND = {
    "Collective name": "send", "dtype": "Float", "In msg nelems": 30, "Out msg nelems": 30, "In split size": "[]",
    "Out split size": "[]", "Group size": 3, "Process Group Name": "7", "Process Group Description": "mesh_pp",
    "Process Group Ranks": "[1, 4, 9]", "Rank": 2, "Dst Rank": 9, "Global rank start": 1, "Global rank stride": 0,
    "Seq": 5,
}  # fmt: skip


def exported(monkeypatch, name):
    """(arguments, names of all events) of a send from rank 4, exported in a form."""
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 4)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 10)
    monkeypatch.setattr("reftrain.record.kineto.pg_config", list)
    event = {
        "ph": "X",
        "cat": "user_annotation",
        "name": SPAN_NAME,
        "ts": 1.0,
        "dur": 2.0,
        "pid": 1,
        "tid": 1,
    }
    raw = {"traceEvents": [{**event, "args": {"External id": 3, "Sequence number": 1, **SEND}}]}
    trace = standard_form(raw, "rank4.json.gz", FORMS[name])
    return trace["traceEvents"][0]["args"], [e["name"] for e in trace["traceEvents"]]


@pytest.mark.parametrize(
    ("form", "absent", "title"),
    [
        ("2.13", (), True),
        ("2.12", (), True),
        ("2.5", ("Seq",), True),
        ("2.4", ("Seq", "Rank", "Dst Rank"), True),
        ("2.4-untitled", ("Seq", "Rank", "Dst Rank"), False),
    ],
)
def test_a_message_is_exported_as_its_version_writes_it(monkeypatch, form, absent, title):
    arguments, names = exported(monkeypatch, form)
    assert arguments == {"External id": 3, **{k: v for k, v in SEND.items() if k not in absent}}
    assert names == ["record_param_comms", *(["nccl:send 1->2"] if title else [])]


def test_stock_torch_records_no_call(monkeypatch):
    event = {"ph": "X", "cat": "user_annotation", "ts": 1.0, "dur": 2.0, "pid": 1, "tid": 1, "args": {}}
    own = {"rank": 4, "pg_config": [{"pg_name": "0", "ranks": [0, 4]}]}
    raw = {
        "distributedInfo": own,
        "traceEvents": [event | {"name": n} for n in (SPAN_NAME, "gloo:all_reduce")],
    }
    trace = standard_form(raw, "rank4.json.gz", FORMS["stock"])
    assert [e["name"] for e in trace["traceEvents"]] == ["gloo:all_reduce"]
    assert trace["distributedInfo"] == own


def test_titles_point_from_the_sender():
    assert title_of(SEND, 1) == "nccl:send 1->2"
    assert title_of(SEND | {"Collective name": "recv"}, 1) == "nccl:recv 1<-2"
    assert title_of(SEND | {"Collective name": "allreduce"}, 1) is None


def test_older_and_newer_names_of_arguments():
    assert FORMS["2.2"].shown(SEND) == {
        "dtype": "Float",
        "In msg size": 30,
        "Out msg size": 30,
        "Group size": 3,
    }
    assert FORMS["2.1"].shown(SEND) == {}
    assert (
        FORMS["2.15"].shown(SEND | {"Collective name": "_allgather_base"})["Collective name"]
        == "allGatherSingleImpl"
    )
    assert {"Rank", "Dst Rank", "Process Group Ranks"} & set(FORMS["2.15"].shown(SEND)) == set()
    assert "Rank" not in FORMS["2.5"].shown(SEND, host=False)


def test_a_form_is_chosen_by_name():
    assert load(None, {}).evidence.trace_form == NEWEST
    assert load(None, {"evidence": {"trace_form": "2.4"}}).evidence.trace_form == "2.4"
    with pytest.raises(ConfigError, match=r"2\.4-untitled, 2\.5"):
        load(None, {"evidence": {"trace_form": "2.15"}})  # a trace without kernels


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """Traces of a real pipeline of four stages and two replicas, of which rank 5 is slow."""
    from reftrain.job.demo import demo_config
    from reftrain.job.launcher import launch

    folder = tmp_path_factory.mktemp("pipeline")
    sizes = {"mesh": {"tp": 1, "cp": 1, "pp": 4}, "model": {"layers": 4}, "evidence": {"measure_lag": False}}
    launch(demo_config(folder, 3, ["slow_compute:rank=5,factor=1.5"], sizes), lambda rank: [])
    return [json.loads(gzip.decompress(p.read_bytes())) for p in sorted((folder / "trace").iterdir())]


@pytest.mark.slow
@pytest.mark.parametrize("name", HOST_FORMS)
def test_slowrank_reads_every_form_of_a_real_pipeline(pipeline, tmp_path, name):
    form = FORMS[name]
    for rank, recorded in enumerate(copy.deepcopy(pipeline)):
        kept = [e for e in recorded["traceEvents"] if form.titles or not e["name"].startswith("nccl:")]
        kept = [e for e in kept if form.annotated or e["name"] != "record_param_comms"]
        for event in kept:
            if event["name"] == "record_param_comms":
                event["args"] = form.shown(event["args"])
        recorded["traceEvents"] = kept
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(recorded))
    found = analyse(ingest([str(tmp_path)]))
    named = [s.rank for s in (*found.suspects, *found.candidates)]
    assert (found.verdict, named[0]) in (("slow_rank", 5), ("inconclusive", 5))
    assert found.verdict == "slow_rank" or name in {"2.4-untitled", "stock"}
