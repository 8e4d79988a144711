"""Fragments of the changelog are what `make changelog` can put together, each a few sentences for users."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT

FRAGMENTS = sorted((ROOT / "changelog.d").glob("*.md"))


def put_together(folder):
    """How towncrier ends on the fragments of a folder."""
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next"]
    return subprocess.run(
        [*command, "--config", str(folder / "pyproject.toml"), "--dir", str(folder)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_fragments_make_a_changelog():
    done = put_together(ROOT)
    assert done.returncode == 0, done.stderr
    for fragment in FRAGMENTS:
        assert fragment.read_text(encoding="utf-8").splitlines()[0] in done.stdout


@pytest.mark.parametrize("name", ["settings.md", "+settings.news.md"])
def test_a_fragment_of_another_name_is_refused(tmp_path, name):
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / name).write_text("A sentence.")
    done = put_together(tmp_path)
    assert done.returncode == 1
    assert f"Invalid news fragment name: {name}" in done.stderr + done.stdout


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda path: Path(path).name)
def test_a_fragment_is_sentences_without_a_bullet(fragment):
    text = fragment.read_text(encoding="utf-8")
    assert re.fullmatch(r"[A-Z`](.|\n)*\.\n", text)
    assert max(map(len, text.splitlines())) <= 140


def test_fragments_name_no_issue():
    """A fragment without a plus is of the issue with its name, and the project's issues are not public."""
    assert [f.name for f in FRAGMENTS if not f.name.startswith("+")] == []
