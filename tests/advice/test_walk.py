"""Each message's advice is followed: the next run gets further."""

import re

import pytest

from tests.advice import (
    cases,
    of_commands,
    of_config,
    of_data,
    of_elastic,
    of_engine,
    of_evidence,
    of_floor,
    of_frames,
    of_hosts,
    of_jobs,
    of_layouts,
    of_numerics,
    of_outputs,
    of_recipe,
    of_runs,
    of_serving,
    of_settings,
)
from tests.advice.messages import advised
from tests.advice.register import CASES
from tests.advice.unwalked import UNWALKED
from tests.marks import quick_nth

ENTERED_BY = (
    cases,
    of_commands,
    of_config,
    of_data,
    of_elastic,
    of_engine,
    of_evidence,
    of_floor,
    of_frames,
    of_hosts,
    of_jobs,
    of_layouts,
    of_numerics,
    of_outputs,
    of_recipe,
    of_runs,
    of_serving,
    of_settings,
)


def pattern(text):
    """What a message looks like once its places are filled in."""
    return re.compile(".*".join(re.escape(part) for part in text.split("{}")), re.DOTALL)


@pytest.mark.quick(30)
@pytest.mark.parametrize("text", quick_nth(5, CASES), ids=lambda text: text[:60])
def test_advice_gets_further(text, tmp_path, monkeypatch):
    """The refused call raises this message; what it advises is then done, and raises it no more."""
    refused, advised_call = CASES[text](tmp_path, monkeypatch)
    told = pattern(text)
    with pytest.raises(Exception) as first:
        refused()
    said = str(first.value)
    reason = said.rpartition(": cannot be used: ")[2]  # that of a file, after its name
    assert told.fullmatch(said) or told.fullmatch(reason), f"{said} is not {text}"
    advised_call()


def test_every_message_with_advice_has_a_case():
    texts = set(advised().values())
    assert sorted(texts - CASES.keys() - UNWALKED) == []
    assert sorted((CASES.keys() | UNWALKED) - texts) == []
    assert not CASES.keys() & UNWALKED
