"""The page of slowrank: what it says, what it weighs, and that no text of a trace is obeyed in it."""

import json
import re
import subprocess
from base64 import b64decode
from dataclasses import replace
from html import unescape
from math import inf, nan

import numpy as np
import pytest

from tests.report.browser import BROWSER, CHROMIUM, QUIETLY
from tests.slowrank.jobs import grid, job
from tracekit import installation
from tracekit.analysis.slowrank.analyse import illustrated
from tracekit.causes import CAUSES
from tracekit.errors import MissingExtraError
from tracekit.findings import Cure, NetworkPart
from tracekit.findings.picture import SlowRankPicture
from tracekit.page import shell
from tracekit.report.html.slowrank import slowrank_html
from tracekit.report.slowrank_json import dumps, slowrank_document
from tracekit.report.slowrank_text import slowrank_lines

pytest.importorskip("jinja2", reason="the extra report is not installed")
EVIL = "</script><img src=x onerror=alert(1)>\u2028{{ 7 * 7 }}"


def data_of(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1])


def words_of(text):
    """The text of a page as a reader sees it, without its script."""
    shown = re.sub(r"<[^>]+>", " ", text.split("<body>")[1].split('<script type="application/json"')[0])
    return re.sub(r"\s+", " ", unescape(shown))


def head_of(text):
    """The headline and the next step of a page."""
    head = re.search(r"<header.*?</header>", text, re.DOTALL)[0]
    next_step = re.findall(r'<p class="next"><b>Next</b> (.*?)</p>', head)
    return unescape(re.search(r"<h1>(.*?)</h1>", head)[1]), [unescape(step) for step in next_step]


def test_page_says_what_the_text_says(found):
    text = words_of(slowrank_html(*found))
    for _, told in slowrank_lines(found[0], verbose=True)[:3]:
        assert told in text


def test_answer_is_the_headline_and_next_follows(found):
    headline, next_steps = head_of(slowrank_html(*found))
    assert headline.startswith("rank 5 (dp 2, pp 0, cp 0, tp 1): costs ")
    assert next_steps == [CAUSES["gpu_compute"].next_step]


def test_price_is_a_bar_with_its_interval(found):
    finding, picture = found
    step = finding.what_if.step_ms
    wide = replace(
        finding.suspects[0], lost_ms_per_step=0.1 * step, lost_ms_low=0.05 * step, lost_ms_high=0.3 * step
    )
    after = replace(finding.what_if, without_suspects_ms=0.9 * step)
    text = slowrank_html(replace(finding, suspects=(wide,), what_if=after), picture)
    bar = re.search(r'<svg class="interval".*?</svg>', text)[0]
    assert re.findall(r'<rect class="(\w+)"[^>]* width="([\d.]+)"', bar) == [
        ("ground", "100"),
        ("least", "5.0"),
        ("span", "25.0"),
        ("edge", ".5"),
    ]
    assert f"(between {0.05 * step:.1f} and {0.3 * step:.1f})" in bar


def test_cures_stand_in_order_with_the_step_after_each(found):
    finding, picture = found
    cures = (Cure("network", (7, 3), 5.0, 4.0, 6.0, 95.0), Cure("gpu_compute", (1,), 2.5, 2.0, 3.0, 92.5))
    text = words_of(slowrank_html(replace(finding, cures=cures), picture))
    assert "network 3, 7 5.0 4.0 6.0 95.0" in text
    assert text.index("network 3, 7") < text.index("gpu_compute 1 2.5 2.0 3.0 92.5")
    assert "The step after each cure" not in words_of(slowrank_html(*found))


def test_shared_parts_of_the_network_are_listed_escaped(found):
    finding, picture = found
    parts = (NetworkPart("host", "host <b>h1</b>", (3, 1, 2)), NetworkPart("rail", "rail 1", (7,)))
    text = slowrank_html(replace(finding, network_parts=parts), picture)
    assert "host &lt;b&gt;h1&lt;/b&gt;</td><td>host</td><td>1-3</td>" in text
    assert text.index("<td>1-3</td>") < text.index("<td>rail 1</td><td>rail</td><td>7</td>")
    assert "<b>h1" not in text
    assert "What the slow transfers share" not in words_of(slowrank_html(*found))


