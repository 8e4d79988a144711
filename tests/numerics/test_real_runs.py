"""`compare` on real runs of the trainer: drift is proved, planted bugs are called and placed, invariants hold."""

from html import unescape

import pytest

from numerics.columns import Names, read_columns
from numerics.comparison.broken_invariants.invariants import broken_invariants
from numerics.comparison.compare import Options, compare
from numerics.report.html import compare_html
from numerics.report.json import compare_document
from numerics.report.text import compare_text
from numerics.store import open_capture
from tests.marks import quick_first
from tests.numerics.replay_runs import captured, replayed

DATA = {"data": {"batch_size": 6, "seq_len": 24, "micro_batch_size": 1}}


def run(ranks, folder, **tables):
    """Run with a capture, and give the folder."""
    captured(ranks, folder, {**DATA, **tables})
    return folder


@pytest.fixture(scope="module")
def baseline(ranks, tmp_path_factory):
    return run(ranks, tmp_path_factory.mktemp("baseline") / "run")


@pytest.mark.parametrize(
    ("tables", "first"),
    [
        pytest.param({"mesh": {"tp": 2}}, "layers.0.attention.out", marks=pytest.mark.slow),
        pytest.param({"mesh": {"dp": 3}}, "grad", marks=pytest.mark.slow),
        pytest.param({"mesh": {"cp": 2}}, ".grad", marks=pytest.mark.slow),
        ({"mesh": {"cp": 2}, "numerics": {"cp_method": "ring"}}, "layers.0.attention"),
    ],
    ids=["tp", "dp", "cp", "ring"],
)
@pytest.mark.slow
def test_another_mesh_drifts_and_its_origin_is_named(ranks, tmp_path, baseline, tables, first):
    folder = run(ranks, tmp_path / "run", **tables)
    finding = compare(folder, baseline, Options(replay=replayed(folder)))
    assert (finding.verdict, finding.proof) == ("drift", "matched_order")
    assert finding.tensors.unexplained == 0
    assert finding.tensors.rows_different == 0
    assert finding.tensors.explained > 0
    assert first in finding.first_divergence.tensor
    assert broken_invariants(read_columns(open_capture(folder), Names())) == []


@pytest.mark.slow
def test_pipeline_and_recomputation_change_no_bit(ranks, tmp_path, baseline):
    for name, tables in (
        ("pp", {"mesh": {"pp": 2}}),
        ("again", {"numerics": {"recompute": "full", "policy": "bf16"}}),
    ):
        finding = compare(run(ranks, tmp_path / name, **tables), baseline)
        wrong = {cell.phase for cell in finding.cells if cell.differ}
        assert not wrong & {"init", "forward", "backward"}
        assert finding.verdict == "identical" or "order" in finding.reason or finding.verdict == "undecided"


@pytest.mark.parametrize(
    ("fault", "tables", "tensor", "axis", "words"),
    [
        ("P02:layer=1", {"mesh": {"tp": 2}}, "layers.1.attention.out", "tp", "missing|partial"),
        *quick_first(
            0,
            [
                (
                    "P21",
                    {"mesh": {"cp": 2}},
                    "output.out.grad",
                    "cp",
                    r"factor 2, the size of cp, fitted to \S+,",
                ),
                ("P38:mode=times", {"mesh": {"dp": 3}}, ".weight.grad", "dp", "factor 3, the size of dp"),
                ("P53:factor=1.001", {"mesh": {"tp": 2}}, "layers.0.attention.wo.in", None, None),
            ],
        ),
    ],
)
def test_planted_bugs_are_called_and_placed(ranks, tmp_path, baseline, fault, tables, tensor, axis, words):
    import re

    folder = run(ranks, tmp_path / "run", **tables, evidence={"capture": "tensors", "faults": [fault]})
    finding = compare(folder, baseline, Options(replay=replayed(folder, level="tensors")))
    assert (finding.verdict, finding.proof) == ("bug", "matched_order")
    assert tensor in finding.first_divergence.tensor
    assert finding.first_divergence.axis == axis
    assert words is None or re.search(words, finding.explanation)
    assert finding.tensors.unexplained > 0
    page, text = unescape(compare_html(finding)), compare_text(finding, verbose=True)
    told = compare_document(finding)
    assert told["verdict"] == finding.verdict
    assert told["first_divergence"]["tensor"] == finding.first_divergence.tensor
    for said in (told["first_divergence"]["tensor"], told["explanation"], told["reason"]):
        assert said in page
        assert said in text


@pytest.mark.slow
def test_a_narrower_reduction_is_a_policy_not_a_bug(ranks, tmp_path, baseline):
    folder = run(ranks, tmp_path / "run", mesh={"dp": 3}, evidence={"capture": "digest", "faults": ["P44"]})
    finding = compare(folder, baseline, Options(replay=replayed(folder)))
    assert finding.verdict == "precision_policy"
    assert "bfloat16" in finding.explanation


@pytest.mark.slow
def test_order_plans_prove_a_bug_without_a_replay(ranks, tmp_path, baseline):
    """Attention is scaled wrongly in the first layer, before the first sum whose order the mesh changes."""
    folder = run(
        ranks, tmp_path / "run", mesh={"dp": 3}, evidence={"capture": "digest", "faults": ["P53:factor=1.1"]}
    )
    finding = compare(folder, baseline)
    assert (finding.verdict, finding.proof) == ("bug", "infeasible_by_plan")
    assert finding.first_divergence.tensor == "layers.0.attention.wo.in"
    sound = compare(run(ranks, tmp_path / "sound", mesh={"dp": 3}), baseline)
    assert sound.verdict == "undecided"
