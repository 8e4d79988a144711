"""The site of docs/ builds without a warning, tells every option and public name, and asks nothing of a network."""

import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
from tracekit_cli.numerics import numerics as numerics_program
from tracekit_cli.reftrain import reftrain
from tracekit_cli.tracekit import tracekit as tracekit_program

import numerics
import tracekit
from tests.house.source import ROOT
from tests.report.browser import BROWSER, WAIT_S, chromium

NEEDED = ("mkdocs", "material", "mkdocstrings_handlers", "mkdocs_click")
LACKING = [name for name in NEEDED if find_spec(name) is None]
ASKS = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["']?((?:https?:)?//[^"'> ]*)""")
FETCHED = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')]*)""")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(LACKING), reason=f"the extra docs is not installed: no {', '.join(LACKING)}"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", out],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return out


def test_no_page_asks_a_network(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    assert [found for page in pages for found in ASKS.findall(page.read_text(encoding="utf-8"))] == []
    styles = [*site.rglob("*.css"), *pages]
    assert [found for style in styles for found in FETCHED.findall(style.read_text(encoding="utf-8"))] == []


@BROWSER
@pytest.mark.parametrize("page", ["index.html", "guide/slow.html"])
def test_search_answers_in_a_page_opened_as_file(site, tmp_path, page):
    with chromium(tmp_path) as tab:
        tab.call("Page.navigate", url=(site / page).as_uri() + "?q=flight-recorder")
        until = time.monotonic() + WAIT_S
        results = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href).join(' ')"
        while not (links := tab.ask(results)):
            assert time.monotonic() < until, tab.complaints
            time.sleep(0.05)
    assert f"{site.as_uri()}/hang.html" in links
    assert {address.partition(":")[0] for address in tab.requests} <= {"file", "data", "about"}


def test_every_option_is_told(site):
    told = (site / "reference" / "options.html").read_text(encoding="utf-8")
    for program in (tracekit_program, numerics_program, reftrain):
        for name, entry in program.entries.items():
            assert f"{program.name} {name}" in told
            lacking = {o for p in entry.load().params for o in p.opts if o.startswith("--") and o not in told}
            assert lacking == set()


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("tracekit", {*tracekit.__all__} - {*tracekit.findings.__all__} - {"findings"}),
        ("findings", {*tracekit.findings.__all__}),
        ("numerics", {*numerics.__all__}),
    ],
)
def test_every_public_name_is_told(page, names, site):
    told = (site / "reference" / f"{page}.html").read_text(encoding="utf-8")
    assert names - set(re.findall(r'<h[2-6] id="[\w.]*?(\w+)"', told)) == set()
