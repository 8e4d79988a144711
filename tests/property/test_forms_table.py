"""docs/forms.md is true: what it says is written can be written, the tests it names exist, and no form is left out."""

import re
from functools import cache

import pytest

from reftrain.config.trace_forms import DEVICE_FORMS, HOST_FORMS
from tests.evidence import other_channels
from tests.evidence.nccl_lines import VERSIONS as NCCL
from tests.evidence.nsys_files import FORMS as NSYS
from tests.evidence.watchdog import LAUNCHERS, VERSIONS
from tests.generator.erasures import ERASURES
from tests.generator.forms import FORMS
from tests.house.source import ROOT
from tests.localise.test_forms import FORMS as DRAWN
from tests.property.taken_away import TAKEN
from tests.shapes.newer_shapes import SHAPES

LINES = [
    line for line in (ROOT / "docs" / "forms.md").read_text(encoding="utf-8").splitlines() if "::" in line
]
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in LINES]
WRITERS = {
    "run": set(HOST_FORMS),
    "simulate": set(DEVICE_FORMS),
    "generator": set(FORMS),
    "erasure": {*ERASURES, "two_captures"},
    "localise": set(DRAWN),
    "shapes": set(SHAPES),
    "watchdog": {*VERSIONS, *LAUNCHERS},
    "channels": {"ras_json", "ras_text", "py_spy", "faulthandler", "pystack", "gdb"}
    & set(vars(other_channels)),
    "inspector": {"verbose", "short"},
    "nsys": set(NSYS),
    "nccl": set(NCCL),
    "reach": {name.replace("`", "") for name in TAKEN},
}
"""By program, what it can write."""
ALL = (
    "run",
    "simulate",
    "generator",
    "erasure",
    "localise",
    "watchdog",
    "channels",
    "inspector",
    "nsys",
    "nccl",
)
"""Programs all of whose forms stand in the table."""


def told(cell: str) -> list[str]:
    """What stands between backquotes."""
    return re.findall(r"`([^`]+)`", cell)


@cache
def functions(path: str) -> set[str]:
    """Names of the tests in a module below tests/."""
    text = (ROOT / "tests" / path).read_text(encoding="utf-8")
    return set(re.findall(r"^def (test_\w+)", text, re.MULTILINE))


@pytest.mark.parametrize(("form", "writers", "readers"), ROWS, ids=[row[0] for row in ROWS])
def test_a_row_is_true(form, writers, readers):
    assert told(writers)
    assert told(readers)
    for writer in told(writers):
        program, _, name = writer.partition(" ")
        assert name in WRITERS[program], form
    for reader in told(readers):
        path, _, name = reader.partition("::")
        assert name in functions(path), form


@pytest.mark.parametrize("program", ALL)
def test_every_form_has_a_row(program):
    written = {w.partition(" ")[2] for _, ws, _ in ROWS for w in told(ws) if w.startswith(f"{program} ")}
    assert WRITERS[program] == written
