"""The page of the ladder: what its pictures say, that no text of a capture is obeyed, and a browser that opens it."""

import math
import re
import shlex
import time
from dataclasses import replace
from html import escape, unescape

import pytest
from click.testing import CliRunner
from tracekit_cli.numerics import numerics as program

from numerics.comparison.compare import compare
from numerics.findings import Divergence
from numerics.precision.ladder import LadderFinding, Rung, ladder
from numerics.report.html import compare_html
from numerics.report.ladder_html import ladder_html
from tests.numerics.test_ladder import one_percent_in_second, pairs
from tests.report.browser import BROWSER, WAIT_S, chromium
from tests.report.test_html import EVIL, head_of
from tracekit.page.palette import GROUND, PALETTE
from tracekit.page.shell import About
from tracekit.text import plain

CULPRIT, ROUNDING, EQUAL, REPORTED = "--culprit", "--rounding", "--panel", "--reported"


def rung(number=0, shape="slope", distances=(1e-2, 1e-7, 1e-16), kind="activation", module="m", step=0):
    """A tensor on the ladder."""
    return Rung(step, "forward", kind, f"t{number}", number, distances, 1.0, shape, module)


def finding(*rungs):
    return LadderFinding("bug", "why", ("bf16", "fp32", "fp64"), rungs, None, ())


def pictures(page):
    """The fields of each picture: the ladder's, then one for each rung; (style or class, what is said) of each."""
    return [
        [
            (look, unescape(said))
            for look, said in re.findall(r'<td (style="\S+|class="unknown") title="(.*?)"', table)
        ]
        for table in re.findall(r'<table class="map">(.*?)</table>', page, re.DOTALL)
    ]


def depths(page):
    """How strong the first field of each rung's picture is."""
    return [float(re.search(r"opacity:([\d.]+)", fields[0][0])[1]) for fields in pictures(page)[1:]]


def test_a_bug_has_the_colour_of_culprits(tmp_path):
    found = ladder(pairs(tmp_path, one_percent_in_second))
    page = ladder_html(found)
    whole, *rungs = pictures(page)
    assert [CULPRIT in look for look, _ in whole] == [False, True, False]
    assert [ROUNDING in look for look, _ in whole] == [True, False, True]
    assert re.findall(r"<tr><th>(\w+\.weight\.grad)</th>", page)[:3] == [r.module for r in found.rungs]
    assert len(rungs) == 3
    assert found.reason in unescape(page)


def test_pages_say_what_to_do_next(tmp_path):
    ladders = pairs(tmp_path, one_percent_in_second)
    headline, next_steps = head_of(ladder_html(ladder(ladders)))
    assert headline.startswith("1 tensor stays apart")
    assert next_steps == ["look at second.weight.grad in step 0, reduce, where the difference begins"]
    same = compare(ladders[0][0], ladders[0][0])
    assert head_of(compare_html(same))[1] == [same.next or "nothing to fix"]
    place = Divergence(-1, "init", None, "layers.1", "layers.1.weight", None, None, (0,))
    bug = replace(same, verdict="bug", next=None, first_divergence=place)
    assert head_of(compare_html(bug))[1] == ["look at layers.1 in init, where the difference begins"]
    assert head_of(compare_html(replace(bug, first_divergence=None)))[1] == []


def test_rounding_fades_and_a_bug_does_not():
    fades = depths(ladder_html(finding(rung())))
    stays = depths(ladder_html(finding(rung(shape="plateau", distances=(1e-2, 1e-2, 1e-2)))))
    assert fades[0] > fades[1] > fades[2] > 0
    assert stays[0] == stays[1] == stays[2] == fades[0]


def test_one_that_stays_outweighs_many_that_fall():
    (field,) = pictures(ladder_html(finding(*map(rung, range(9)), rung(9, "plateau"))))[0]
    assert CULPRIT in field[0]
    assert field[1] == "1 stay apart, 9 fall with the format"


def test_a_reported_value_is_no_bug_in_the_picture():
    (field,) = pictures(ladder_html(finding(rung(shape="plateau", kind="metric"))))[0]
    assert REPORTED in field[0]


