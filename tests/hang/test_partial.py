"""Whatever is left of a real hang on Gloo accuses no innocent rank."""

import pytest

from tests.hang.partial import VIEWS, answered, judgement, run

MAY_BE_OPEN = {"a victim's dump missing", "logs alone"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loader", "raises"])
def test_parts_of_a_real_hang_accuse_no_innocent(tmp_path, kind):
    run(tmp_path / kind, kind)
    said = {
        name: judgement(kind, answered(tmp_path / kind, kind, view, tmp_path / "views" / str(place)))
        for place, (name, view) in enumerate(VIEWS.items())
    }
    assert "innocent named" not in said.values(), said
    assert {name for name, one in said.items() if one != "right"} <= MAY_BE_OPEN, said
