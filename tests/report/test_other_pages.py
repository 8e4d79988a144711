"""The pages of hang, whatif, breakdown and diff: what they say, and that no text of a file is obeyed in them."""

import re
from dataclasses import replace

import pytest

import tracekit
from tests.house.source import ROOT
from tests.report.browser import BROWSER
from tests.report.test_html import EVIL, charts, data_of, drawn, head_of, words_of
from tests.slowrank.jobs import grid, job
from tests.trend.jobs import windows
from tracekit.analysis.breakdown.analyse import analyse as breakdown
from tracekit.analysis.floor.analyse import floor
from tracekit.analysis.hang.analyse import analyse, illustrated
from tracekit.analysis.questions.answer import answer
from tracekit.dumps.load import load_dumps
from tracekit.findings.picture import HangPicture
from tracekit.findings.whatif import EVERYBODY
from tracekit.report.hang import hang_text
from tracekit.report.html.breakdown import breakdown_html
from tracekit.report.html.diff import diff_html
from tracekit.report.html.floor import floor_html
from tracekit.report.html.hang import frames_of, hang_html
from tracekit.report.html.mesh import mesh_html
from tracekit.report.html.trend import trend_html
from tracekit.report.html.triage import triage_html
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
    groups = tracekit.places(run)
    kernels = (replace(changed.kernels[0], what=EVIL),)
    least = floor(run)
    least = replace(least, notes=(EVIL,), kernels=(replace(least.kernels[0], name=EVIL),))
    hosts = tuple(replace(r, host=EVIL) for r in course.by_rank)
    evil = replace(finding, reason=EVIL, culprits=(culprit,), notes=(EVIL,))
    return {
        "hang": hang_html(evil, replace(picture, hosts=(EVIL,) * 16)),
        "whatif": whatif_html(priced),
        "breakdown": breakdown_html(parts),
        "floor": floor_html(least),
        "trend": trend_html(replace(course, reason=EVIL, notes=(EVIL,), by_rank=hosts)),
        "diff": diff_html(replace(changed, kernels=kernels, notes=(EVIL,))),
        "mesh": mesh_html(replace(groups, groups=(replace(groups.groups[0], descs=(EVIL,)),), notes=(EVIL,))),
    }


def test_hang_shows_the_state_of_every_rank(hung):
    field = data_of(hang_html(*hung))
    assert [r for r, state in zip(field["ranks"], field["states"], strict=True) if state == "culprit"] == [6]
    assert field["states"].count("waits") == 15
    assert list(field["places"]) == ["dp", "pp", "cp", "tp"]
    assert [index[6] for index in field["places"].values()] == [0, 1, 1, 0]
    assert field["done"][6] == "all_gather 14 of group 35"


def test_hang_says_what_to_do_next(hung):
    headline, next_steps = head_of(hang_html(*hung))
    assert headline == hung[0].reason
    assert [f"next: {step}" for step in next_steps] == hang_text(hung[0]).splitlines()[-1:]


@pytest.mark.parametrize(
    ("frame", "of_torch"),
    [
        ("torch/nn/modules/module.py:1 f", True),
        ("/usr/lib/python3.11/site-packages/torch/nn/modules/module.py:1 f", True),
        ("/usr/lib/python3/dist-packages/torch/cuda/streams.py:1 f", True),
        ("/opt/pytorch/torch/autograd/function.py:1 f", True),
        (r"C:\py\Lib\site-packages\torch\_ops.py:1 f", True),
        ("/home/me/torch/train.py:1 f", False),
        ("torchtitan/train.py:1 f", False),
        ("/usr/lib/python3.11/site-packages/torchtitan/train.py:1 f", False),
        ("train.py:1 torch/step", False),
        ("", False),
    ],
)
def test_frames_of_torch_are_told_apart(frame, of_torch):
    assert frames_of([frame]) == [(of_torch, [frame])]


