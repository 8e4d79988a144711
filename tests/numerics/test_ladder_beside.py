"""The ladder beside a comparison: given, kept or made, in every form of the answer; else the command that makes it."""

import json
import shutil
from dataclasses import replace
from html import unescape

import pytest
from click import UsageError
from click.testing import CliRunner
from tracekit_cli.numerics import numerics as program

from numerics.comparison.compare import compare
from numerics.findings import Cell
from numerics.precision import beside
from numerics.precision.beside import PAIR, LadderBeside, climb_and_keep, ladder_beside
from numerics.precision.ladder import ladder
from numerics.report.html import compare_html
from tests.numerics.test_ladder import drift, one_percent_in_second, pairs, run
from tests.numerics.test_ladder_page import finding, rung, shown
from tests.report.browser import BROWSER, WAIT_S, chromium
from tests.report.test_html import EVIL
from tracekit.errors import InputError
from tracekit.page.palette import GROUND


@pytest.fixture
def climbed(tmp_path, monkeypatch):
    """A BF16 pair (a_bf16, b_bf16), and a trainer that repeats it with one per cent in one gradient."""
    made = pairs(tmp_path, one_percent_in_second)
    count = []

    def climb(parallel, baseline, out, progress=None):
        count.append(parallel)
        shutil.rmtree(out, ignore_errors=True)
        finer = [
            (
                run(out / f"parallel_{p}", p, one_percent_in_second),
                run(out / f"baseline_{p}", p, lambda n, v, u: v),
            )
            for p in ("fp32", "fp64")
        ]
        return ladder([(parallel, baseline), *finer])

    monkeypatch.setattr(beside, "climb", climb)
    return (*made[0], count)


def answered(*arguments):
    """The answer of `numerics compare` without a replay."""
    given = ["compare", "--no-replay", "--quiet", *map(str, arguments)]
    answer = CliRunner().invoke(program, given, standalone_mode=False, catch_exceptions=False)
    return answer.stdout


@pytest.mark.slow
def test_every_form_tells_the_ladder(climbed, tmp_path):
    parallel, baseline, _ = climbed
    forms = [f"--{kind}={tmp_path / kind}" for kind in ("json", "html", "markdown")]
    text = answered("--parallel", parallel, "--baseline", baseline, "--ladder", *forms)
    told = json.loads((tmp_path / "json").read_text())["ladder"]
    page, chat = unescape((tmp_path / "html").read_text()), (tmp_path / "markdown").read_text()
    assert (told["schema"], told["verdict"]) == ("numerics.ladder/1", "bug")
    assert told["first"]["tensor"] == "second.weight.grad"
    for form in (text, page, chat):
        assert told["reason"] in form
        assert "1 stay" in form
    assert page.count('<table class="map">') == 5  # of the comparison, of the ladder, of its three rungs


def test_a_ladder_that_stands_is_shown_unasked(climbed):
    parallel, baseline, count = climbed
    climb_and_keep(parallel, baseline, parallel / "ladder")
    assert "\nladder:  BUG: 1 tensor stays apart" in answered("--parallel", parallel, "--baseline", baseline)
    answered("--parallel", parallel, "--baseline", baseline, "--ladder")
    assert len(count) == 1


@pytest.mark.slow
def test_a_ladder_of_other_runs_is_never_shown(climbed, tmp_path):
    parallel, baseline, count = climbed
    climb_and_keep(parallel, baseline, parallel / "ladder")
    other = run(tmp_path / "other", "bf16", drift)
    assert "ladder:" not in answered("--parallel", parallel, "--baseline", other)
    assert "repeats other runs" in ladder_beside(compare(parallel, other)).why_not
    answered("--parallel", parallel, "--baseline", other, "--ladder")
    assert len(count) == 2


@pytest.mark.slow
def test_a_run_recorded_anew_has_no_ladder_yet(climbed):
    parallel, baseline, _ = climbed
    climb_and_keep(parallel, baseline, parallel / "ladder")
    shutil.rmtree(parallel / "capture")
    run(parallel, "bf16", drift)
    assert ladder_beside(compare(parallel, baseline)).finding is None


