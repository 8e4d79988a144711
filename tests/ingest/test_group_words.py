"""Names of groups that are not text, and members that no job has, go no further than the reader."""

from math import nan

import pytest

from tracekit.ingest.kineto.group_membership import listed_groups
from tracekit.manifest import _members


@pytest.mark.parametrize("word", [nan, [], {}, True, 1.5, None])
def test_a_description_that_is_no_text_is_none(word):
    (group,) = listed_groups(
        {"pg_config": [{"pg_name": word, "pg_desc": word, "ranks": [0, 1]}], "world_size": 2}
    )
    assert (group.name, group.desc) == (None, None)


def test_a_numbered_group_keeps_its_number():
    (group,) = listed_groups({"pg_config": [{"pg_id": 7, "ranks": [0, 1]}], "world_size": 2})
    assert group.name == "7"


@pytest.mark.parametrize("ranks", [[], [0, 0], [1, 0], [0, 4], [0, 1_000_000]])
def test_impossible_members_are_refused(ranks):
    with pytest.raises(ValueError, match=r"order|number below"):
        _members(ranks, 4)
    assert _members([0, 3], 4) == (0, 3)