def test_frames_of_torch_are_folded(hung):
    stack = hung[0].culprits[0].stack
    runs = frames_of(stack)
    assert [frame for _, run in runs for frame in run] == list(stack)
    assert [(of_torch, len(run)) for of_torch, run in runs[:4]] == [
        (True, 3),
        (False, 1),
        (True, 11),
        (False, 1),
    ]
    text = hang_html(*hung)
    assert "<summary>11 frames of torch</summary>" in text
    assert "<div>reftrain/parallel/data.py:52 __call__</div>" in text


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
    data = data_of(breakdown_html(finding))
    steps = {r.rank: r.parts.step_ns / r.steps / 1e6 for r in finding.by_rank}
    sums = {
        rank: sum(part["values"][i] for part in data["parts"])
        for i, rank in enumerate(data["ranks"])
        if rank != 6
    }
    assert sums == pytest.approx(steps, abs=0.02)


def test_breakdown_leaves_a_gap_where_ranks_are_missing(run):
    data = data_of(breakdown_html(breakdown(run)))
    assert data["ranks"] == list(range(8))
    assert all(part["values"][6] is None for part in data["parts"])
    assert all(what["means"][6] is None for what in data["what"])


def test_breakdown_names_its_largest_parts(run):
    finding = breakdown(run)
    first = max(finding.shares, key=lambda s: s.mean_ns)
    headline, next_steps = head_of(breakdown_html(finding))
    assert f"ms a step: {first.share:.1%} {first.part}, " in headline
    assert "tracekit slowrank" in next_steps[0]


def test_breakdown_marks_waiting_as_victims(run):
    assert [what["colour"] for what in data_of(breakdown_html(breakdown(run)))["what"]] == [
        "victim",
        "compute",
    ]


def test_whatif_draws_what_it_prices(run):
    finding = answer(run, ["rank=5", "axis=tp"])
    saved = data_of(whatif_html(finding))["bars"]["saved"]
    assert [row["what"] for row in saved["rows"]] == ["rank=5", "axis=tp", finding.together.question]
    assert saved["rows"][0]["value"] == pytest.approx(finding.answers[0].lost_ms, abs=1e-3)
    assert saved["scale"]["high"] >= saved["scale"]["pale"] == pytest.approx(0.02 * finding.step_ms)


def test_whatif_begins_with_the_best_fix(run):
    finding = answer(run, ["rank=5", "axis=tp"])
    best = finding.answers[0]
    headline, next_steps = head_of(whatif_html(finding))
    assert headline.startswith(f"{best.lost_ms:.1f} ms of {finding.step_ms:.1f} ms a step (")
    assert best.meaning in headline
    assert next_steps
    unproven = replace(finding, answers=tuple(replace(a, proven=False) for a in finding.answers))
    assert head_of(whatif_html(unproven))[0].startswith("no question saves more than the model's error")


def test_what_all_parts_save_at_once_blames_none(run):
    finding = answer(run, [])
    rest = tuple(a if a.question == EVERYBODY else replace(a, lost_ms=0.001) for a in finding.answers)
    page = whatif_html(replace(finding, answers=rest))
    assert head_of(page)[0].startswith("no part alone costs 2% of the step")
    assert '<header class="verdict calm">' in page
    (every,) = (row for row in data_of(page)["bars"]["saved"]["rows"] if row["what"] == EVERYBODY)
    assert "culprit" not in every["fill"]


def test_triage_begins_with_the_answer_of_its_kind():
    page = triage_html(tracekit.triage("sample_traces/nccl_hang"))
    headline, next_steps = head_of(page)
    assert headline.startswith("rank 5: host stalled")
    assert next_steps
    assert "16 files" in page
    assert "<h2>Quality of the input</h2>" in page
    assert "Nothing was repaired" not in page


def test_floor_draws_a_waterfall_to_the_model(run):
    finding = floor(run, flops=8e9, peak_tflops=1.0)
    page = floor_html(finding)
    bars = [tuple(map(float, b)) for b in re.findall(r"margin-left:([\d.]+)%;width:([\d.]+)%", page)]
    ends = [100.0, *(left for left, _ in bars)]
    assert len(bars) == sum(p.ns > 0 for p in finding.parts)
    assert [left + width for left, width in bars] == pytest.approx(ends[:-1], abs=0.02)
    assert bars[-1] == (0.0, pytest.approx(100 * finding.mfu, abs=0.01))
    assert f"{finding.mfu:.1%} of peak" in head_of(page)[0]


