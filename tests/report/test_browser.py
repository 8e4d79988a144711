"""The pages in a real browser: nothing is asked for, nothing complains, and what can be used works, soon."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.report.browser import BROWSER, chromium
from tests.report.test_html import EVIL
from tracekit.findings.hang import HangFinding
from tracekit.findings.picture import HangPicture, Level, SlowRankPicture
from tracekit.findings.shared import RankCoverage
from tracekit.page.palette import PALETTE
from tracekit.report.html.hang import hang_html
from tracekit.report.html.slowrank import slowrank_html

pytestmark = BROWSER
HUNG = HangFinding(RankCoverage(9, 9), None, "hang", "it hangs", (), None, ())
MOST_BYTES = 4_000_000
SOON_S = 3.0


@pytest.fixture
def page(tmp_path):
    with chromium(tmp_path) as opened:
        yield opened
        assert opened.complaints == []
        assert {url.partition(":")[0] for url in opened.requests} <= {"file", "data", "blob"}
        assert len([url for url in opened.requests if url.startswith("file")]) == 1


@pytest.fixture
def shown(found, page, tmp_path):
    """The page of a slow rank 5 of tp=2, dp=4 without rank 6, opened."""
    (tmp_path / "page.html").write_text(slowrank_html(*found))
    page.open(tmp_path / "page.html")
    return page


def largest():
    """The picture of a job of 16 384 ranks and 30 steps."""
    ranks = 16_384
    noise = np.random.default_rng(7).normal(0.0, 30.0, (ranks, 30))
    parts = {f"waits on {axis}": abs(noise[:, i]) for i, axis in enumerate(("tp", "pp", "dp", "pp_dp"))}
    for spent in parts.values():
        spent[100:200] = np.nan
    return SlowRankPicture(
        tuple(range(ranks)), tuple(f"node{r // 8:04}.cluster" for r in range(ranks)),
        {"tp": tuple(r % 8 for r in range(ranks)), "pp": tuple(r // 8 % 16 for r in range(ranks)),
         "dp": tuple(r // 128 for r in range(ranks))},
        tuple(range(30)), noise, abs(noise), parts, (), None, (),
    )  # fmt: skip


def spots(page, chart):
    """What the arrow keys reach in a chart, going right and down from its first spot: the words of each."""
    page.ask(f"document.querySelector('#{chart} > *').focus()")
    words = [press(page, chart, "ArrowLeft")]
    for key in ("ArrowRight", "ArrowDown"):
        while (told := press(page, chart, key)) != words[-1]:
            words.append(told)
    return words


def press(page, chart, key):
    """Press a key in a chart, and read what it says."""
    page.ask(
        f"document.querySelector('#{chart} > *').dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}}))"
    )
    return page.ask("document.getElementById('tip').textContent")


def fold(page, axis):
    """Press the button of an axis of the map."""
    page.ask(
        f"[...document.querySelectorAll('#axes button')].find(b => b.textContent.startsWith('{axis}')).click()"
    )


@pytest.mark.slow
def test_largest_page_is_interactive_soon(found, page, tmp_path):
    """It is drawn in three seconds, and so is every way to fold it."""
    text = slowrank_html(found[0], largest())
    assert len(text.encode()) < MOST_BYTES
    (tmp_path / "page.html").write_text(text)
    taken = {"opened": page.open(tmp_path / "page.html")}
    sizes = {"host": 2048, "dp × pp": 2048, "pp × tp": 128, "dp": 128, "rank": 16_384}
    for name, count in sizes.items():
        taken[name] = page.choose("fold", name)
        assert page.ask("document.getElementById('shown').textContent") == f"{count} rows, 16384 ranks"
    taken["what"] = page.choose("what", "1")
    fold(page, "tp")
    page.painted()
    assert press(page, "mesh", "ArrowDown").startswith("8 ranks, strongest: rank ")
    assert max(taken.values()) < SOON_S, taken


def test_map_folds_by_axis_and_keys(shown):
    ranks = [words.split(" (")[0] for words in spots(shown, "mesh")]
    assert ranks == ["rank 0", "rank 1", "rank 3", "rank 5", "rank 7"]
    assert "no trace" in press(shown, "mesh", "ArrowLeft")
    fold(shown, "tp")
    folded = spots(shown, "mesh")
    assert len(folded) == 4
    assert all(words.startswith("2 ranks, strongest: rank") for words in folded)
    assert "rank 5 (dp 2, tp 1)" in folded[2]
    fold(shown, "dp")
    assert "8 ranks, strongest: rank 5" in spots(shown, "mesh")[0]
    fold(shown, "dp")
    fold(shown, "tp")
    assert len(spots(shown, "mesh")) == 5


def test_chosen_rank_shows_its_time_line(shown):
    first = "document.querySelector('#timeline text[text-anchor=end]').textContent"
    assert shown.ask(first) == "rank 5 ◀"
    for key in ("ArrowUp", "ArrowDown", "Enter"):
        press(shown, "mesh", key)
    assert shown.ask("document.getElementById('chosen').textContent").startswith("rank 2 (dp 1, tp 0)")
    assert shown.ask(first) == "rank 2"
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        press(shown, "mesh", key)
    assert "no time line of rank 6" in shown.ask("document.getElementById('beside').textContent")
    assert shown.ask(first) == "rank 5 ◀"


def test_missing_rank_is_a_gap(shown):
    assert shown.ask("document.querySelector('#parts .missing').getAttribute('d').match(/M/g).length") == 1
    assert "rank 6: not recorded" in spots(shown, "parts")


@pytest.mark.slow
def test_gaps_of_many_ranks_are_not_drawn_across(found, page, tmp_path):
    (tmp_path / "page.html").write_text(slowrank_html(found[0], largest()))
    page.open(tmp_path / "page.html")
    page.choose("fold", "rank")
    gap, bars = page.ask(
        "['.missing', '[data-kind]'].map(s => [...document.querySelector('#parts ' + s).getAttribute('d')"
        ".matchAll(/M([0-9.]+) [0-9.]+h([0-9.]+)/g)].map(m => [+m[1], +m[1] + +m[2]]))"
    )
    assert gap
    assert not any(a < end - 0.05 and begin < b - 0.05 for begin, end in bars for a, b in gap)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes",
    [{}, {"dp": 1}, {"dp": 600}, {"dp": 16_384}, {"dp": 3, "pp": 5, "cp": 2, "tp": 7}, {"dp": 1000, "tp": 2}],
)
def test_map_of_any_mesh_is_drawn(page, tmp_path, sizes):
    """Every rank has one cell, and the map fits a screen."""
    world = int(np.prod(list(sizes.values()))) if sizes else 9
    at = np.unravel_index(np.arange(world), list(sizes.values())) if sizes else ()
    places = {axis: tuple(map(int, index)) for axis, index in zip(sizes, at, strict=True)}
    states = tuple("culprit" if r == 4 else "no dump" if r == 5 else "waits" for r in range(world))
    finding = replace(HUNG, culprits=(), verdict="inconclusive")
    (tmp_path / "page.html").write_text(
        hang_html(finding, HangPicture(tuple(range(world)), (None,) * world, places, states))
    )
    page.open(tmp_path / "page.html")
    assert page.ask("document.getElementById('mesh').offsetHeight") < 1000
    assert press(page, "mesh", "ArrowDown").startswith("rank 0")
    cells = page.ask(
        "(m => m.rows.map((_, r) => m.columns.map((_, c) => m.at(r, c))).flat(2).sort((a, b) => a - b))(layout())"
    )
    assert cells == list(range(world))


@pytest.mark.slow
def test_folded_row_opens_and_closes(shown):
    shown.choose("fold", "dp")
    press(shown, "steps", "ArrowDown")
    press(shown, "steps", "Enter")
    assert shown.ask("document.getElementById('shown').textContent") == "2 rows, 2 ranks"
    shown.ask("document.getElementById('back').click()")
    shown.painted()
    assert shown.ask("document.getElementById('shown').textContent") == "8 rows, 8 ranks"


@pytest.mark.slow
def test_mouse_reaches_what_keys_reach(shown):
    shown.ask("document.getElementById('mesh').scrollIntoView({block: 'center'})")
    x, y, w, h = shown.ask(
        "(b => [b.x, b.y, b.width, b.height])(document.querySelector('#mesh canvas').getBoundingClientRect())"
    )
    shown.click(x + 0.9 * w, y + 0.1 * h)
    assert shown.ask("document.getElementById('chosen').textContent").startswith("rank 1 ")


@pytest.mark.slow
def test_legend_hides_what_it_names(shown):
    kinds = "[...document.querySelectorAll('#parts [data-kind]')].map(p => p.dataset.kind)"
    before = shown.ask(kinds)
    button = "document.getElementById('parts').previousElementSibling.querySelector('button')"
    shown.ask(button + ".click()")
    assert shown.ask(kinds) == before[1:]
    assert shown.ask(button + ".getAttribute('aria-pressed')") == "false"
    shown.ask(button + ".click()")
    assert shown.ask(kinds) == before


@pytest.mark.slow
def test_time_line_zooms_and_returns(shown):
    axis = (
        "[...document.querySelectorAll('#timeline text[text-anchor=middle]')].map(t => t.textContent).join()"
    )
    whole = shown.ask(axis)
    for name in ("closer", "later", "earlier"):
        shown.ask(f"document.getElementById('{name}').click()")
    assert shown.ask(axis) != whole
    shown.ask("document.getElementById('whole').click()")
    assert shown.ask(axis) == whole


def test_names_are_obeyed_by_no_browser(found, page, tmp_path):
    finding, picture = found
    evil = replace(finding, reason=EVIL, suspects=(replace(finding.suspects[0], host=EVIL),))
    (tmp_path / "page.html").write_text(slowrank_html(evil, replace(picture, hosts=(EVIL,) * 8)))
    page.open(tmp_path / "page.html")
    for name in page.ask("[...document.getElementById('fold').options].map(o => o.value)"):
        page.choose("fold", name)
        spots(page, "steps")
    assert page.ask("document.querySelectorAll('img').length") == 0


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1400, 2560])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_its_window(found, page, tmp_path, width, scheme):
    (tmp_path / "page.html").write_text(slowrank_html(*found))
    page.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
    )
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.open(tmp_path / "page.html")
    assert page.ask("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    culprit = getattr(PALETTE["culprit"], scheme)
    edge = page.ask("getComputedStyle(document.querySelector('.verdict')).borderLeftColor")
    assert [int(n) for n in re.findall(r"\d+", edge)] == [int(culprit[i : i + 2], 16) for i in (1, 3, 5)]


@pytest.mark.slow
def test_printing_is_light_and_open(found, page, tmp_path):
    (tmp_path / "page.html").write_text(slowrank_html(*found))
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    page.open(tmp_path / "page.html")
    ink = "getComputedStyle(document.documentElement).getPropertyValue('--ink')"
    dark = page.ask(ink)
    page.ask("dispatchEvent(new Event('beforeprint'))")
    assert page.ask(ink) != dark
    assert page.ask("[...document.querySelectorAll('details')].every(d => d.open)")
    page.ask("dispatchEvent(new Event('afterprint'))")
    assert page.ask(ink) == dark
    assert len(page.call("Page.printToPDF")["data"]) > 10_000


NOTE_TEXT = """
const drawn = CanvasRenderingContext2D.prototype.fillText;
window.texts = [];
const numbers = new WeakMap();
let count = 0;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const wide = this.measureText(text).width, from = {center: x - wide / 2, right: x - wide}[this.textAlign] ?? x;
  if (!numbers.has(this.canvas)) numbers.set(this.canvas, count++);
  window.texts.push({row: "canvas " + numbers.get(this.canvas) + " " + Math.round(y), from, to: from + wide, text,
    cut: y < this.measureText(text).actualBoundingBoxAscent});
  drawn.call(this, text, x, y);
};
"""
OVERLAPPING = """(() => {
  const svg = [...document.querySelectorAll('.chart svg')].flatMap((chart, n) =>
    [...chart.querySelectorAll('text')].map(t => [t.textContent, t.getBBox()]).map(
      ([text, b]) => ({row: n + ' ' + Math.round(b.y), from: b.x, to: b.x + b.width, text})));
  return [...window.texts, ...svg].sort((a, b) => a.row < b.row ? -1 : a.row > b.row ? 1 : a.from - b.from)
    .filter((t, i, all) => i && all[i - 1].row === t.row && t.text !== all[i - 1].text && t.from < all[i - 1].to - 1)
    .map(t => t.row + ': ' + t.text);
})()"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1400])
def test_labels_do_not_overlap(found, page, tmp_path, width):
    ranks = 16 * 8 * 3
    places = {
        "tp": tuple(r % 8 for r in range(ranks)),
        "pp": tuple(r // 8 % 16 for r in range(ranks)),
        "dp": tuple(r // 128 for r in range(ranks)),
    }
    noise = np.random.default_rng(7).normal(0.0, 30.0, (ranks, 3))
    stages = Level("pp", 15, tuple(range(16)), ((0.0, 1.0, 2.0, 3.0, 4.0),) * 16, 0)
    picture = SlowRankPicture(
        tuple(range(ranks)), ("node",) * ranks, places, (0, 1, 2), noise, abs(noise),
        {"waits on pp": abs(noise[:, 0])}, (stages,), None, (),
    )  # fmt: skip
    (tmp_path / "page.html").write_text(slowrank_html(found[0], picture))
    page.call("Page.addScriptToEvaluateOnNewDocument", source=NOTE_TEXT)
    page.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
    )
    page.open(tmp_path / "page.html")
    assert page.ask("window.texts.length") > 0
    assert page.ask(OVERLAPPING) == []
    assert page.ask("window.texts.filter(t => t.cut).map(t => t.text)") == []
