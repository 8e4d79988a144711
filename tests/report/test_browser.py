"""The pages in a real browser: nothing is asked for, nothing complains, and what can be used works, soon."""

from dataclasses import replace

import numpy as np
import pytest

from tests.report.browser import chromium
from tests.report.test_html import BROWSER, EVIL, found  # noqa: F401 - the fixture
from tracekit.findings.picture import SlowRankPicture
from tracekit.report.html.slowrank import slowrank_html

pytestmark = BROWSER
MOST_BYTES = 10_000_000
SOON_S = 3.0


@pytest.fixture
def page(tmp_path):
    with chromium(tmp_path) as opened:
        yield opened
        assert opened.complaints == []
        assert {url.partition(":")[0] for url in opened.requests} <= {"file", "data", "blob"}
        assert len([url for url in opened.requests if url.startswith("file")]) == 1


def largest():
    """The picture of a job of 16 384 ranks and 30 steps."""
    ranks = 16_384
    noise = np.random.default_rng(7).normal(0.0, 30.0, (ranks, 30))
    return SlowRankPicture(
        tuple(range(ranks)), tuple(f"node{r // 8:04}.cluster" for r in range(ranks)),
        {"dp": tuple(r // 128 for r in range(ranks)), "pp": tuple(r // 8 % 16 for r in range(ranks)),
         "tp": tuple(r % 8 for r in range(ranks))},
        tuple(range(30)), noise, abs(noise), {f"waits on {i}": abs(noise[:, i]) for i in range(8)}, (), None, (),
    )  # fmt: skip


def rows(page):
    return page.ask("document.getElementById('map').data[0].y.length")


@pytest.mark.slow
def test_largest_page_is_interactive_soon(found, page, tmp_path):  # noqa: F811
    """It is drawn in three seconds, and so is every way to fold it."""
    text = slowrank_html(found[0], largest())
    assert len(text.encode()) < MOST_BYTES
    (tmp_path / "page.html").write_text(text)
    taken = {"opened": page.open(tmp_path / "page.html")}
    sizes = {"host": 2048, "dp × pp": 2048, "pp × tp": 128, "dp": 128, "rank": 16_384}
    for fold, count in sizes.items():
        taken[fold] = page.choose("fold", fold)
        assert rows(page) == count
    taken["what"] = page.choose("what", page.ask("document.getElementById('what').options[1].value"))
    assert max(taken.values()) < SOON_S, taken


@pytest.mark.slow
def test_folded_row_opens_and_closes(found, page, tmp_path):  # noqa: F811
    (tmp_path / "page.html").write_text(slowrank_html(*found))
    page.open(tmp_path / "page.html")
    assert rows(page) == 8
    page.choose("fold", "dp")
    assert rows(page) == 4
    page.ask("document.getElementById('map').scrollIntoView({block: 'center'})")
    page.painted()
    x, y = page.ask(
        "(b => [b.x + b.width / 2, b.y + b.height / 8])"
        "(document.querySelector('#map .nsewdrag').getBoundingClientRect())"
    )
    page.click(x, y)
    assert page.ask("document.getElementById('shown').textContent") == "2 rows, 2 ranks"
    page.ask("document.getElementById('back').click()")
    page.painted()
    assert page.ask("document.getElementById('shown').textContent") == "8 rows, 8 ranks"


@pytest.mark.slow
def test_legend_hides_what_it_names(found, page, tmp_path):  # noqa: F811
    (tmp_path / "page.html").write_text(slowrank_html(*found))
    page.open(tmp_path / "page.html")
    page.ask("document.querySelector('.legend button').click()")
    page.painted()
    assert page.ask("document.getElementById('parts').data.map(t => t.visible ?? true)")[:2] == [False, True]


def test_names_are_obeyed_by_no_browser(found, page, tmp_path):  # noqa: F811
    finding, picture = found
    evil = replace(finding, reason=EVIL, suspects=(replace(finding.suspects[0], host=EVIL),))
    (tmp_path / "page.html").write_text(slowrank_html(evil, replace(picture, hosts=(EVIL,) * 8)))
    page.open(tmp_path / "page.html")
    for fold in page.ask("[...document.getElementById('fold').options].map(o => o.value)"):
        page.choose("fold", fold)
    assert page.ask("document.querySelectorAll('img').length") == 0


@pytest.mark.slow
def test_printing_is_light_and_open(found, page, tmp_path):  # noqa: F811
    (tmp_path / "page.html").write_text(slowrank_html(*found))
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    page.open(tmp_path / "page.html")
    ink = "document.getElementById('map').layout.font.color"
    dark = page.ask(ink)
    page.ask("dispatchEvent(new Event('beforeprint'))")
    assert page.ask(ink) != dark
    assert page.ask("[...document.querySelectorAll('details')].every(d => d.open)")
    page.ask("dispatchEvent(new Event('afterprint'))")
    assert page.ask(ink) == dark
    assert len(page.call("Page.printToPDF")["data"]) > 10_000
