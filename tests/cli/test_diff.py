"""`tracekit diff` as a user and as a script call it."""

import json
import shutil

import pytest
from tracekit_cli.source import Pair

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


@pytest.mark.parametrize(
    ("given", "jobs"), [(None, (None, None)), ("2", (2, 2)), ("1,2", (1, 2)), ("2, 1", (2, 1))]
)
def test_each_run_has_its_job(monkeypatch, tracekit, given, jobs):
    asked = []
    sources = Pair.sources.fget
    monkeypatch.setattr(Pair, "sources", property(lambda pair: asked.append(pair.job) or sources(pair)))
    tracekit("diff", "none", "none", *(["--job", given] if given else []))
    assert asked == [jobs]


@pytest.mark.parametrize("wrong", ["0", "1,2,3", "a", "", "-1", "1,"])
def test_wrong_jobs_are_usage_errors(tracekit, wrong):
    done = tracekit("diff", "none", "none", "--job", wrong)
    assert done.code == 2
    assert "write 2 for both runs, or 1,2 for one each" in done.err


@pytest.mark.slow
def test_two_jobs_of_one_folder_are_compared(tracekit, slow, healthy, tmp_path):
    for name, made in (("a", healthy), ("b", slow)):
        shutil.copytree(made[0], tmp_path / name)
    refused = tracekit("diff", tmp_path, tmp_path, "--quiet")
    assert refused.code == 3
    assert "--job 1" in refused.err
    page = tmp_path / "page.html"
    done = tracekit("diff", tmp_path, tmp_path, "--job", "1,2", "--html", page, "--json", "-", "--quiet")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    alone = [tracekit("slowrank", tmp_path, "--job", n, "--json", "-", "--quiet").out for n in (1, 2)]
    assert [document[k]["steps"] for k in ("before", "after")] == [json.loads(a)["steps"] for a in alone]
    assert document["reason"] in page.read_text()
