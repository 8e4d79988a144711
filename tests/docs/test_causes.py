"""The page of causes says what the tables of the analysis say."""

from tests.docs.causes import PAGE, page
from tracekit.causes import CAUSES, MECHANISMS


def test_page_of_causes_is_that_of_the_tables():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.docs.causes"


def test_mechanisms_have_names_of_their_own():
    assert len(MECHANISMS) == len({entry for cause in CAUSES.values() for entry in cause.mechanisms})
    assert MECHANISMS.keys().isdisjoint(CAUSES)
