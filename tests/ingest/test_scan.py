"""The scanner reads every layout the same, wherever blocks are cut, and never takes text for structure."""

import json

import pytest

from tests.ingest.sample import LAYOUTS, document, event, kernel, noise, ns, scanned
from tests.marks import quick_nth
from tracekit.ingest.kineto import event_array as events_module

TRICKY = [
    event(0, name='},\n  {"ph": "X"'),
    event(1, name='}, {"ph": "f", "traceEvents": ['),
    event(2, name="][}{,,"),
    event(3, args={"External id": 3, "nested": [{"a": 1}, {"ph": "f", "b": [2]}, {"c": {"d": []}}]}),
    event(4, args={"Call stack": 'a"b\\c', "External id": 4}),
    event(5, name="ünï\u2028cødé \U0001f600"),
    event(6, name="", args={}),
]


@pytest.fixture(params=[64, 700, 1 << 22])
def window(request, monkeypatch):
    monkeypatch.setattr(events_module, "WINDOW", request.param)
    monkeypatch.setattr(events_module, "SMALL", min(request.param, 100))
    return request.param


@pytest.mark.quick(10)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", quick_nth(2, [1, 37, 501, 1 << 20]))
def test_any_layout_cut_anywhere(layout, size, window):
    listed = [*noise(), *TRICKY, *noise(), *(event(i) for i in range(7, 30)), kernel(31), *noise()]
    rows, record = scanned(LAYOUTS[layout](document(listed)).encode(), size)
    stored = [e for e in listed if e["ph"] == "X"]
    assert [(r["ts"], r["dur"], r["name"], r["external_id"]) for r in rows] == [
        (ns(str(e["ts"])), 5250, e["name"], e["args"].get("External id")) for e in stored
    ]
    assert rows[-1]["correlation"] == 531
    assert record.phases == {"X": len(stored), "M": 3, "s": 3, "f": 3, "i": 3, "C": 3}
    assert not +record.issues
    assert not record.truncated
    assert record.metadata["distributedInfo"]["world_size"] == 4


def test_metadata_behind_the_events():
    text = json.dumps(
        {"traceEvents": [event(0), event(1)], "x": [{"a": 1}, {"b": 2}], "distributedInfo": {"rank": 3}}
    )
    rows, record = scanned(text.encode(), 50)
    assert len(rows) == 2
    assert record.metadata == {"x": [{"a": 1}, {"b": 2}], "distributedInfo": {"rank": 3}}


def test_the_word_in_strings_and_deeper_is_no_array():
    text = json.dumps({"note": '"traceEvents": [', "x": {"traceEvents": [1]}, "traceEvents": [event(0)]})
    rows, record = scanned(text.encode(), 11)
    assert len(rows) == 1
    assert record.phases == {"X": 1}


def test_bare_array_and_missing_end():
    text = json.dumps([event(i) for i in range(5)])
    assert len(scanned(text.encode())[0]) == 5
    rows, record = scanned(text[:-2].encode())
    assert len(rows) == 4
    assert record.truncated


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.quick(1)
def test_truncated_anywhere_keeps_what_is_whole(layout):
    listed = [event(i) for i in range(8)]
    data = LAYOUTS[layout](document(listed)).encode()
    full = scanned(data)[0]
    for end in range(data.index(b"traceEvents") + 16, len(data), 7):
        rows, record = scanned(data[:end], 100)
        assert rows == full[: len(rows)]
        whole = data[:end].count(b'"dur"') - 1
        assert len(rows) >= whole
        assert record.truncated or len(rows) == len(full)


def test_communication_arguments():
    said = {
        "Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 8, "Out msg nelems": 9,
        "In split size": "[]", "Out split size": "[1]", "Group size": 4, "Process Group Name": "3",
        "Process Group Description": "mesh_tp", "Process Group Ranks": "[0, 1, 2, 3]", "Global rank start": 0,
        "Global rank stride": 1, "Src Rank": 1, "Dst Rank": 2, "Seq": 77, "Comms Id": 18446744073709551615,
    }  # fmt: skip
    for text in (json.dumps(document([event(0), kernel(1, **said)])), json.dumps([kernel(1, **said)])):
        row = scanned(text.encode())[0][-1]
        assert row["comms_id"] == "18446744073709551615"
        expected = list(said.values())[:-1]
        keys = [
            "collective",
            "dtype",
            "in_nelems",
            "out_nelems",
            "in_split",
            "out_split",
            "group_size",
            "pg_name",
        ]
        keys += ["pg_desc", "pg_ranks", "rank_start", "rank_stride", "src_rank", "dst_rank", "seq"]
        assert [row[k] for k in keys] == expected


