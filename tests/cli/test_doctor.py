"""`tracekit doctor`: what is installed, what is missing, and what must be fixed."""

import pytest

from tracekit import installation
from tracekit.installation import Package, by_extra


def test_sound_installation_needs_nothing(tracekit):
    done = tracekit("doctor")
    assert done.code == 0
    assert done.out.startswith("version     tracekit4d ")
    assert not [line for line in done.out.splitlines() if line.startswith("!")]


def test_missing_package_must_be_mended(tracekit, monkeypatch):
    installed = installation._installed
    monkeypatch.setattr(
        installation, "_installed", lambda name: None if name == "pyarrow" else installed(name)
    )
    done = tracekit("doctor")
    assert done.code == 3
    assert "! needed" in done.out
    assert "pyarrow MISSING" in done.out


def test_missing_extra_names_its_remedy(tracekit, monkeypatch):
    installed = installation._installed
    monkeypatch.setattr(
        installation, "_installed", lambda name: None if name == "jinja2" else installed(name)
    )
    done = tracekit("doctor")
    assert done.code == 0
    assert "jinja2 MISSING; for --html: pip install 'tracekit4d[report]'" in done.out


def test_folder_without_room_must_be_mended(tracekit, monkeypatch):
    monkeypatch.setattr(installation, "unwritable", lambda _: "No space left on device")
    done = tracekit("doctor")
    assert done.code == 3
    assert "No space left on device; free space there, or set TMPDIR" in done.out


@pytest.mark.parametrize(
    ("installed", "least", "serves"),
    [
        ("2.10", "2.9", True),
        ("2.9.1", "2.10", False),
        ("1.0rc1", "1", True),
        ("3", "3.0", True),
        (None, "1", False),
    ],
)
def test_versions_are_compared_by_numbers(installed, least, serves):
    assert Package("x", least, installed, "").serves is serves


def test_every_requirement_is_read():
    found = by_extra(installation.packages())
    assert {"click", "pyarrow", "numpy"} <= {p.name for p in found[""]}
    assert {p.name for p in found["report"]} == {"jinja2"}
    assert [p.name for p in found["ray"]] == ["ray"]  # asked for as ray[client]
    assert all(p.least != "0" for listed in found.values() for p in listed)
