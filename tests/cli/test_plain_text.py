"""Text for terminals: what a terminal obeys is replaced or shown by its number, all else stays."""

import pytest

from tracekit.text import fitted, plain


@pytest.mark.parametrize("obeyed", ["\x1b", "\x9b", "\n", "\u202e", "\u2028", "\ud800", "\x00"])
def test_obeyed_characters_are_replaced(obeyed):
    assert plain(f"a{obeyed}b") == "a\ufffdb"
    assert plain(f"a{obeyed}b", "?") == "a?b"
    assert plain(f"a{obeyed}b", None) == f"a\\x{ord(obeyed):02x}b"


def test_letters_and_blanks_of_any_script_stay():
    text = "Größe 大\u3000小 a\u00a0b ☃"
    assert plain(text) == text


def test_long_lines_go_on_below_what_they_say():
    told = "  why     rank 5 worked longer than its peers, and others waited\n  next  x\n"
    assert fitted(told, 40) == (
        "  why     rank 5 worked longer than its\n          peers, and others waited\n  next  x\n"
    )
    assert fitted("hang: rank 6 stalled; others wait", 24) == "hang: rank 6 stalled;\n  others wait"
    assert fitted("    rank 6: stalled at all_gather 7", 24) == "    rank 6: stalled at\n      all_gather 7"


def test_short_lines_are_never_touched():
    told = "a  table     of\n\n   12.0 ms   7\n"
    assert fitted(told, 40) == told


def test_paths_and_commands_stay_whole():
    path = "/data/" + "a-b" * 30
    assert path in fitted(f"  rejected  {path}: it is of another job", 40).splitlines()[1]
    command = f"next: numerics compare --parallel {path} --baseline b"
    assert fitted(command, 40) == command
    assert fitted(f"next: look at {path}", 40).count("\n") == 1


def test_numbers_keep_their_units():
    assert fitted("  evidence  own time a step, peers 2902.39 ms", 43).splitlines()[1].strip() == "2902.39 ms"
