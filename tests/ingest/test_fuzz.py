"""Damaged traces never raise anything but InputError, and what is kept was really there."""

import json
import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ingest.sample import LAYOUTS, document, event, kernel, noise, ns, scanned
from tracekit.errors import InputError
from tracekit.ingest import load
from tracekit.ingest.kineto import event_array as events_module

TOKENS = [
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\n",
    b"\0",
    b"\xff",
    b"NaN",
    b"1e999",
    b"-",
    b"9" * 25,
]
TOKENS += [
    b'"ph": "X"',
    b'"ts": 5',
    b'"traceEvents": [',
    b"},\n  {",
    b"}, {",
    b"null",
    b"\\ud800",
    b"[" * 1200,
]
LISTED = [
    *noise(),
    *(event(i) for i in range(5)),
    kernel(5),
    event(6, args={"x": [{"a": 1}, {"b": 2}]}),
    *noise(),
]
TRACES = [make(document(LISTED, note="}, {")).encode() for make in LAYOUTS.values()]
TRACES.append(json.dumps(LISTED).encode())

edits = st.lists(
    st.tuples(
        st.sampled_from(["cut", "drop", "copy", "insert", "flip"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(1, 200),
        st.sampled_from(TOKENS),
    ),
    min_size=1,
    max_size=5,
)


def damaged(data: bytes, steps: list[tuple[str, float, int, bytes]]) -> bytes:
    for kind, where, length, token in steps:
        at = int(where * len(data))
        if kind == "cut":
            data = data[: max(at, len(data) // 3)]
        elif kind == "drop":
            data = data[:at] + data[at + length :]
        elif kind == "copy":
            data = data[:at] + data[at : at + length] + data[at:]
        elif kind == "insert":
            data = data[:at] + token + data[at:]
        elif data:
            data = data[:at] + bytes([data[at] ^ (1 << length % 8)]) + data[at + 1 :]
    return data


def lenient_oracle(data: bytes) -> set[tuple[int, str]]:
    """(ts, name) of every object anywhere in the text that could be a stored event."""
    text = data.decode("utf-8", "surrogateescape")
    decoder = json.JSONDecoder(strict=False, parse_float=Decimal, parse_int=Decimal)
    found = set()
    for match in re.finditer(r"\{", text):
        try:
            value: Any = decoder.raw_decode(text, match.start())[0]
        except (ValueError, RecursionError, ArithmeticError):
            continue
        if value.get("ph") in ("X", "B", "E"):
            try:
                start = ns(value.get("ts"))
            except (TypeError, ArithmeticError, ValueError, OverflowError):
                continue
            name = value.get("name")
            name = (
                name.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
                if isinstance(name, str)
                else ""
            )
            found.add((start, plain(name)))
    return found


def plain(name: Any) -> str:
    """The ASCII of a name: bytes that are no UTF-8 may be replaced by one mark or by several."""
    return "".join(c for c in name if c.isascii()) if isinstance(name, str) else ""


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(TRACES), edits, st.sampled_from([13, 300, 1 << 20]), st.sampled_from([80, 600, 1 << 22])
)
@pytest.mark.slow
def test_damage_yields_a_subset_of_what_is_there(data, steps, size, window):
    data = damaged(data, steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events_module, "WINDOW", window)
        patch.setattr(events_module, "SMALL", min(window, 100))
        rows, record = scanned(data, size)
    assert {(r["ts"], plain(r["name"])) for r in rows} <= lenient_oracle(data)
    assert record.failed is None or not rows


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(TRACES), edits, st.sampled_from(["rank0.json", "x.json.gz", "rank_1.json.zst"]))
def test_load_answers_or_refuses(tmp_path_factory, data, steps, name):
    path = tmp_path_factory.mktemp("fuzz") / name
    path.write_bytes(damaged(data, steps))
    try:
        run = load([str(path)])
    except InputError as error:
        said = str(error)
    else:
        said = str(path)
        assert run.ranks[0].events == run.events(run.ranks[0].rank).num_rows > 0
    assert str(path) in said
    assert "\n" not in said


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_scan_without_a_traceback(data):
    scanned(b'{"traceEvents": [' + data)
    scanned(data)


@pytest.mark.parametrize("exponent", [b"e9999999999999999999999999", b"e-9999999999999999999999999"])
def test_an_exponent_beyond_all_bounds(tmp_path, exponent):
    data = json.dumps(document([*(event(i) for i in range(5)), event(6, ts=123456)])).encode()
    path = tmp_path / "rank0.json"
    path.write_bytes(data.replace(b"123456", b"1" + exponent))
    assert load([str(path)]).ranks[0].events == 5
