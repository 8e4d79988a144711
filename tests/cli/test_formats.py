"""One run, one command, every format: text, JSON, Markdown, HTML, Prometheus, Perfetto and tables tell the same."""

import html
import json
import re

import pytest

import tracekit as library
from tests.report.test_html import data_of
from tests.report.test_perfetto import read, told
from tests.report.test_prometheus import samples


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return tmp_path_factory.mktemp("formats")


@pytest.fixture
def formats(tracekit, slow, written):
    """What `tracekit slowrank` says and writes of one run, by format."""
    kinds = ("json", "markdown", "html", "prometheus", "perfetto")
    wanted = [part for kind in kinds for part in (f"--{kind}", written / kind)]
    done = tracekit("slowrank", slow[0], "--quiet", "--verbose", *wanted)
    assert done.code == 0, done.err
    files = {kind: (written / kind).read_bytes() for kind in kinds}
    return {kind: data if kind == "perfetto" else data.decode() for kind, data in files.items()} | {
        "text": done.out
    }


def test_all_formats_of_one_run_agree(formats, slow):
    document = json.loads(formats["json"])
    (suspect,) = document["suspects"]
    verdict, rank, step = document["verdict"], suspect["rank"], document["what_if"]["step_ms"]
    lost, cause = suspect["lost_ms_per_step"], document["cause"]
    assert rank in slow[1].suspects

    # texts: the verdict's words, the rank, its price to a tenth
    page = html.unescape(re.sub(r"<[^>]+>", " ", formats["html"].split("<script")[0]))
    word = formats["text"].split("  ")[0]
    for kind, text in (("text", formats["text"]), ("markdown", formats["markdown"]), ("html", page)):
        assert word in text, kind
        assert re.search(rf"\b{rank}\b", text), kind
        assert f"{lost:.1f}" in text, kind
        assert f"{step:.1f}" in text, kind

    # the page's drawing: the same ranks, one of them marked
    drawn = data_of(formats["html"])
    assert drawn["named"] == [rank]
    assert len(drawn["ranks"]) == document["ranks"]["expected"]

    # metrics
    metrics = samples(formats["prometheus"])
    assert metrics["tracekit_slowrank_verdict", ("verdict", verdict)] == 1
    assert metrics["tracekit_slowrank_step_seconds",] == pytest.approx(step / 1e3, rel=1e-5)
    found = {
        dict(key[1:])["bound"]: (dict(key[1:])["rank"], value)
        for key, value in metrics.items()
        if key[0] == "tracekit_slowrank_suspect_lost_seconds"
    }
    for bound, field in (("mean", "lost_ms_per_step"), ("low", "lost_ms_low"), ("high", "lost_ms_high")):
        assert found[bound] == (str(rank), pytest.approx(suspect[field] / 1e3, rel=1e-4, abs=1e-6))

    # the trace
    events = [told(event) for _, event in read(formats["perfetto"])[1]]
    assert (events[0]["verdict"], events[0]["cause"]) == (verdict, cause)
    assert events[0]["step_ms"] == pytest.approx(step, rel=1e-4)
    priced = [e for e in events if "lost_ms_per_step" in e]
    assert [(e["rank"], round(e["lost_ms_per_step"], 2)) for e in priced] == [(rank, round(lost, 2))]

    # tables
    finding = library.slowrank(library.load(str(slow[0])))
    (row,) = finding.to_arrow().to_pylist()
    assert (row["rank"], row["role"], row["cause"]) == (rank, "suspect", cause)
    assert row["lost_ms_per_step"] == pytest.approx(lost, rel=1e-4)
    assert {axis: row[axis] for axis in suspect["coords"] if axis in row} == suspect["coords"]
    assert word.lower().replace(" ", "_")[:4] in finding.headline().lower()
