"""`tracekit diff` as a user and as a script call it."""

import json

SAMPLES = "sample_traces"


def test_same_run_fails_no_build(tracekit, slow):
    done = tracekit("diff", slow[0], slow[0], "--fail-on", "slower,faster", "--json", "-", "--quiet")
    assert done.out, done.err
    document = json.loads(done.out)
    assert document["schema"] == "tracekit.diff/1"
    assert done.code == (4 if document["verdict"] == "inconclusive" else 0)
    assert document["step"]["change_ns"] == 0


def test_text_fits_a_terminal(tracekit, slow):
    done = tracekit("diff", slow[0], slow[0], "--quiet", "--verbose")
    assert done.code == 0
    table = done.out.split("\n  before ")[0].splitlines()
    assert max(map(len, table)) <= 80


def test_one_run_is_a_usage_error(tracekit, slow):
    done = tracekit("diff", slow[0])
    assert done.code == 2
    assert "AFTER" in done.err


def test_refusal_names_the_run_it_is_about(tracekit, slow, tmp_path):
    done = tracekit("diff", slow[0], tmp_path / "none", "--quiet")
    assert done.code == 3
    assert str(tmp_path / "none") in done.err
