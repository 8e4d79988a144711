"""The example workflow names what is in this repository: the action, its inputs, samples, and verdicts."""

import re

from tests.house.source import ROOT
from tracekit.findings.slowrank import Verdict

WORKFLOW = (ROOT / "docs" / "workflows" / "slowrank.yml").read_text()
ACTION = (ROOT / "action.yml").read_text()


def test_the_example_gives_the_action_its_inputs():
    inputs = set(re.findall(r"^  ([\w-]+):\n    description", ACTION, re.MULTILINE))
    given = re.search(r"uses: \./\n +with:\n((?: {10}\S.*\n)+)", WORKFLOW)[1]
    values = dict(re.findall(r"([\w-]+): (\S+)", given))
    assert set(values) <= inputs
    assert (ROOT / values["traces"]).is_dir()
    assert set(values["fail-on"].split(",")) <= {*Verdict.__args__, "any"}


def test_the_page_that_is_kept_is_the_one_written():
    written = re.search(r"page:\n +description: .*\n +default: (\S+)", ACTION)[1]
    assert f"path: {written}" in WORKFLOW
