"""Text from files made harmless for a terminal."""

import unicodedata

_OBEYED = ("Zl", "Zp")
"""Unicode categories beside the C ones (control, format, surrogate, unassigned) that a terminal may act on."""


def plain(text: str, mark: str | None = "\ufffd") -> str:
    r"""Return `text` with every character that a terminal may obey replaced by `mark`.

    With `mark` None such a character is shown by its number in hexadecimal, as in `\x1b`.
    """
    return "".join(_shown(c, mark) if _obeyed(c) else c for c in text)


def _obeyed(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] == "C" or category in _OBEYED


def _shown(character: str, mark: str | None) -> str:
    return f"\\x{ord(character):02x}" if mark is None else mark
