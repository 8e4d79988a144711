"""Text from files made harmless for a terminal, and lines broken to its width."""

import re
import textwrap
import unicodedata
from collections.abc import Iterable
from typing import Final

_OBEYED = ("Zl", "Zp")
"""Unicode categories beside the C ones (control, format, surrogate, unassigned) that a terminal may act on."""

_LABEL: Final = re.compile(r" *\S+(?: \S+)* {2,}|")
"""The label before the text of a line, as `  cause     `; the text continues below itself."""
_BEFORE_UNIT: Final = re.compile(r"(?<=\d) (?=(?:ms|s|%|[kMGT]i?B)\b)")
_GLUE: Final = "\0"
"""Replaces the blank between a number and its unit while lines are broken; no text for a terminal holds it."""
_COMMAND: Final = re.compile(r"next: (?:tracekit|numerics|reftrain) ")
"""How a line begins that holds a command to be copied: it is never broken."""


def plain(text: str, mark: str | None = "\ufffd") -> str:
    r"""Return `text` with every character that a terminal may obey replaced by `mark`.

    With `mark` None such a character is shown by its number in hexadecimal, as in `\x1b`.
    """
    return "".join(_shown(c, mark) if _obeyed(c) else c for c in text)


def ranges(numbers: Iterable[int], most: int | None = None) -> str:
    """Return numbers as text, as in "0-5, 8", cut after `most` runs; an empty text without numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs[:most]]
    return ", ".join(shown) + (", …" if most is not None and len(runs) > most else "")


def _obeyed(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] == "C" or category in _OBEYED


def _shown(character: str, mark: str | None) -> str:
    return f"\\x{ord(character):02x}" if mark is None else mark


def fitted(text: str, columns: int) -> str:
    """Return `text` with lines broken between words so that they fit, and go on below what they say.

    A word that is longer than the room stays whole, so that paths can be copied.
    """
    return "".join(_broken(line, columns) for line in text.splitlines(keepends=True))


def _broken(line: str, columns: int) -> str:
    """Return one line with its end, broken where it is too long."""
    if len(line.rstrip("\n")) <= columns or _COMMAND.match(line):
        return line
    label = _LABEL.match(line)
    indent = len(label[0]) if label else 0
    if not 0 < indent <= columns // 2:
        indent = len(line) - len(line.lstrip(" ")) + 2
    parts = textwrap.wrap(
        _BEFORE_UNIT.sub(_GLUE, line), columns, subsequent_indent=" " * indent, break_long_words=False,
        break_on_hyphens=False, replace_whitespace=False,
    )  # fmt: skip
    return "\n".join(parts).replace(_GLUE, " ") + "\n" * line.endswith("\n")