@pytest.mark.parametrize(
    ("old", "new", "issue", "rows"),
    [
        ('"dur": 5.25', '"dur": NaN', "not_a_number", 6),
        ('"ts": 1010.125', '"ts": Infinity', "missing_timestamp", 5),
        ('"ts": 1010.125', '"ts": null', "missing_timestamp", 5),
        ('"pid": 11', '"pid": "Spans"', "non_integer_value", 6),
        ('"pid": 11', '"pid": 11.5', "non_integer_value", 6),
        ('"pid": 11', '"pid": 9999999999999999999999', "integer_overflow", 6),
        ('"ts": 1010.125', '"ts": 1e30', "integer_overflow", 5),
        ('"pid": 11', '"pid": 1, "pid": 11', "duplicate_key", 6),
        ("op1", 'o"p', "malformed_event", 5),
        ("op1", r"o\qp", "malformed_event", 5),
        ("op1", r"o\ud800p", "bad_utf8", 6),
        ('{"External id": 1}', "[" * 3000 + "]" * 3000, "malformed_event", 5),
        ('{"External id": 1}', '"text"', "malformed_arguments", 6),
        ('"cat": "cpu_op", "name": "op1"', "]", "malformed_event", 5),
    ],
)
@pytest.mark.parametrize("layout", ["one line", "kineto"])
def test_a_bad_event_costs_itself_alone(old, new, issue, rows, layout):
    text = LAYOUTS[layout](document())
    assert old in text
    at = text.index(old, text.index('"ts": 1000.125') + 20)
    kept, record = scanned((text[:at] + new + text[at + len(old) :]).encode())
    assert len(kept) == rows
    assert record.issues[issue] == 1
    assert not record.truncated


def test_bad_utf8_is_replaced():
    kept, record = scanned(
        json.dumps(document()).encode().replace(b"op1", b"o\xff1").replace(b"op2", b"o\xc3")
    )
    assert [k["name"] for k in kept][1:3] == ["o\ufffd1", "o\ufffd"]
    assert record.issues["bad_utf8"] == 2


def test_values_written_as_text_or_float_all_through():
    listed = [event(i, pid="11", tid=12.0, args={"External id": str(i), "stream": "0x0"}) for i in range(50)]
    kept, record = scanned(json.dumps(document(listed)).encode())
    assert [(k["pid"], k["tid"], k["external_id"], k["stream"]) for k in kept] == [
        (11, 12, i, None) for i in range(50)
    ]
    assert +record.issues == {"non_integer_value": 50}


def test_digits_beyond_a_nanosecond_round_half_to_even():
    times = ["1.0005", "1.0015", "-2.0005", "12345678901234.00000000000000049", "1.5e-3", "7E0"]
    listed = ", ".join(f'{{"ph": "X", "name": "a", "ts": {t}, "dur": {t}}}' for t in times)
    text = f'{{"traceEvents": [{listed}]}}'
    assert [k["ts"] for k in scanned(text.encode())[0]] == [ns(t) for t in times]


def test_an_event_too_long_to_hold_is_stepped_over(monkeypatch):
    monkeypatch.setattr(events_module, "MAX_EVENT", 10_000)
    listed = [event(0), event(1), event(2, name="x" * 50_000), event(3), event(4)]
    kept, record = scanned(json.dumps(document(listed)).encode(), 1000)
    assert [k["external_id"] for k in kept] == [0, 1, 3, 4]
    assert record.issues["oversized_event"] == 1


@pytest.mark.parametrize("layout", ["one line", "kineto"])
def test_older_and_display_names_of_arguments(layout):
    """Torch 2.2 counts elements as `size` and names no group; a display lane stands beside the true stream."""
    older = {"Group size": 4, "dtype": "Float", "In msg size": 10, "Out msg size": 40}
    listed = [event(0), kernel(1, **older), kernel(2, stream=3, original_stream=20)]
    kept, record = scanned(LAYOUTS[layout](document(listed)).encode())
    found = [(k["group_size"], k["dtype"], k["in_nelems"], k["out_nelems"], k["stream"]) for k in kept]
    assert found == [(None,) * 5, (4, "Float", 10, 40, 7), (None, None, None, None, 20)]
    assert not +record.issues
