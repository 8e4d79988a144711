"""The register of cases: for each message with advice a refused call, and the call that its advice makes of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.advice.messages import advised

Call = Callable[[], object]
Case = Callable[[Path, pytest.MonkeyPatch], tuple[Call, Call]]
CASES: dict[str, Case] = {}
MESSAGES = frozenset(advised().values())


def message(part: str) -> str:
    """The one message that is `part`, or holds it."""
    found = {part} & MESSAGES or {text for text in MESSAGES if part in text}
    if len(found) != 1:
        raise ValueError(f"{part!r} is in {len(found)} messages: {found}")
    return found.pop()


def case(part: str) -> Callable[[Case], Case]:
    """Enter a case for the one message that holds `part`."""
    text = message(part)
    if text in CASES:
        raise ValueError(f"two cases for {text!r}")

    def enter(function: Case) -> Case:
        CASES[text] = function
        return function

    return enter


def calls(part: str, function: Callable[..., object], wrong: object, right: object) -> None:
    """Enter a case of one function that takes one argument."""
    case(part)(lambda _folder, _patch: (lambda: function(wrong), lambda: function(right)))
