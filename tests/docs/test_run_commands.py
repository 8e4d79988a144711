"""Each `reftrain run` of the pages is taken as written: configuration, mesh and faults are checked, nothing trains."""

import re

import pytest

from tests.docs.shown import PAGES, printed

BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"\s{3,}\S.*|\s+#.*")
NEEDS_FILES = re.compile(r"\.toml|--data|--resume|--recipe|[A-Z]{3,}|\$|…|\[|data\.files")


def commands():
    """The `reftrain run` commands that name no file of the reader's, by page."""
    for page in PAGES:
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in re.sub(r"\\\n\s*", "", block).splitlines():
                command = COMMENT.sub("", line.removeprefix("$ "))
                if command.startswith("reftrain run ") and not NEEDS_FILES.search(command):
                    yield page.name, command


@pytest.mark.parametrize(("page", "command"), sorted(set(commands())))
def test_a_run_of_a_page_is_taken(page, command):
    del page
    printed(f"{command} --dry-run")


def test_the_pages_have_runs():
    assert {page for page, _ in commands()} >= {"spmd.md", "experts.md", "offload.md", "multimodal.md"}