def test_open_answers_show_no_confidence(found):
    finding, picture = found
    is_open = replace(
        finding, verdict="inconclusive", cause="unknown", reason="two ranks come into question", suspects=(),
        candidates=finding.suspects, to_decide="record five more steps",
    )  # fmt: skip
    text = slowrank_html(is_open, picture)
    assert head_of(text) == ("two ranks come into question", ["record five more steps"])
    assert "confidence" not in words_of(text)
    assert "nobody" not in words_of(text)
    assert "confidence" in words_of(slowrank_html(*found))


def test_health_is_pale_on_every_scale(tmp_path):
    finding, picture = illustrated(job(tmp_path, grid(tp=2, dp=4)))
    data = data_of(slowrank_html(finding, picture))
    threshold = 0.02 * finding.what_if.step_ms
    assert finding.verdict == "healthy"
    assert np.nanmax(abs(picture.excess)) < threshold
    for scale in (data["what"][0]["scale"], data["level_scale"]):
        assert scale["high"] == scale["pale"] == pytest.approx(threshold)
        assert scale["low"] in (0, pytest.approx(-threshold))


def test_answer_lies_in_its_page_as_json(found):
    text = slowrank_html(*found)
    name, data = re.search(r'<a download="(.*?)" href="data:application/json;base64,(.*?)">', text).groups()
    assert name == "slowrank.json"
    assert b64decode(data).decode() == dumps(slowrank_document(found[0]))


def test_foot_names_command_input_and_date(found):
    about = shell.About("tracekit slowrank runs/a", ("runs/a",), shell.date_text(1_795_263_607 * 10**9))
    foot = words_of(slowrank_html(*found, about)).split("command ")[1]
    assert foot.startswith("tracekit slowrank runs/a input runs/a recorded 2026-11-21 12:20:07 UTC made by")
    assert "the input holds no date" in words_of(slowrank_html(*found))


@pytest.mark.parametrize("ns", [0, -5, 123_454_944_456, 2**62, 2**80])
def test_clocks_of_a_machine_give_no_date(ns):
    assert shell.date_text(ns) is None


def test_same_finding_gives_same_bytes(found):
    assert slowrank_html(*found) == slowrank_html(*found)


def test_parts_sum_to_the_step(found):
    _, picture = found
    whole = np.sum(list(picture.parts.values()), axis=0)
    known = [r for r in picture.ranks if r != 6]
    assert whole[known] == pytest.approx(found[0].what_if.step_ms, rel=0.05)


def test_ranks_without_traces_are_empty(found):
    data = data_of(slowrank_html(*found))
    assert [what["cells"][6] for what in data["what"]] == [[None] * 5] * 2
    assert [what["means"][6] for what in data["what"]] == [None] * 2
    assert all(part["values"][6] is None for part in data["parts"])


def test_slow_rank_leads_every_level(found):
    _, picture = found
    assert picture.timeline.ranks[0] == 5
    assert [level.spread[level.indices.index(level.chosen)][-1] for level in picture.levels] == pytest.approx(
        [np.nanmean(picture.excess[5])] * 2
    )


def test_time_lines_of_other_stages_are_held(tmp_path):
    finding, picture = illustrated(job(tmp_path, grid(tp=2, pp=2, dp=2), slow={5: 1.4}))
    line = picture.timeline
    assert line.ranks[0] == 5
    assert sorted((*line.ranks, *line.held)) == list(range(8))
    assert {row.rank for row in line.rows} == set(range(8))
    stage = picture.places["pp"][5]
    assert {picture.places["pp"][r] for r in line.ranks} == {stage}
    drawn_of = data_of(slowrank_html(finding, picture))["timeline"]
    assert drawn_of["ranks"] == [*line.ranks, *line.held]
    assert drawn_of["shown"] == len(line.ranks)
    assert set(drawn_of["fills"]) == {row.kind for row in line.rows}


