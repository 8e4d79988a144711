"""Replays under schedules with split backwards or several owners of a stage: sound runs are equal, bugs are called."""

import pytest

from numerics.comparison.compare import Options, compare
from numerics.order.order_plan import read_plan
from numerics.order.plan_differences import differences
from reftrain.config.file import load
from reftrain.job.launcher import prepare_folder
from reftrain.replay.possible_orders import possible_orders
from tests.marks import quick_but, quick_first
from tests.numerics.replay_runs import captured, config_of, replayed, unequal
from tests.numerics.schedule_bugs import wrong_run

ZB_H1 = {"mesh": {"pp": 2}, "pipeline": {"schedule": "zb_h1"}, "run": {"steps": 1}}
GEMS = {"mesh": {"pp": 2}, "pipeline": {"schedule": "gems"}, "run": {"steps": 1}}
CHIMERA = {"mesh": {"pp": 2}, "pipeline": {"schedule": "chimera"}, "run": {"steps": 1}}
DUALPIPE = {
    "mesh": {"pp": 2},
    "model": {"layers": 4},
    "pipeline": {"schedule": "dualpipe_v", "virtual_stages": 2},
    "run": {"steps": 1},
}
RUNS = {
    "zb_h1": ZB_H1,
    "zb_h1 4D": {"mesh": {"tp": 2, "cp": 2, "pp": 2, "dp": 2}, "pipeline": {"schedule": "zb_h1"}},
    "gems": GEMS,
    "gems 4D": {"mesh": {"tp": 2, "cp": 2, "pp": 2, "dp": 2}, "pipeline": {"schedule": "gems"}},
    "gems, three ranks": {
        "mesh": {"pp": 3, "dp": 2},
        "model": {"layers": 3},
        "pipeline": {"schedule": "gems"},
    },
    "gems, an idle owner": {**GEMS, "data": {"batch_size": 1}},
    "chimera": CHIMERA,
    "chimera 4D": {"mesh": {"tp": 2, "cp": 2, "pp": 2, "dp": 2}, "pipeline": {"schedule": "chimera"}},
    "chimera, halving": {
        "mesh": {"pp": 2, "dp": 2, "zero": 2},
        "data": {"batch_size": 16},
        "pipeline": {"schedule": "chimera", "concatenation": "halving"},
    },
    "chimera, four pipelines": {
        "mesh": {"pp": 4},
        "model": {"layers": 4},
        "pipeline": {"schedule": "chimera", "pipelines": 4},
    },
    "dualpipe_v": DUALPIPE,
    "dualpipe_v 4D": {
        **DUALPIPE,
        "mesh": {"tp": 2, "cp": 2, "pp": 2, "dp": 2},
        "data": {"batch_size": 8},
        "run": {"steps": 2},
    },
}
QUICK = {"zb_h1", "gems"}
"""One of each kind; the others repeat them in other sizes."""


@pytest.mark.parametrize("name", quick_but([name for name in RUNS if name not in QUICK], RUNS))
@pytest.mark.quick(1)
def test_schedule_is_replayed_bit_for_bit(ranks, tmp_path, name):
    run = tmp_path / "run"
    captured(ranks, run, RUNS[name])
    other = replayed(run)
    assert not unequal(run, other)
    assert differences(read_plan(run), read_plan(other)) == []


BUGS = [
    ("owner_keeps_its_own", GEMS, "bug", ".grad", "pp"),
    ("owners_averaged", CHIMERA, "bug", ".grad", "pp"),
    ("late_weights_doubled", ZB_H1, "bug", ".grad", ""),
    ("late_weights_doubled", DUALPIPE, "bug", ".grad", ""),
    ("late_weights_narrow", ZB_H1, "precision_policy", ".grad", ""),
]


@pytest.mark.parametrize(("bug", "tables", "verdict", "tensor", "axis"), quick_first(1, BUGS))
@pytest.mark.slow
def test_bug_of_schedule_is_called(ranks, tmp_path, bug, tables, verdict, tensor, axis):
    folder = tmp_path / "run"
    config = config_of(folder, {**tables, "evidence": {"capture": "tensors"}})
    prepare_folder(folder)
    ranks.run(wrong_run, config.mesh.world_size, config, bug)
    finding = compare(folder, None, Options(replay=replayed(folder, level="tensors")))
    first = finding.first_divergence
    assert finding.verdict == verdict, finding.reason
    assert tensor in first.tensor
    assert first.phase == "reduce"
    assert axis in (first.axis or "")


def test_recorded_order_is_taken_where_possible():
    config = load(None, {**GEMS, "data": {"batch_size": 4}})
    orders = possible_orders(None, config)
    assert {at: order.backwards for at, order in orders.items()} == {
        (0, 0): (0, 2), (0, 1): (1, 3), (1, 0): (1, 3), (1, 1): (0, 2),
    }  # fmt: skip