@pytest.mark.parametrize("note", ["", "[", "[" * 4000, "7", "{}", '{"runs": ["", ""]}', None])
@pytest.mark.quick(1)
def test_damaged_notes_are_no_ladder(climbed, note):
    parallel, baseline, _ = climbed
    climb_and_keep(parallel, baseline, parallel / "ladder")
    path = parallel / "ladder" / PAIR
    if note is None:
        path.write_text(path.read_text().replace("fp64", "../../fp64").replace("fp32", "x"))
    else:
        path.write_text(note)
    found = ladder_beside(compare(parallel, baseline))
    assert found.finding is None
    assert found.why_not
    assert found.command.endswith("--ladder --html FILE")


@pytest.mark.slow
def test_pairs_give_the_ladder_of_any_trainer(tmp_path):
    (parallel, baseline), *finer = pairs(tmp_path, drift)
    flags = [part for pair in finer for part in ("--pair", *pair)]
    assert "ladder:  DRIFT, not a bug: every distance falls" in answered(
        "--parallel", parallel, "--baseline", baseline, *flags
    )


def test_a_page_without_a_ladder_names_the_command(tmp_path):
    (parallel, baseline), *_ = pairs(tmp_path, drift)
    compared = compare(parallel, baseline)
    page = unescape(compare_html(compared, ladder_beside(compared)))
    assert "No ladder: it was not asked for." in page
    assert f"numerics compare --parallel {parallel} --baseline {baseline} --ladder --html FILE" in page
    alone = replace(compared, baseline=None)
    assert "name it with --baseline" in compare_html(alone, ladder_beside(alone))
    apart = replace(compared, verdict="incomparable")
    assert "do not compute the same thing" in compare_html(apart, ladder_beside(apart, make=True))


def test_a_trainer_that_repeats_nothing_is_told_before_work(tmp_path, monkeypatch):
    (parallel, baseline), *_ = pairs(tmp_path, drift)
    compared = compare(parallel, baseline)

    def none(source):
        raise InputError("no replayer")

    monkeypatch.setattr(beside, "replayer", none)
    monkeypatch.setattr("numerics.comparison.next_step.replayer", none)
    assert ladder_beside(compared).command.startswith("numerics ladder --pair ")
    monkeypatch.setattr(
        "tracekit_cli.numerics_commands.compare.compare_runs", lambda *_: pytest.fail("was compared")
    )
    with pytest.raises(InputError, match="no replayer"):
        answered("--parallel", parallel, "--baseline", baseline, "--ladder")


@pytest.mark.parametrize("flags", [["--ladder"], ["--ladder", "--pair", "a", "b"], ["--pair", "a", "b"]])
def test_what_makes_no_ladder_is_refused(flags, tmp_path):
    baseline = ["--baseline", tmp_path] if "--ladder" in flags and "--pair" in flags else []
    with pytest.raises(UsageError, match="ladder"):
        answered("--parallel", tmp_path, *baseline, *flags)


@pytest.mark.slow
def test_a_picture_that_is_cut_says_so(tmp_path):
    (parallel, baseline), *_ = pairs(tmp_path, drift)
    compared = compare(parallel, baseline)
    cells = tuple(Cell(f"m{m}", 0, "forward", 1, 0, 0, None) for m in range(120))
    assert "At most 120 modules" in compare_html(replace(compared, cells=cells))
    assert "At most 120 modules" not in compare_html(replace(compared, cells=cells[1:]))


@BROWSER
@pytest.mark.slow
def test_browser_shows_ladder_below_comparison(tmp_path):
    """Nothing is asked for or complained of, hostile names stay inert, both answers have a colour, also in the dark."""
    (parallel, baseline), *_ = pairs(tmp_path, drift)
    evil = replace(rung(shape="plateau"), tensor=EVIL, module=EVIL)
    climbed = LadderBeside(replace(finding(evil, rung(1)), reason=EVIL, notes=(EVIL,)))
    file = tmp_path / "compare.html"
    file.write_text(compare_html(compare(parallel, baseline), climbed), encoding="utf-8")
    with chromium(tmp_path) as page:
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        page.call("Emulation.setEmulatedMedia", media="screen", features=dark)
        page.call("Page.navigate", url=file.as_uri())
        for _ in range(WAIT_S * 1000):
            if page.ask("document.readyState === 'complete' && document.querySelectorAll('.map').length"):
                break
        assert page.complaints == []
        assert page.requests == [file.as_uri()]
        assert page.ask("document.querySelectorAll('img, script').length") == 0
        assert page.ask("document.querySelectorAll('.map').length") == 5
        assert page.ask("document.querySelectorAll('.verdict').length") == 2
        assert page.ask("getComputedStyle(document.body).backgroundColor") == shown(GROUND.dark)
        widest = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.ask(widest) == 0