def test_page_of_sixteen_ranks_is_small(tmp_path):
    page = slowrank_html(*illustrated(job(tmp_path, grid(tp=2, cp=2, pp=2, dp=2), slow={5: 1.4})))
    assert len(page.encode()) < 200_000


def test_names_of_traces_stay_inert(found):
    finding, picture = found
    suspect = replace(finding.suspects[0], host=EVIL)
    evil = replace(finding, suspects=(suspect,), reason=EVIL, notes=(EVIL,))
    text = slowrank_html(evil, replace(picture, hosts=(EVIL,) * 8))
    assert "<img" not in text.split("<script>")[0]
    assert "\u2028" not in text
    assert "49" not in re.search(r"<dt>why</dt><dd>(.*?)</dd>", text)[1]
    assert data_of(text)["hosts"]["names"][0].startswith("</script>")


@pytest.mark.parametrize("step", [nan, inf, 0.0])
def test_unknown_steps_have_a_page(found, step):
    finding, picture = found
    text = slowrank_html(replace(finding, what_if=replace(finding.what_if, step_ms=step)), picture)
    assert 'class="interval"' not in text
    assert data_of(text)["what"][1]["scale"] == {"low": 0, "high": 0, "pale": 0}


def test_policy_allows_no_request(found):
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', slowrank_html(*found))[1]
    assert policy.startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "unsafe-eval" not in policy
    assert "http" not in policy


def test_data_refuses_infinity():
    with pytest.raises(ValueError, match="Out of range"):
        shell.data_block({"a": inf})


def test_largest_job_stays_below_four_megabytes(found):
    finding, _ = found
    ranks = 16_384
    noise = np.random.default_rng(7).normal(0.0, 30.0, (ranks, 30))
    picture = SlowRankPicture(
        tuple(range(ranks)), tuple(f"node{r // 8:04}.cluster" for r in range(ranks)),
        {"dp": tuple(r // 128 for r in range(ranks)), "pp": tuple(r // 8 % 16 for r in range(ranks))},
        tuple(range(30)), noise, abs(noise), {f"waits on {i}": abs(noise[:, i]) for i in range(8)}, (), None, (),
    )  # fmt: skip
    text = slowrank_html(finding, picture)
    assert len(text.encode()) < 4_000_000
    assert data_of(text)["steps"][:2] == ["0-2", "3-5"]


def test_missing_extra_names_the_remedy(monkeypatch):
    monkeypatch.setattr(installation, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tracekit4d\[report\]'"):
        shell.render("tracekit.report.html", "page.html.j2", {}, document=("", ""))


def drawn(text, folder):
    """The page as a browser leaves it; asserts that nothing was said on its console."""
    (folder / "page.html").write_text(text)
    command = [
        CHROMIUM, *QUIETLY, f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr",
        "--virtual-time-budget=5000", "--dump-dom", (folder / "page.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, re.findall(r".*CONSOLE.*", done.stderr)
    assert 'data-drawn="true"' in done.stdout
    assert "<img src" not in done.stdout.split("<script")[0]
    return done.stdout


def charts(page):
    """The charts of a page that hold a drawing."""
    return re.findall(r'class="chart"[^>]*><(?:svg|canvas)', page)


@pytest.mark.slow
@BROWSER
def test_browser_draws_every_chart_without_complaint(found, tmp_path):
    finding, picture = found
    evil = replace(finding, reason=EVIL, suspects=(replace(finding.suspects[0], host=EVIL),))
    told = drawn(slowrank_html(evil, replace(picture, hosts=(EVIL,) * 8)), tmp_path)
    assert len(charts(told)) == 5 + len(picture.levels)
