"""Hostile and damaged dumps: refused with their path, nothing runs, memory and time stay bounded."""

import json
import os
import pickle
import random
import struct
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hang.simulate import make
from tests.marks import quick_first, quick_nth
from tests.ranks.patience import patience
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps import unpickle
from tracekit.dumps.load import LIMITS, load_dumps
from tracekit.dumps.rank_dump import RankDump
from tracekit.dumps.transfer import DumpReader
from tracekit.dumps.unpickle import salvage
from tracekit.errors import InputError
from tracekit.plain_pickle import RefusedError
from tracekit.workers import do_all

MARK = "tracekit_was_run"


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def opcodes(body):
    return b"\x80\x04" + body + b"."


BOMBS = {
    "memo": opcodes(b"]r\xff\xff\xff\x7f"),
    "sets": opcodes(b"(" + b"\x8f" * 20_000_000 + b"l"),
    "hash": opcodes(b"}" + b"K\x01K\x01\x86" + b"2\x86" * 60 + b"K\x01s"),
    "deep_hash": opcodes(b"}" + b"K\x01" + b"\x85" * 3_000_000 + b"K\x01s"),
    "bytearray": opcodes(b"\x96" + struct.pack("<Q", 1 << 40)),
    "unicode": opcodes(b"\x8d" + struct.pack("<Q", 1 << 40)),
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 50) + b"}.",
}


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_with_a_call_is_refused_unrun(tmp_path, protocol):
    target = tmp_path / MARK
    dump = {"version": "2.9", "entries": [], "pg_config": Evil(str(target))}
    case = make(0, "host_stall")
    case.write(tmp_path / "d")
    bad = tmp_path / "d" / "nccl_trace_rank_777"
    bad.write_bytes(pickle.dumps(dump, protocol=protocol))
    dumps = load_dumps([str(tmp_path / "d")])
    assert not target.exists()
    (rejected,) = dumps.rejected
    assert rejected.path == str(bad)
    assert "refused" in rejected.reason
    assert "mkdir" in rejected.reason
    assert len(dumps.dumps) == len(case.dumps)


@pytest.mark.parametrize("opcode", [b"cos\nsystem\n", b"(ios\nsystem\n", b"\x82\x01", b"Pid\n", b"K\x01Q"])
def test_every_door_to_code_is_shut(opcode):
    with pytest.raises(InputError):
        unpickle.loads(b"\x80\x02" + opcode + b".")


@pytest.mark.parametrize("name", quick_nth(3, sorted(BOMBS)))
@pytest.mark.quick(1)
def test_bombs_are_refused_and_the_rest_is_read(tmp_path, name):
    bomb, good = tmp_path / "bomb_1", tmp_path / "good_2"
    bomb.write_bytes(BOMBS[name])
    good.write_bytes(pickle.dumps(next(iter(make(0, None).dumps.values()))))
    begin = time.monotonic()
    limits = replace(LIMITS, seconds=patience(2), memory=1 << 28)
    found = dict(do_all([str(bomb), str(good)], DumpReader, 1, limits))
    assert time.monotonic() - begin < patience(30)
    assert isinstance(found[0], Exception)
    assert isinstance(found[1].dump, RankDump)


def cut(tmp_path, keep, protocol=2, fault="host_stall"):
    """A victim's dump cut after a share of its bytes: (case, victim, path)."""
    case = make(0, fault, "tp", {"tp": 2, "cp": 1, "pp": 1, "dp": 4})
    victim = next(r for r in case.dumps if r != case.culprit)
    folder = case.write(tmp_path)
    path = folder / f"nccl_trace_rank_{victim}"
    data = pickle.dumps(case.dumps[victim], protocol=protocol)
    path.write_bytes(data[: int(len(data) * keep)])
    return case, victim, path


def test_a_file_cut_before_useful_content_is_rejected(tmp_path):
    _, victim, path = cut(tmp_path, 0.0005)
    dumps = load_dumps([str(path.parent)])
    assert victim not in dumps.dumps
    assert victim in dumps.world
    assert [(r.path, r.rank) for r in dumps.rejected] == [(str(path), victim)]


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("keep", [0.3, 0.8, 0.999])
def test_a_file_cut_later_is_kept_to_the_cut(tmp_path, protocol, keep):
    case, victim, path = cut(tmp_path, keep, protocol)
    dumps = load_dumps([str(path.parent)])
    assert not dumps.rejected
    (row,) = dumps.quality
    assert (row.kind, row.path, row.kept_events) == ("truncated_file", str(path), dumps.dumps[victim].entries)
    whole = len(case.dumps[victim]["entries"])
    assert keep * whole * 0.8 <= dumps.dumps[victim].entries <= whole
    assert dumps.dumps[victim].malformed == 0
    names = {g.name: g.ranks for g in dumps.dumps[victim].groups}
    assert len(names) == len(case.dumps[victim]["pg_config"])


