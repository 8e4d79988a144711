"""The comparison of two states: words, order, prices, and the goldens of the samples."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.paired import __main__ as program
from tests.paired.ablation import RULES
from tests.paired.ask import ask, checkout, in_short
from tests.paired.compare import changes, load, report, sign_test
from tests.paired.jobs import LOOKED_AT, ROOT, SAMPLES, Truth, make
from tests.paired.judge import holds_truth, judged, over_steps, price_error

GOLDENS = Path(__file__).with_name("goldens.jsonl")
GUILTY = Truth("localise", 1, "slow_compute", (3,), (3,), 1.25)


def answer(verdict="slow_rank", suspects=(3,), candidates=(), slowdown=1.25, **more):
    base = {"verdict": verdict, "cause": "gpu_compute", "suspects": list(suspects), "slowdown": slowdown}
    bounds = {"step_ms": 100.0, "low_ms": [19.0] * len(suspects), "high_ms": [21.0] * len(suspects)}
    return {**base, "candidates": list(candidates), **bounds, **more}


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("right", answer()),
        ("wrong", answer(suspects=[2, 3])),
        ("wrong", answer("imbalance", [])),
        ("false healthy", answer("healthy", [])),
        ("open", answer("inconclusive", [], [2])),
        ("open, culprit first", answer("inconclusive", [], [3, 2])),
        ("error", {"error": "exit 70"}),
    ],
)
def test_a_word_for_each_answer(word, told):
    assert judged(GUILTY, told) == word


def test_innocent_jobs_and_unrecorded_culprits():
    innocent = replace(GUILTY, culprits=(), accepted=())
    assert judged(innocent, answer()) == "false alarm"
    assert judged(replace(innocent, uneven=True), answer("imbalance")) == "right"
    assert judged(innocent, answer("healthy", [])) == "right"
    assert judged(replace(GUILTY, recorded=False), answer("inconclusive", [])) == "right"


def test_an_interval_is_held_against_the_truth():
    assert price_error(GUILTY, answer(slowdown=1.23)) == pytest.approx(-2.0)
    assert holds_truth(GUILTY, answer()) is True
    assert holds_truth(GUILTY, answer(low_ms=[5.0], high_ms=[7.0])) is False
    assert holds_truth(GUILTY, answer(suspects=[2])) is None


@pytest.mark.parametrize(
    ("compared", "slowdown"),
    [([11, 12], 1.5), ([10, 11, 12, 13], 1.25), ([11], 1.25), ([10, 13], 1.25), ([1, 2], 1.25), ([], 1.25)],
)
def test_a_price_is_held_by_compared_steps(compared, slowdown):
    """Two of four steps are struck: neither one step, nor steps without the fault, nor unknown ones count alone."""
    steps = tuple((n, 150 if n in {11, 12} else 100, 100) for n in range(10, 14))
    assert over_steps(replace(GUILTY, steps=steps), compared).slowdown == slowdown


@pytest.mark.parametrize(("kind", "steps"), [("cut_step", [11, 12]), ("no_whole_step", [])])
def test_a_cut_step_is_a_compared_one(kind, steps):
    price = {"slowdown": 1.1, "step_ms": 10.0}
    found = {
        "verdict": "healthy",
        "cause": None,
        "suspects": [],
        "what_if": price,
        "quality": [{"kind": kind}],
    }
    assert in_short({**found, "steps": {"analysed": [11, 12]}})["steps"] == steps


def rows(**words):
    def row(key, word, points):
        return {"key": key, "kind": "k", "word": word, "points": points, "answer": answer(slowdown=len(word))}

    return {key: row(key, *told) for key, told in words.items()}


def test_worse_answers_and_prices_need_a_reason():
    old = rows(a=("open", None), b=("right", 0.1), c=("right", 0.3), d=("right", 0.2))
    new = rows(a=("right", 0.0), b=("false healthy", None), c=("right ", 4.0), d=("right", 0.2))
    new["c"]["word"] = "right"
    assert [(c.key, c.worse) for c in changes(old, new)] == [("a", False), ("b", True), ("c", True)]
    text, unjustified = report(old, new)
    assert unjustified == 2
    assert "1 better, 1 worse" in text


def test_the_sign_test_is_exact():
    assert sign_test(0, 0) == 1.0
    assert sign_test(6, 0) == pytest.approx(2 / 64)
    assert sign_test(1, 3) == pytest.approx(0.625)


def test_goldens_hold_every_job_looked_at():
    found = load(GOLDENS)
    expected = {f"{suite}-{seed}" for suite, seeds in LOOKED_AT.items() for seed in seeds}
    assert expected == found.keys()
    samples = [found[f"samples-{n}"]["word"] for n in range(len(SAMPLES))]
    assert samples == ["right"] * len(SAMPLES)


def test_a_job_is_made_once(tmp_path):
    truth = make("samples", 2, tmp_path)
    assert make("samples", 2, tmp_path) == truth
    assert truth.culprits == (5,)
    assert json.loads((tmp_path / "samples-2" / "truth.json").read_text())["key"] == "samples-2"


def test_each_state_runs_its_own_code(tmp_path):
    """A checkout whose command prints an answer of its own: that of this folder must not come before it."""
    other = tmp_path / "other"
    (other / "cli").mkdir(parents=True)
    (other / "cli" / "__init__.py").touch()
    answer_of = (
        "{'what_if': {'slowdown': 7.0, 'step_ms': 1.0}, 'verdict': 'healthy', 'cause': None, 'suspects': []}"
    )
    program = f"import json\n\ndef main():\n    print(json.dumps({answer_of}))\n"
    (other / "cli" / "tracekit.py").write_text(program)
    assert ask(checkout(other, tmp_path), tmp_path, None)["slowdown"] == 7.0


def test_no_job_made_is_said(monkeypatch):
    monkeypatch.setattr(program, "asked", lambda *_: [])
    monkeypatch.setattr("sys.argv", ["paired", "--old", str(GOLDENS), "--new", str(ROOT)])
    with pytest.raises(SystemExit, match="no job was made"):
        program.main()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.place)
def test_a_rule_of_the_ablation_exists(rule):
    assert callable(rule.function())