def test_changes_are_drawn_as_they_are_told(changed):
    page = diff_html(changed)
    charts_of = data_of(page)["bars"]
    assert changed.verdict == "faster"
    assert charts_of["ranks"]["rows"][0]["what"] == "rank 5"
    for kind, rows in (("parts", changed.parts), ("ranks", changed.ranks), ("kernels", changed.kernels)):
        drawn_rows = charts_of[kind]["rows"]
        assert [(r["what"], r["value"]) for r in drawn_rows] == [
            (c.what, round(c.change_ns / 1e6, 3)) for c in rows
        ]
        assert [len(r["fill"]) == 1 for r in drawn_rows] == [c.proven for c in rows]
        assert all(f"{c.change_ns / 1e6:+.3f}" in page for c in rows)


def test_large_change_of_one_rank_stands_out(changed):
    step = changed.step.before_ns
    rank = replace(
        changed.ranks[0], what="rank 5", before_ns=step / 2, after_ns=step * 0.7, proven=False, p=0.1
    )
    others = tuple(replace(rank, what=f"rank {i}", after_ns=step / 2 + i * 1e-4 * step) for i in range(4))
    page = diff_html(replace(changed, ranks=(rank, *others)))
    first, *rest = data_of(page)["bars"]["ranks"]["rows"]
    assert (first["fill"], first["faint"]) == (["culprit", "page"], False)
    assert all(row["faint"] for row in rest)
    assert (
        f"rank 5 changed most, own time {rank.change_ns / 1e6:+.1f} ms a step (not proven)"
        in head_of(page)[0]
    )
    twice = diff_html(replace(changed, ranks=(rank, replace(rank, what="rank 6"))))
    assert "changed most" not in head_of(twice)[0]


def test_equal_runs_are_faint(run):
    page = diff_html(tracekit.diff(run, run))
    assert all(row["faint"] for chart in data_of(page)["bars"].values() for row in chart["rows"])
    assert all(
        chart["scale"]["high"] >= chart["scale"]["pale"] > 0 for chart in data_of(page)["bars"].values()
    )


def test_mesh_shows_every_rank_and_group(run):
    finding = tracekit.places(run)
    page = mesh_html(finding)
    data = data_of(page)
    assert data["states"] == ["read"] * 6 + ["no trace", "read"]
    assert data["places"] == {"dp": [0, 0, 1, 1, 2, 2, 3, 3], "tp": [0, 1] * 4}
    assert head_of(page)[0].startswith("tp=2, cp=1, pp=1, dp=4 ")
    assert "4 groups of 2" in words_of(page)


def test_page_of_many_changes_is_bounded(changed):
    many = tuple(replace(changed.ranks[0], what=f"rank {i}") for i in range(16_384))
    page = diff_html(replace(changed, ranks=many))
    assert len(page.encode()) < 10_000_000
    assert len(data_of(page)["bars"]["ranks"]["rows"]) == 24
    assert "15884 smaller changes are left out" in page


@pytest.mark.parametrize("name", ["hang", "whatif", "breakdown", "floor", "diff", "trend", "mesh"])
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
    begin, end = drawn_of["drift"]
    assert end - begin == pytest.approx(course.step.drift_ns / 1e6, abs=2e-3)
    assert [r["rank"] for r in drawn_of["ranks"] if r["slower"]] == [r.rank for r in course.slower] == [2]
    assert all(
        len(y) == len(course.points) for y in (*(part["ms"] for part in drawn_of["parts"]), drawn_of["times"])
    )


@pytest.mark.slow
@BROWSER
@pytest.mark.parametrize(
    ("name", "count"), [("hang", 1), ("whatif", 1), ("breakdown", 4), ("diff", 3), ("trend", 3), ("mesh", 1)]
)
def test_browser_draws_the_other_pages(name, count, pages, tmp_path):
    assert len(charts(drawn(pages[name], tmp_path))) == count


def test_floor_shows_bars_of_parts_however_small(run):
    page = floor_html(floor(run))
    bars = re.findall(r"margin-left:[\d.]+%;width:[\d.]+%;min-width:(\d)px", page)
    assert bars
    assert set(bars) == {"3"}
    assert page.count("background:var(--panel)") >= len(bars)  # the whole step, behind each bar