@pytest.mark.parametrize("last", ["entries", "pg_config"])
@pytest.mark.parametrize("keep", [0.3, 0.8, 0.999])
def test_cut_json_is_kept_to_the_cut(tmp_path, keep, last):
    case, victim, path = cut(tmp_path, 1.0)
    dump = case.dumps[victim]
    ordered = {k: dump[k] for k in sorted(dump, key=lambda k: (k == last, k))}
    text = json.dumps(ordered).encode()
    path.write_bytes(text[: int(len(text) * keep)])
    dumps = load_dumps([str(path.parent)])
    assert not dumps.rejected
    (row,) = [q for q in dumps.quality if q.kind == "truncated_file"]
    assert (row.path, row.kept_events) == (str(path), dumps.dumps[victim].entries)
    whole = len(dump["entries"])
    if last == "entries":
        assert keep * whole * 0.8 <= dumps.dumps[victim].entries < whole
        assert len(dumps.dumps[victim].groups) == len(dump["pg_config"])
    assert dumps.dumps[victim].malformed == 0
    finding = analyse(dumps)
    assert {c.rank for c in finding.culprits} == {case.culprit}, finding.reason


@pytest.mark.parametrize(
    "text",
    [
        b'{"entries": [1}',  # brackets that do not match
        b'{"entries": [{"a": tru}, {"b": 1}',  # damaged before the cut
        b'[{"entries": []}',  # no mapping
        b'{"a": 1} {"b": [',  # ended before
        b"{" + b'"a":[' * 5000,
        b'{"entries',
    ],
)
def test_json_that_is_damaged_and_not_cut_is_refused(tmp_path, text):
    (tmp_path / "dump_1").write_bytes(text)
    with pytest.raises(InputError, match="damaged or cut off"):
        load_dumps([str(tmp_path)])


@pytest.mark.quick(3)
@pytest.mark.parametrize("form", ["pickle", "json"])
@pytest.mark.parametrize("seed", quick_first(3, range(10)))
def test_files_cut_off_anywhere_blame_no_innocent(tmp_path, seed, form):
    rng = random.Random(seed)
    fault = rng.choice(["host_stall", "device_unseen", "wrong_op", "crash", "skip"])
    case = make(seed, fault)
    folder = case.write(tmp_path)
    if form == "json":
        for rank, dump in case.dumps.items():
            (folder / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump))
    for path in rng.sample(sorted(folder.iterdir()), 3):
        data = path.read_bytes()
        path.write_bytes(data[: rng.randrange(10, len(data))])
    finding = analyse(load_dumps([str(folder)]))
    assert {c.rank for c in finding.culprits} <= {case.culprit}, finding.reason


def test_a_cut_file_with_a_call_is_refused_unrun(tmp_path):
    target = tmp_path / MARK
    dump = {
        "version": "2.9",
        "entries": [],
        "pg_status": {},
        "pg_config": Evil(str(target)),
        "rest": "x" * 99,
    }
    (tmp_path / "dump_1").write_bytes(pickle.dumps(dump, protocol=2)[:-20])
    with pytest.raises(InputError, match=r"pickle refused.*mkdir"):
        load_dumps([str(tmp_path)])
    assert not target.exists()


@pytest.mark.parametrize("opcode", [b"cos\nsystem\n", b"(ios\nsystem\n", b"Pid\n", b"K\x01Q", b"\x82\x01"])
def test_the_second_reader_has_no_doors_either(opcode):
    body = b"\x80\x02}(X\x01\x00\x00\x00a" + opcode
    with suppress(RefusedError):
        assert salvage(body + b"X\x09\x00") is None


def test_a_folder_without_dumps_says_so(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"nothing")
    with pytest.raises(InputError, match="no usable flight-recorder dump"):
        load_dumps([str(tmp_path)])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_random_bytes_never_raise_anything_else(data):
    for body in (data, b"\x80\x02" + data, b"{" + data):
        with suppress(InputError, MemoryError):  # memory is bounded by the worker
            unpickle.loads(body)


def mutate(data, rng):
    body = bytearray(data)
    for _ in range(rng.randrange(1, 8)):
        at = rng.randrange(len(body))
        kind = rng.randrange(4)
        if kind == 0:
            body[at] = rng.randrange(256)
        elif kind == 1:
            del body[at : at + rng.randrange(1, 40)]
        elif kind == 2:
            body[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
        else:
            body[at : at + 8] = body[rng.randrange(len(body)) :][:8]
        if not body:
            return b""
    return bytes(body)


@pytest.mark.slow
def test_mutated_dumps_never_raise(tmp_path, judge):
    rng = random.Random(5)
    case = make(4, "host_stall", "tp", {"tp": 2, "cp": 1, "pp": 2, "dp": 2}, ring=40)
    originals = {r: pickle.dumps(d, protocol=2) for r, d in case.dumps.items()}
    for turn in range(25):
        folder = tmp_path / f"m{turn}"
        folder.mkdir()
        for rank, data in originals.items():
            (folder / f"dump_{rank}").write_bytes(mutate(data, rng) if rng.random() < 0.6 else data)
        try:
            dumps = load_dumps([str(folder)])
        except InputError:
            continue
        from tracekit.report.hang import hang_document, hang_text

        finding = analyse(dumps)
        hang_text(finding, verbose=True)
        hang_document(finding)


@pytest.mark.parametrize("seq", [1.5, float("nan"), "abc", 2**62, -1, [1], None])
def test_a_number_that_is_none_is_one_malformed_entry(tmp_path, seq):
    dump = next(iter(make(0, "host_stall").dumps.values()))
    place = next(i for i, e in enumerate(dump["entries"]) if not e["is_p2p"])
    dump["entries"][place]["collective_seq_id"] = seq
    (tmp_path / "dump_0").write_bytes(pickle.dumps(dump))
    begin = time.monotonic()
    dumps = load_dumps([str(tmp_path)])
    assert time.monotonic() - begin < patience(20)
    (read,) = dumps.dumps.values()
    assert read.malformed == 1
