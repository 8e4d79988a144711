"""Text for terminals: what a terminal obeys is replaced or shown by its number, all else stays."""

import pytest

from tracekit.text import plain


@pytest.mark.parametrize("obeyed", ["\x1b", "\x9b", "\n", "\u202e", "\u2028", "\ud800", "\x00"])
def test_obeyed_characters_are_replaced(obeyed):
    assert plain(f"a{obeyed}b") == "a\ufffdb"
    assert plain(f"a{obeyed}b", "?") == "a?b"
    assert plain(f"a{obeyed}b", None) == f"a\\x{ord(obeyed):02x}b"


def test_letters_and_blanks_of_any_script_stay():
    text = "Größe 大\u3000小 a\u00a0b ☃"
    assert plain(text) == text
