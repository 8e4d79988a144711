"""The page of slowrank: what it says, what it weighs, and that no text of a trace is obeyed in it."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from tests.slowrank.jobs import grid, job
from tracekit import installation
from tracekit.analysis.slowrank.analyse import analyse, illustrated
from tracekit.errors import MissingExtraError
from tracekit.findings.picture import SlowRankPicture
from tracekit.report.html import page
from tracekit.report.html.slowrank import slowrank_html
from tracekit.report.slowrank_text import slowrank_lines

pytest.importorskip("jinja2", reason="the extra report is not installed")
pytest.importorskip("plotly", reason="the extra report is not installed")
EVIL = "</script><img src=x onerror=alert(1)>\u2028{{ 7 * 7 }}"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    run = job(tmp_path_factory.mktemp("job"), grid(tp=2, dp=4), slow={5: 1.4}, lost=[6])
    finding, picture = illustrated(run)
    assert finding == analyse(run)
    return finding, picture


def data_of(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1])


def test_page_says_what_the_text_says(found):
    text = slowrank_html(*found)
    for _, told in slowrank_lines(found[0], verbose=True)[:3]:
        assert told.replace("'", "&#39;") in text


def test_same_finding_gives_same_bytes(found):
    assert slowrank_html(*found) == slowrank_html(*found)


def test_parts_sum_to_the_step(found):
    _, picture = found
    whole = np.sum(list(picture.parts.values()), axis=0)
    known = [r for r in picture.ranks if r != 6]
    assert whole[known] == pytest.approx(found[0].what_if.step_ms, rel=0.05)


def test_ranks_without_traces_are_empty(found):
    assert data_of(slowrank_html(*found))["maps"]["own time beyond the peers"][6] == [None] * 5


def test_slow_rank_leads_every_level(found):
    _, picture = found
    assert picture.timeline.ranks[0] == 5
    assert [level.spread[level.indices.index(level.chosen)][-1] for level in picture.levels] == pytest.approx(
        [np.nanmean(picture.excess[5])] * 2
    )


def test_names_of_traces_stay_inert(found):
    finding, picture = found
    suspect = replace(finding.suspects[0], host=EVIL)
    evil = replace(finding, suspects=(suspect,), reason=EVIL, notes=(EVIL,))
    text = slowrank_html(evil, replace(picture, hosts=(EVIL,) * 8))
    own = page.files(page.__package__).joinpath("page.js").read_text()
    assert "<img" not in text.replace(own, "").split("<script>")[0]
    assert "\u2028" not in text
    assert "49" not in re.search(r"<dt>why</dt><dd>(.*?)</dd>", text)[1]
    assert data_of(text)["hosts"][0].startswith("</script>")


def test_policy_allows_no_request(found):
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', slowrank_html(*found))[1]
    assert policy.startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "unsafe-eval" not in policy
    assert "http" not in policy


def test_data_refuses_infinity():
    with pytest.raises(ValueError, match="Out of range"):
        page.data_block({"a": inf})


def test_largest_job_stays_below_ten_megabytes(found):
    finding, _ = found
    ranks = 16_384
    noise = np.random.default_rng(7).normal(0.0, 30.0, (ranks, 30))
    picture = SlowRankPicture(
        tuple(range(ranks)), tuple(f"node{r // 8:04}.cluster" for r in range(ranks)),
        {"dp": tuple(r // 128 for r in range(ranks)), "pp": tuple(r // 8 % 16 for r in range(ranks))},
        tuple(range(30)), noise, abs(noise), {f"waits on {i}": abs(noise[:, i]) for i in range(8)}, (), None, (),
    )  # fmt: skip
    text = slowrank_html(finding, picture)
    assert len(text.encode()) < 10_000_000
    assert data_of(text)["steps"][:2] == ["0-2", "3-5"]


def test_missing_extra_names_the_remedy(monkeypatch):
    monkeypatch.setattr(installation, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tracekit4d\[report\]'"):
        page.render("page.html.j2", {})


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIETLY = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


BROWSER = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium is installed (Debian: apt install chromium)"
)


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
    return re.findall(r'<div[^>]*class="chart js-plotly-plot"', page)


@pytest.mark.slow
@BROWSER
def test_browser_draws_every_chart_without_complaint(found, tmp_path):
    finding, picture = found
    evil = replace(finding, reason=EVIL, suspects=(replace(finding.suspects[0], host=EVIL),))
    told = drawn(slowrank_html(evil, replace(picture, hosts=(EVIL,) * 8)), tmp_path)
    assert len(charts(told)) == 3 + len(picture.levels)
    assert 'id="controls" hidden' not in told
