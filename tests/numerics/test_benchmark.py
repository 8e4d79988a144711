"""The benchmark itself: its cases can be run by today's trainer, and its scores mean what they say."""

import pytest

from reftrain.config.file import load
from reftrain.faults.bugs import catalogue, read_bugs
from reftrain.faults.bugs.bug import Patches
from tests.numerics.benchmark.__main__ import all_cases
from tests.numerics.benchmark.case import BASE, Case, Where, merged
from tests.numerics.benchmark.changed import ALL
from tests.numerics.benchmark.outside import OUTSIDE, ROOT
from tests.numerics.benchmark.score import score
from tests.numerics.benchmark.table import RULES, best_multiple, table

CASE = Case(
    "P00", "", {}, {}, ("bug",), Where(r"layers\.1\.out|layers\.1\.wo", r"layers\.1.*", ("tp",), "missing")
)


def answer(verdict="bug", tensor="layers.1.out", module="layers.1", axis="tp", step=0, collective=None):
    return {
        "verdict": verdict,
        "reason": "",
        "explanation": "missing term: the partial of tp rank 1",
        "first_divergence": {
            "step": step, "phase": "forward", "microbatch": 0, "module": module, "tensor": tensor,
            "collective": collective, "axis": axis, "evidence": "",
        },
    }  # fmt: skip


def test_every_case_is_accepted_by_the_trainer():
    cases = all_cases()
    assert len({case.name for case in cases}) == len(cases)
    planted = set()
    for case in cases:
        for tables in (case.parallel, case.baseline) if not case.trainer else ():
            config = load(None, merged(BASE, tables))
            assert config.mesh.world_size <= 16
        if case.trainer:
            continue
        planted |= {spec.bug.name for spec in read_bugs(load(None, merged(BASE, case.parallel)))}
        assert not load(None, merged(BASE, case.baseline)).evidence.faults
    assert planted == set(catalogue())


@pytest.mark.parametrize("patch", OUTSIDE, ids=lambda p: p.name)
def test_every_source_patch_still_finds_its_line(patch, tmp_path):
    source = patch.apply(tmp_path)
    path = source / "reftrain" / patch.file
    changed, sound = path.read_text(), (ROOT / "reftrain" / patch.file).read_text()
    compile(changed, str(path), "exec")
    assert changed != sound


def test_a_full_answer_scores_full():
    got = score(CASE, answer())
    assert (got.right, got.exact, got.module, got.axis, got.explained) == (True,) * 5
    by_collective = score(CASE, answer(tensor="else", collective="tp/all_reduce#layers.1.wo"))
    assert by_collective.exact


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        ({"verdict": "drift"}, {"right"}),
        ({"tensor": "layers.1.in"}, {"exact"}),
        ({"tensor": "layers.2.out", "module": "layers.2"}, {"exact", "module"}),
        ({"axis": "dp"}, {"axis"}),
        ({"step": 1}, {"exact"}),
    ],
)
def test_each_part_can_be_lost(given, lost):
    got = score(CASE, answer(**given)).to_json()
    assert {name for name in ("right", "exact", "module", "axis", "explained") if not got[name]} == lost


@pytest.mark.parametrize(("verdict", "alarm"), [("drift", False), ("bug", True), ("precision_policy", True)])
def test_false_alarms_are_counted(verdict, alarm):
    got = score(Case("D00", "", {}, {}, ("drift",)), answer(verdict))
    assert got.false_alarm is alarm
    assert got.right is not alarm


def test_the_table_lists_what_falls_short():
    rules = dict.fromkeys(RULES, False)
    results = [
        {
            "name": name,
            "bug": True,
            "expected": ["bug"],
            "others": rules,
            "score": score(CASE, given).to_json(),
        }
        for name, given in {"one": answer(), "two": answer(tensor="x")}.items()
    ]
    results.append({"name": "three", "bug": True, "expected": ["bug"], "error": "no rank answered"})
    text = table(results)
    assert "| `numerics compare` | 2 of 3 | 0 of 0 | 1 of 3 |" in text
    assert "2 cases fall short" in text
    assert table([]).endswith("\nNo case falls short.\n")
    assert "- three: could not be measured (no rank answered)" in text


def test_a_missed_bug_shows_its_size():
    result = {
        "name": "N one", "bug": True, "expected": ["bug"], "others": {}, "commit": "abc", "multiple": 3.0,
        "score": score(CASE, answer("rounding")).to_json(),
        "document": {"reason": "they take up to 0.4 of it", "explanation": None},
    }  # fmt: skip
    text = table([result])
    assert "1 cases at commit abc" in text
    assert "wanted bug: they take up to 0.4 of it" in text


def test_an_explanation_beside_the_truth_misleads():
    wrong = answer() | {"explanation": "2 times the right value"}
    got = score(CASE, wrong)
    assert (got.explained, got.misled) == (False, True)
    assert "**wrongly**" in table([{"name": "N", "bug": True, "score": got.to_json()}])


def test_perturbations_are_scored_at_their_best():
    sizes = [(True, 100.0), (True, 2.0), (False, 3.0), (False, 2.5), (False, 1.0)]
    told = best_multiple([{"bug": bug, "multiple": size} for bug, size in sizes])
    assert "calls 1 of 2 bugs and leaves 3 of 3" in told


@pytest.mark.parametrize("name", ALL)
def test_every_change_finds_what_it_replaces(name):
    patches = Patches()
    try:
        ALL[name](patches, 1)
        assert patches._undo
    finally:
        patches.undo()
