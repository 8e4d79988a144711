"""The pages of hang, whatif, breakdown and diff: what they say, and that no text of a file is obeyed in them."""

from dataclasses import replace

import pytest

import tracekit
from tests.house.source import ROOT
from tests.report.test_html import BROWSER, EVIL, charts, data_of, drawn
from tests.slowrank.jobs import grid, job
from tests.trend.jobs import windows
from tracekit.analysis.breakdown.analyse import analyse as breakdown
from tracekit.analysis.hang.analyse import analyse, illustrated
from tracekit.analysis.questions.answer import answer
from tracekit.dumps.load import load_dumps
from tracekit.findings.picture import HangPicture
from tracekit.report.html.breakdown import breakdown_html
from tracekit.report.html.diff import diff_html
from tracekit.report.html.hang import hang_html
from tracekit.report.html.trend import trend_html
from tracekit.report.html.whatif import whatif_html


@pytest.fixture(scope="module")
def hung():
    dumps = load_dumps([str(ROOT / "sample_traces" / "hang_host_stall")])
    finding, picture = illustrated(dumps)
    assert finding == analyse(dumps)
    return finding, picture


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return job(tmp_path_factory.mktemp("job"), grid(tp=2, dp=4), slow={5: 1.4}, lost=[6])


@pytest.fixture(scope="module")
def changed(run, tmp_path_factory):
    return tracekit.diff(run, job(tmp_path_factory.mktemp("after"), grid(tp=2, dp=4), lost=[6]))


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A rank that gets slower over twelve windows."""
    folder = tmp_path_factory.mktemp("windows")
    return tracekit.trend(windows(folder, 12, lambda rank, window: 1 + 0.02 * window * (rank == 2)))


@pytest.fixture(scope="module")
def pages(hung, run, changed, course):
    """Every page, of findings whose texts are hostile."""
    finding, picture = hung
    culprit = replace(finding.culprits[0], host=EVIL, stack=(EVIL,))
    priced, parts = answer(run, ["rank=5", "axis=tp"]), breakdown(run)
    priced = replace(
        priced, notes=(EVIL,), answers=(replace(priced.answers[0], question=EVIL), *priced.answers[1:])
    )
    parts = replace(parts, notes=(EVIL,), by_rank=tuple(replace(r, host=EVIL) for r in parts.by_rank))
    kernels = (replace(changed.kernels[0], what=EVIL),)
    hosts = tuple(replace(r, host=EVIL) for r in course.by_rank)
    evil = replace(finding, reason=EVIL, culprits=(culprit,), notes=(EVIL,))
    return {
        "hang": hang_html(evil, replace(picture, hosts=(EVIL,) * 16)),
        "whatif": whatif_html(priced),
        "breakdown": breakdown_html(parts),
        "trend": trend_html(replace(course, reason=EVIL, notes=(EVIL,), by_rank=hosts)),
        "diff": diff_html(replace(changed, kernels=kernels, notes=(EVIL,))),
    }


def test_hang_shows_where_everybody_stands(hung):
    field = data_of(hang_html(*hung))["mesh"]
    assert [r for r, state in zip(field["ranks"], field["states"], strict=True) if state == "culprit"] == [6]
    assert field["states"].count("waits") == 15
    assert list(field["places"]) == ["dp", "pp", "cp", "tp"]
    assert [index[6] for index in field["places"].values()] == [0, 1, 1, 0]
    assert field["done"][6] == "all_gather 14 of group 35"


def test_hang_lists_stacks_and_frontiers(hung):
    text = hang_html(*hung)
    assert "distributed_c10d.py:4387 all_gather_single" in text
    assert all(f"{g.group.name} {g.group.desc}" in text for g in hung[0].groups)


def test_missing_dumps_are_no_health():
    dumps = load_dumps(
        [str(ROOT / "sample_traces" / "hang_host_stall" / "fr" / f"rank_{r}") for r in range(6)]
    )
    states = illustrated(dumps)[1].states
    assert states[6:] == ("no dump",) * 10
    assert "does not wait" not in states


def test_parts_of_the_page_sum_to_the_step(run):
    finding = breakdown(run)
    parts = data_of(breakdown_html(finding))["parts"]
    steps = [r.parts.step_ns / r.steps / 1e6 for r in sorted(finding.by_rank, key=lambda r: r.rank)]
    assert [sum(row) for row in zip(*parts.values(), strict=True)] == pytest.approx(steps, abs=0.02)


def test_whatif_draws_what_it_prices(run):
    finding = answer(run, ["rank=5", "axis=tp"])
    saved = data_of(whatif_html(finding))["saved"]
    assert [row["question"] for row in saved] == ["rank=5", "axis=tp", finding.together.question]
    assert saved[0]["lost"] == pytest.approx(finding.answers[0].lost_ms, abs=1e-3)


def test_changes_are_drawn_as_they_are_told(changed):
    page = diff_html(changed)
    drawn_rows = data_of(page)["changes"]
    assert changed.verdict == "faster"
    assert drawn_rows["ranks"][0]["what"] == "rank 5"
    for kind, rows in (("parts", changed.parts), ("ranks", changed.ranks), ("kernels", changed.kernels)):
        told = [(c.what, round(c.change_ns / 1e6, 3), c.proven) for c in rows]
        assert [(r["what"], r["change"], r["proven"]) for r in drawn_rows[kind]] == told
        assert all(f"{change:+.3f}" in page for _, change, _ in told)


def test_page_of_many_changes_is_bounded(changed):
    many = tuple(replace(changed.ranks[0], what=f"rank {i}") for i in range(16_384))
    page = diff_html(replace(changed, ranks=many))
    assert len(page.encode()) < 10_000_000
    assert len(data_of(page)["changes"]["ranks"]) == 24
    assert "15884 smaller changes are left out" in page


@pytest.mark.parametrize("name", ["hang", "whatif", "breakdown", "diff", "trend"])
def test_names_stay_inert_on_every_page(name, pages):
    told = pages[name].split("<script>")[0]
    assert "<img" not in told
    assert "\u2028" not in told


def test_largest_hang_stays_below_ten_megabytes(hung):
    ranks = range(16_384)
    places = {
        "dp": tuple(r // 128 for r in ranks),
        "pp": tuple(r // 8 % 16 for r in ranks),
        "tp": tuple(r % 8 for r in ranks),
    }
    picture = HangPicture(
        tuple(ranks), tuple(f"node{r // 8:04}.cluster" for r in ranks), places, ("waits",) * len(ranks)
    )
    assert len(hang_html(hung[0], picture).encode()) < 10_000_000


def test_course_is_drawn_as_it_is_told(course):
    drawn_of = data_of(trend_html(course))["trend"]
    assert drawn_of["step"] == [round(p.step_ns / 1e6, 3) for p in course.points]
    assert drawn_of["drift"] == round(course.step.drift_ns / 1e6, 3)
    assert [r["rank"] for r in drawn_of["ranks"] if r["slower"]] == [r.rank for r in course.slower] == [2]
    assert all(len(y) == len(course.points) for y in (*drawn_of["parts"].values(), drawn_of["hours"]))


@pytest.mark.slow
@BROWSER
@pytest.mark.parametrize(
    ("name", "count"), [("hang", 1), ("whatif", 1), ("breakdown", 2), ("diff", 3), ("trend", 3)]
)
def test_browser_draws_the_other_pages(name, count, pages, tmp_path):
    assert len(charts(drawn(pages[name], tmp_path))) == count
