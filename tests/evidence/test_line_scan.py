"""The quick search finds every line, wherever blocks and pieces end, in constant memory."""

import random
import tracemalloc

import pytest

from tracekit.evidence import line_scan
from tracekit.evidence.line_scan import Scan, scan_lines, strip_colours
from tracekit.files.source import Source

MARK = "NCCL WARN"


def scanned(path, data):
    path.write_bytes(data)
    return [
        line.text for line in scan_lines(Source(str(path), str(path), len(data)), (MARK, "Traceback"), Scan())
    ]


@pytest.mark.parametrize("seed", range(4))
def test_no_line_is_lost_between_blocks(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(line_scan, "SCAN_BLOCK", 700)
    monkeypatch.setattr(line_scan, "SCAN_PIECE", 90)
    monkeypatch.setattr(line_scan, "LOOK_AHEAD", 120)
    monkeypatch.setattr(line_scan, "LOOK_BACK", 40)
    rng = random.Random(seed)
    lines = ["x" * rng.randrange(60) + (f" {MARK} {n}" if rng.random() < 0.2 else "") for n in range(300)]
    data = ("\n".join(lines) + "\n").encode()
    assert scanned(tmp_path / "a", data) == [line.encode() for line in lines if MARK in line]


def test_a_file_of_one_endless_line(tmp_path):
    data = b"x" * 5_000_000 + MARK.encode() + b"y" * 5_000_000 + MARK.encode()
    found = scanned(tmp_path / "a", data)
    assert 1 <= len(found) <= 4
    assert all(len(line) < 10_000 for line in found)


def test_memory_does_not_grow_with_the_file(tmp_path):
    data = b"[rank0]: step 5 loss 3.14\n" * 1_500_000
    path = tmp_path / "big"
    path.write_bytes(data)
    tracemalloc.start()
    assert not list(scan_lines(Source(str(path), str(path), len(data)), (MARK,), Scan()))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 6 * line_scan.SCAN_BLOCK < len(data)


def test_colours_and_titles_are_taken_off():
    assert strip_colours(b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\r") == b"red x"
