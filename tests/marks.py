"""Which of many like cases run each time: the others are marked `slow` and run in `make test-all`."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def _marked(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)


def quick_if(quick: Callable[[Any], bool], cases: Iterable[Any]) -> list[Any]:
    """Cases for `parametrize`, those that `quick` does not choose marked slow; a tuple is several arguments."""
    return [case if quick(case) else _marked(case) for case in cases]


def quick_first(count: int, cases: Iterable[Any]) -> list[Any]:
    """Cases for `parametrize`, all after the first `count` marked slow."""
    return [case if place < count else _marked(case) for place, case in enumerate(cases)]


def quick_but(slow: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Cases for `parametrize`, those among `slow` marked slow; raises ValueError where one is not among the cases."""
    cases, slow = list(cases), list(slow)
    if strange := [case for case in slow if case not in cases]:
        raise ValueError(f"no such cases: {strange}")
    return quick_if(lambda case: case not in slow, cases)


def quick_nth(step: int, cases: Iterable[Any]) -> list[Any]:
    """Cases for `parametrize`, all but the first of every `step` marked slow; a tuple is one argument."""
    return [
        case if place % step == 0 else pytest.param(case, marks=pytest.mark.slow)
        for place, case in enumerate(cases)
    ]
