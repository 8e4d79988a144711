"""`tracekit whatif` as a user and as a script call it."""

import json
import re

import pytest


def test_fixes_are_priced_alone_and_together(tracekit, slow):
    folder, truth = slow
    (culprit,) = truth.suspects
    done = tracekit("whatif", folder, "--fix", f"rank={culprit}", "--fix", "op=reduce_scatter, axis=tp")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("WHAT IF  ")
    labels = re.findall(r"^  (\S+) +[\d.]+ ms(?: \([\d.]+ to [\d.]+\))?, slowdown", done.out, re.MULTILINE)
    assert labels == [f"rank={culprit}", "op=reduce_scatter", "axis=tp", "together"]


def test_standard_questions_without_a_fix(tracekit, slow):
    done = tracekit("whatif", slow[0], "--verbose")
    assert re.search(r"^  everybody .* 100\.0% of the loss$", done.out, re.MULTILINE)
    assert "the worst rank (" in done.out


def test_json_alone_on_stdout_or_in_a_file(tracekit, slow, tmp_path):
    target = tmp_path / "answer.json"
    done = tracekit("whatif", slow[0], "--steps", "1:", "--json", "-")
    assert json.loads(done.out)["schema"] == "tracekit.whatif/1"
    shown = tracekit("whatif", slow[0], "--steps", "1:", "--json", target)
    assert shown.out.startswith("WHAT IF")
    assert target.read_text() == done.out


@pytest.mark.parametrize("fix", ["rank=77", "axis=xp", "op=nothing", "stage=9", "speed=3", "rank=-1", "rank"])
@pytest.mark.quick(2)
def test_an_unknown_fix_is_a_usage_error(tracekit, slow, fix):
    done = tracekit("whatif", slow[0], "--fix", fix)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("tracekit: --fix")
    assert done.err.count("\n") == 1


@pytest.mark.slow
def test_an_ingested_run_answers_alike(tracekit, slow, tmp_path):
    assert tracekit("ingest", slow[0], "--out", tmp_path / "run").code == 0
    raw, kept = (tracekit("whatif", f, "--json", "-").out for f in (slow[0], tmp_path / "run"))
    assert raw == kept


def test_whatif_has_no_verdict_to_fail_on(tracekit, slow):
    assert tracekit("whatif", slow[0], "--fail-on", "any").code == 2
