"""The pictures of pages that docs/ shows: small, all of them shown, and of what the commands beside them write."""

import re
import struct

import pytest

from tests.docs.screens import FOLDER, MOST_BYTES, PAGES, taken
from tests.docs.shown import PAGES as TEXTS
from tests.report.browser import BROWSER

pytest.importorskip("jinja2", reason="the extra report is not installed")


def shown():
    """(text that stands for it, name) of each picture of all pages."""
    return [
        found
        for page in TEXTS
        for found in re.findall(
            r"!\[([^\]]+)\]\((?:\.\./)?screens/([a-z]+)\.png\)", page.read_text(encoding="utf-8")
        )
    ]


def size(picture):
    """Width and height of a PNG."""
    head = picture.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


def test_every_picture_is_small_and_shown():
    kept = {p.stem: p for p in FOLDER.glob("*")}
    assert set(kept) == set(PAGES) == {name for _, name in shown()}
    assert all(p.stat().st_size < MOST_BYTES for p in kept.values())
    assert all(size(p)[0] == 1000 for p in kept.values())
    assert all(len(told.split()) > 4 for told, _ in shown())


@pytest.mark.slow
@BROWSER
def test_pictures_can_be_taken_anew(tmp_path):
    PAGES["trend"](tmp_path / "page.html")
    taken(tmp_path / "page.html", tmp_path / "trend.png")
    assert size(tmp_path / "trend.png") == size(FOLDER / "trend.png")
