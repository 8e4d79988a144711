"""The README begins with an answer that anybody can ask for; `tests/docs` compares what it shows."""

import re

from tests.house.source import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```\n\$ tracekit (.*)\n((?:.*\n)*?)```$", README, re.MULTILINE)


def test_first_output_is_of_a_sample():
    assert SHOWN[0][0] == "slowrank sample_traces/slow_compute"
    assert README.index("```\n$ tracekit") == README.index("```\n$ ")


def test_programs_are_on_the_path_before_their_first_use():
    first = re.search(r"^(?:\$ )?(?:tracekit|numerics|reftrain) ", README, re.MULTILINE)
    assert "\n. .venv/bin/activate" in README[: first.start()]
