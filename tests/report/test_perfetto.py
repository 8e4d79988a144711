"""The trace of slowrank, read back: it says what the JSON says, and its arrows end at the suspect."""

from dataclasses import replace

import pytest

from tests.slowrank.jobs import grid, job
from tracekit.analysis.slowrank.analyse import illustrated
from tracekit.report.perfetto import slowrank_trace
from tracekit.report.slowrank_json import slowrank_document

protos = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="needs the extra perfetto"
)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return illustrated(job(tmp_path_factory.mktemp("job"), grid(tp=2, dp=4), slow={5: 1.4}))


def read(data):
    trace = protos.Trace()
    trace.ParseFromString(data)
    tracks = {
        p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")
    }
    events = [(p.timestamp, p.track_event) for p in trace.packet if p.HasField("track_event")]
    return tracks, events


def told(event):
    return {a.name: getattr(a, a.WhichOneof("value")) for a in event.debug_annotations}


def test_trace_agrees_with_the_json(found):
    _, events = read(slowrank_trace(*found))
    document = slowrank_document(found[0])
    finding = told(events[0][1])
    assert (finding["verdict"], finding["cause"]) == (document["verdict"], document["cause"])
    assert finding["step_ms"] == pytest.approx(document["what_if"]["step_ms"], rel=1e-4)
    suspects = [told(e) for _, e in events if "lost_ms_per_step" in told(e)]
    assert [s["rank"] for s in suspects] == [s["rank"] for s in document["suspects"]] == [5]
    told_ms = document["suspects"][0]["lost_ms_per_step"]
    assert suspects[0]["lost_ms_per_step"] == pytest.approx(told_ms, rel=1e-4)


def test_rows_are_those_of_the_page(found):
    tracks, events = read(slowrank_trace(*found))
    shown = found[1].timeline
    ranks = [t.name for t in tracks.values() if t.name.startswith("rank ")]
    assert ranks == [f"rank {r} ({'suspect' if r == 5 else 'peer'})" for r in shown.ranks]
    kinds = {row.kind for row in shown.rows}
    slices = [e for _, e in events if e.name in kinds]
    assert len(slices) == sum(len(row.begin) for row in shown.rows)
    assert all(e.track_uuid in tracks for _, e in events)


def test_arrows_go_from_victims_to_the_suspect(found):
    tracks, events = read(slowrank_trace(*found))
    begun = {f: (at, e) for at, e in events for f in e.flow_ids}
    ended = {f: (at, e) for at, e in events for f in e.terminating_flow_ids}
    assert begun
    assert begun.keys() == ended.keys()
    for flow, (at, event) in ended.items():
        assert tracks[event.track_uuid].name == "waited for: rank 5"
        assert begun[flow][0] < at
        assert "suspect" not in tracks[tracks[begun[flow][1].track_uuid].parent_uuid].name


def test_unlinked_clocks_have_no_arrows(found):
    finding, picture = found
    apart = replace(picture, timeline=replace(picture.timeline, clocks_linked=False))
    _, events = read(slowrank_trace(finding, apart))
    assert not any(e.flow_ids or e.terminating_flow_ids for _, e in events)
    assert any("not linked" in str(told(e).get("clocks")) for _, e in events)


def test_slices_of_a_track_open_and_close(found):
    _, events = read(slowrank_trace(*found))
    depth = dict.fromkeys((e.track_uuid for _, e in events), 0)
    for _, event in events:
        depth[event.track_uuid] += {1: 1, 2: -1, 3: 0}[event.type]
        assert depth[event.track_uuid] in {0, 1}
    assert set(depth.values()) == {0}


def test_same_finding_gives_same_bytes(found):
    assert slowrank_trace(*found) == slowrank_trace(*found)
    assert slowrank_trace(found[0], replace(found[1], timeline=None))
