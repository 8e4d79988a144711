"""The committed samples: their size, their truth, and the answer that `tracekit slowrank` gives on them."""

import json
from pathlib import Path

import pytest

from tests.cli.program import Program
from tests.marks import quick_first

SAMPLES = Path(__file__).parents[2] / "sample_traces"
CASES = sorted(path.parent for path in SAMPLES.glob("*/expected.json"))


@pytest.fixture
def tracekit(monkeypatch, capfd):
    """The answer of a command on a sample."""

    def ask(command, case):
        done = Program(monkeypatch, capfd)(command, case, "--json", "-")
        assert done.code == 0, done.err
        return json.loads(done.out)

    return ask


def test_there_are_samples_of_modest_size():
    sixteen = {"healthy", "slow_compute", "slow_link", "data_imbalance", "hang_host_stall"}
    assert {"demo_healthy", "demo_slow_tp", "nccl_hang", *sixteen} == {case.name for case in CASES}
    for name in sixteen:
        assert json.loads((SAMPLES / name / "run.json").read_text())["world_size"] == 16
    assert sum(p.stat().st_size for p in SAMPLES.rglob("*") if p.is_file()) < 16e6


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_expected_answer_agrees_with_the_truth(case):
    faults = json.loads((case / "run.json").read_text())["faults"]
    expected = json.loads((case / "expected.json").read_text())
    named = expected.get("suspects", expected.get("culprits"))
    meant = [f["rank"] for f in faults if f["rank"] is not None]
    assert meant == [blamed["rank"] for blamed in named]


@pytest.mark.parametrize(
    "case", quick_first(3, [c for c in CASES if (c / "trace").is_dir()]), ids=lambda case: case.name
)
def test_slowrank_gives_the_expected_answer(tracekit, case):
    answer = tracekit("slowrank", case)
    expected = json.loads((case / "expected.json").read_text())
    assert answer["verdict"] == expected["verdict"]
    assert answer["cause"] == expected["cause"]
    assert [(s["rank"], s["coords"]) for s in answer["suspects"]] == [
        (s["rank"], s["coords"]) for s in expected["suspects"]
    ]
    assert [(p["dim"], p["index"]) for p in answer["path"]] == [
        (p["dim"], p["index"]) for p in expected["path"]
    ]


@pytest.mark.parametrize("case", [c for c in CASES if (c / "fr").is_dir()], ids=lambda case: case.name)
def test_hang_gives_the_expected_answer(tracekit, case):
    answer = tracekit("hang", case)
    expected = json.loads((case / "expected.json").read_text())
    assert answer["verdict"] == expected["verdict"]
    assert answer["victims"] == expected["victims"]
    culprits = [
        {"rank": c["rank"], "kind": c["kind"], "group": c["group"]["ranks"], "op": c["collective"]["op"]}
        for c in answer["culprits"]
    ]
    assert culprits == expected["culprits"]
