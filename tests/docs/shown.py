"""Commands that a page shows with what they print: read from the page, carried out, and written into it.

A block that begins with `$ tracekit`, `$ numerics` or `$ reftrain` is a session: each command is followed by its output
on stdout, and `…` on a line of its own stands for any lines. `python -m tests.docs.shown PAGE...` writes into pages
what commands print now, where no such line stands.
"""

import io
import os
import re
import shlex
import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.house.source import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```\n(\$ (?:tracekit|numerics|reftrain) (?:.*\n)*?)```$", re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
ANY_LINES = re.compile(r"^…\n", re.MULTILINE)


def sessions(page):
    """The commands of a page, in order, each with the output shown."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [found for block in blocks for found in COMMAND.findall(block)]


def printed(command):
    """What a command prints on stdout, called in this process."""
    program, *arguments = shlex.split(command)
    group = getattr(import_module(f"tracekit_cli.{program}"), program)
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) as out:
        group.main(args=arguments, prog_name=program, standalone_mode=False)
    out.flush()
    return out.buffer.getvalue().decode()


def agrees(shown, told):
    """Whether a command told what is shown, where a line `…` stands for any lines."""
    parts = map(re.escape, ANY_LINES.split(shown))
    return re.fullmatch("(?:.*\n)*?".join(parts), told) is not None


def rewritten(page):
    """The page with what its commands print now; they are called in an empty folder with the samples."""

    def session(found):
        told = printed(found[1])
        return f"$ {found[1]}\n" + (found[2] if ANY_LINES.search(found[2]) else told)

    text = page.read_text(encoding="utf-8")
    return BLOCK.sub(lambda block: "```\n" + COMMAND.sub(session, block[1]) + "```", text)


if __name__ == "__main__":
    for page in [Path(name).resolve() for name in sys.argv[1:]]:
        with TemporaryDirectory() as folder:
            Path(folder, "sample_traces").symlink_to(ROOT / "sample_traces")
            os.chdir(folder)
            page.write_text(rewritten(page), encoding="utf-8")