@pytest.mark.parametrize("others", [(), (0.0,), (1e-3,)])
def test_what_cannot_be_compared_is_never_green(others):
    rungs = [rung(0, "unknown", (math.nan, math.nan, math.nan))]
    rungs += [rung(1, "equal" if d == 0 else "slope", (d, d, d)) for d in others]
    fields = [field for picture in pictures(ladder_html(finding(*rungs))) for field in picture]
    assert len(fields) == 4
    assert all("1 not comparable" in said for _, said in fields)
    assert not any(EQUAL in look for look, _ in fields)


def test_rungs_are_counted_each_for_itself():
    page = ladder_html(finding(rung(0, distances=(0.5, 0.0, 0.0)), rung(1, "unknown", (0.0, math.nan, 1e-9))))
    rows = re.findall(r"<tr><th>(bf16|fp32|fp64)</th>(.*?)</tr>", page)
    counts = {policy: re.findall(r'<td(?: class="n")?>(.*?)</td>', row) for policy, row in rows}
    assert counts == {
        "bf16": ["1", "1", "0", "5.0e-01", "t0"],
        "fp32": ["1", "0", "1", "-", "-"],
        "fp64": ["1", "1", "0", "1.0e-09", "t1"],
    }


@pytest.mark.slow
def test_a_large_page_is_bounded_and_says_so():
    rungs = [rung(m * 100 + s, module=f"layer{m}", step=s) for m in range(150) for s in range(100)]
    page = ladder_html(finding(*rungs))
    assert len(page.encode()) < 10_000_000
    assert len(pictures(page)[0]) == 120 * 60
    assert "30 more modules and 40 more steps are not drawn" in page


def test_names_of_captures_stay_inert():
    evil = replace(rung(shape="plateau"), tensor=EVIL, module=EVIL, phase=EVIL)
    page = ladder_html(replace(finding(evil), reason=EVIL, notes=(EVIL,), first=evil))
    assert "<img" not in page
    assert "<script" not in page
    assert "\u2028" not in page
    assert page.count(escape(plain(EVIL))) > 6


@pytest.mark.slow
def test_the_command_writes_the_page(tmp_path):
    flags = [str(part) for pair in pairs(tmp_path, one_percent_in_second) for part in ("--pair", *pair)]
    arguments = ["ladder", *flags, "--html", str(tmp_path / "ladder.html")]
    assert CliRunner().invoke(program, arguments, standalone_mode=False).return_value == 1
    made = [(tmp_path / f"a_{p}", tmp_path / f"b_{p}") for p in ("bf16", "fp32", "fp64")]
    page = (tmp_path / "ladder.html").read_text(encoding="utf-8")
    about = About(shlex.join(["numerics", *arguments[:-2]]), tuple(str(run) for pair in made for run in pair))
    assert page == ladder_html(ladder(made), about)


def shown(colour):
    """A colour as a browser tells it."""
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


@BROWSER
def test_browser_opens_it_without_request(tmp_path):
    """Nothing is asked for or complained of, fields have size and colour on the screen, and dark follows the system."""
    evil = replace(rung(shape="plateau"), tensor=EVIL, module=EVIL)
    file = tmp_path / "ladder.html"
    file.write_text(ladder_html(replace(finding(evil, rung(1)), reason=EVIL)), encoding="utf-8")
    ground = "getComputedStyle(document.body).backgroundColor"
    with chromium(tmp_path) as page:
        page.call("Page.navigate", url=file.as_uri())
        begun = time.monotonic()
        while not page.ask("document.readyState === 'complete' && document.querySelectorAll('.map').length"):
            assert time.monotonic() - begun < WAIT_S
        assert page.complaints == []
        assert page.requests == [file.as_uri()]
        assert page.ask("document.querySelectorAll('img, script').length") == 0
        assert page.ask("document.querySelectorAll('.map').length") == 4
        assert page.ask("document.querySelector('.map td').getBoundingClientRect().width") > 10
        assert page.ask("getComputedStyle(document.querySelector('.map td')).backgroundColor") == shown(
            PALETTE["culprit"].light
        )
        grounds = []
        for scheme, media in (("light", "screen"), ("dark", "screen"), ("dark", "print")):
            page.call(
                "Emulation.setEmulatedMedia",
                media=media,
                features=[{"name": "prefers-color-scheme", "value": scheme}],
            )
            grounds.append(page.ask(ground))
        assert grounds[0] == grounds[2] == shown(GROUND.light)
        assert grounds[1] == shown(GROUND.dark)
