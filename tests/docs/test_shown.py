"""What pages show is what programs print, and what they compute."""

import doctest
import re

import pytest

from tests.docs.shown import PAGES, agrees, printed, sessions
from tests.house.source import ROOT

QUICK = {"README.md"}
"""Pages whose commands `make test` carries out; the others are carried out by `make test-all`."""
TUTORIALS = [page for page in PAGES if ">>> " in page.read_text(encoding="utf-8")]


def named(page):
    return page.relative_to(ROOT).as_posix()


def marked(page):
    marks = () if named(page) in QUICK else pytest.mark.slow
    return pytest.param(page, id=named(page), marks=marks)


@pytest.mark.parametrize("page", [marked(page) for page in PAGES if sessions(page)])
def test_commands_print_what_is_shown(page, tmp_path, monkeypatch):
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    monkeypatch.chdir(tmp_path)
    for command, shown in sessions(page):
        told = printed(command)
        assert agrees(shown, told), f"{command}\n{told}"


@pytest.mark.slow
@pytest.mark.parametrize("page", [pytest.param(page, id=named(page)) for page in TUTORIALS])
def test_python_of_tutorials_runs(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert tried
    assert not failed


def test_ellipsis_stands_for_any_lines():
    assert agrees("a\n…\nc\n", "a\nb\nb\nc\n")
    assert agrees("a\n…\nc\n", "a\nc\n")
    assert not agrees("a\n…\nc\n", "a\nb\n")
    assert not agrees("a … c\n", "a b c\n")


def test_guide_shows_every_question():
    shown = {
        command.split()[0:2][-1] for page in PAGES if "guide" in named(page) for command, _ in sessions(page)
    }
    assert {"slowrank", "whatif", "hang", "compare"} <= shown


def test_every_page_stands_in_the_navigation():
    told = set(re.findall(r"([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert told == {
        page.relative_to(ROOT / "docs").as_posix() for page in PAGES if named(page) != "README.md"
    }
