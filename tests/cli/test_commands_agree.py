"""Commands say the same of one run, and each says the same in text, JSON, Markdown, page and table."""

import html
import json
import re

import pytest

import tracekit as library
from tests.house.source import ROOT
from tests.report.test_html import data_of
from tests.trend.jobs import windows
from tracekit.dumps.load import load_dumps
from tracekit.report.html.trend import trend_html
from tracekit.report.markdown import fenced_markdown
from tracekit.report.trend_json import trend_document
from tracekit.report.trend_text import trend_text

SAMPLES = "sample_traces"
SLOW, HEALTHY, HUNG = (f"{SAMPLES}/{name}" for name in ("slow_compute", "healthy", "hang_host_stall"))


@pytest.fixture
def answered(tracekit, repository, tmp_path):
    """What a command says: (JSON, {format: words that a reader sees}, data of the page's charts)."""

    def ask(*arguments):
        files = {kind: tmp_path / f"{arguments[0]}.{kind}" for kind in ("json", "markdown", "html")}
        wanted = [part for kind, path in files.items() for part in (f"--{kind}", path)]
        done = tracekit(*arguments, "--quiet", *wanted)
        assert done.code == 0, done.err
        page = files["html"].read_text()
        seen = html.unescape(re.sub(r"<[^>]+>", " ", page.split('<script type="application/json"')[0]))
        texts = {"text": done.out, "markdown": files["markdown"].read_text().replace("\\", ""), "page": seen}
        return json.loads(files["json"].read_text()), texts, data_of(page)

    return ask


@pytest.fixture
def document(tracekit, repository, tmp_path):
    """What a command says, as JSON."""

    def ask(*arguments):
        done = tracekit(*arguments, "--quiet", "--json", tmp_path / "answer.json")
        assert done.code == 0, done.err
        return json.loads((tmp_path / "answer.json").read_text())

    return ask


@pytest.fixture
def repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def shown(value, texts):
    """Assert that every format shows `value`."""
    for kind, text in texts.items():
        assert value in text, (kind, value)


@pytest.mark.slow
def test_commands_tell_one_step(document):
    """slowrank, whatif, breakdown and diff measure the same steps of one run."""
    slow = document("slowrank", SLOW)
    priced = document("whatif", SLOW)
    parts = document("breakdown", SLOW)
    changed = document("diff", HEALTHY, SLOW)
    assert slow["steps"] == priced["steps"] == parts["steps"] == changed["after"]["steps"]
    assert slow["mesh"] == priced["mesh"] == parts["mesh"] == changed["after"]["mesh"]
    assert slow["ranks"] == priced["ranks"] == parts["ranks"] == changed["after"]["ranks"]
    mean = parts["total"]["step_ns"] / len(parts["cells"]) / 1e6
    assert slow["what_if"]["step_ms"] == pytest.approx(priced["step_ms"], abs=1e-3)
    assert mean == pytest.approx(priced["step_ms"], rel=5e-3)  # the mean of ranks, and the step of the job
    (suspect,) = slow["suspects"]
    assert changed["ranks"][0]["what"] == f"rank {suspect['rank']}"
    one = document("whatif", SLOW, "--fix", f"rank={suspect['rank']}")
    assert one["answers"][0]["lost_ms"] == pytest.approx(suspect["lost_ms_per_step"], rel=0.02)


@pytest.mark.slow
def test_prices_agree(answered):
    told, texts, drawn = answered("whatif", SLOW, "--fix", "rank=5")
    fix = told["answers"][0]
    shown(f"{told['step_ms']:.1f}", texts)
    shown(f"{fix['without_ms']:.1f}", texts)
    shown(f"{fix['slowdown']:.3f}", texts)
    assert drawn["bars"]["saved"]["rows"][0]["value"] == pytest.approx(fix["lost_ms"], abs=1e-3)
    row = library.whatif(library.load(SLOW), ["rank=5"]).to_arrow().to_pylist()[0]
    assert row["lost_ms"] == pytest.approx(fix["lost_ms"], abs=1e-3)


@pytest.mark.slow
def test_parts_agree(answered):
    told, texts, drawn = answered("breakdown", SLOW)
    for part in told["shares"]:
        shown(part["part"], texts)
        shown(f"{part['mean_ns'] / 1e6:.3f}", texts)
    table = library.breakdown(library.load(SLOW)).to_arrow().to_pylist()
    cells = {(c["rank"], c["step"]): c["compute_ns"] for c in told["cells"]}
    assert {(row["rank"], row["step"]): row["compute_ns"] for row in table} == cells
    values = {part["name"]: part["values"] for part in drawn["parts"]}
    by_rank = {r["rank"]: r["compute_ns"] / r["steps"] / 1e6 for r in told["by_rank"]}
    assert dict(zip(drawn["ranks"], values["compute"], strict=True)) == pytest.approx(by_rank, abs=0.01)


@pytest.mark.slow
def test_changes_agree(answered):
    told, texts, drawn = answered("diff", HEALTHY, SLOW)
    shown(told["verdict"].upper(), {k: v for k, v in texts.items() if k != "page"})
    shown(told["reason"], texts)
    worst = told["parts"][0]
    shown(worst["what"], texts)
    for kind, text in texts.items():
        assert f"{worst['change_ns'] / 1e6:+.{3 if kind == 'page' else 2}f}" in text, kind
    assert drawn["bars"]["parts"]["rows"][0]["value"] == pytest.approx(worst["change_ns"] / 1e6, abs=1e-3)
    rows = library.diff(library.load(HEALTHY), library.load(SLOW)).to_arrow().to_pylist()
    changes = [p["change_ns"] for p in told["parts"]]
    assert [r["change_ns"] for r in rows if r["kind"] == "part"] == pytest.approx(changes, abs=1)


@pytest.mark.slow
def test_course_agrees(tmp_path):
    found = library.trend(windows(tmp_path / "run", 12, lambda rank, window: 1 + 0.02 * window * (rank == 2)))
    told, page, text = trend_document(found), trend_html(found), trend_text(found)
    drawn = data_of(page)["trend"]
    shown(told["reason"], {"text": text, "markdown": fenced_markdown(text), "page": html.unescape(page)})
    assert [r["rank"] for r in told["by_rank"] if r["slower"]] == [2]
    assert [r["rank"] for r in drawn["ranks"] if r["slower"]] == [2]
    assert len(drawn["step"]) == len(told["points"]) == 12
    assert {row["rank"] for row in found.to_arrow().to_pylist()} == {r["rank"] for r in told["by_rank"]}


def test_hangs_agree(answered):
    told, texts, drawn = answered("hang", HUNG)
    (culprit,) = told["culprits"]
    shown(told["reason"], {k: v for k, v in texts.items() if k != "markdown"})
    shown(f"rank {culprit['rank']}", texts)
    shown(f"{culprit['collective']['op']} {culprit['collective']['seq']}", texts)
    states = dict(zip(drawn["ranks"], drawn["states"], strict=True))
    assert states[culprit["rank"]] == "culprit"
    assert sorted(r for r, state in states.items() if state == "waits") == sorted(told["victims"])
    (row,) = library.hang(load_dumps([HUNG])).to_arrow().to_pylist()
    assert (row["rank"], row["kind"], row["seq"]) == (
        culprit["rank"],
        culprit["kind"],
        culprit["collective"]["seq"],
    )
