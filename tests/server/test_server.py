"""A parameter server with bounded staleness: with bound 0 synchronous SGD in every bit, else replayed by versions."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tracekit_cli.reftrain import reftrain

from reftrain.config.fault_spec import parse_fault
from reftrain.config.file import load
from reftrain.cost.hardware import load_hardware
from reftrain.cost.job import job_of_run
from reftrain.server.clocks import Clocks
from reftrain.server.model import Replica, Shares
from reftrain.server.report import Answer
from reftrain.server.simulated import Costs, computing, costs_of, synchronous, with_server
from reftrain.server.training import Trained, replayed, train

TINY = {"layers": 1, "dim": 32, "ffn_dim": 32, "vocab_size": 260}


def configuration(workers=3, steps=5, policy="fp32", **data):
    return load(
        None,
        {
            "model": TINY,
            "data": {"batch_size": 2 * workers, "seq_len": 32, **data},
            "mesh": {"dp": workers},
            "numerics": {"policy": policy},
            "optimizer": {"learning_rate": 0.1},
            "run": {"steps": steps},
        },
    )


def by_hand(config):
    """Synchronous SGD as one would write it: the step's sequences worker by worker, one sum, one step."""
    replica, shares = Replica(config), Shares(config)
    losses, weights = [], replica.weights()
    for step in range(config.steps):
        replica.set_weights(weights)
        total, loss = None, 0.0
        for worker in range(config.mesh.dp):
            gradient, part = replica.gradient(*shares.of(step, worker))
            total = gradient if total is None else total + gradient
            loss += part
        weights = weights - config.optimizer.learning_rate * total
        losses.append(loss)
    return losses, weights


def test_a_worker_waits_for_the_weights_of_its_bound():
    clocks = Clocks(2, staleness=1)
    assert [clocks.may_begin(c) for c in (0, 1, 2)] == [True, True, False]
    assert not clocks.arrive(0, 1)
    assert clocks.arrive(0, 0)
    assert [clocks.may_begin(c) for c in (2, 3)] == [True, False]


def test_replay_with_newest_versions_is_synchronous_sgd():
    config = configuration(micro_batch_size=1)
    found = replayed(config, [[step] * 3 for step in range(config.steps)])
    losses, weights = by_hand(config)
    assert found.losses == losses
    assert torch.equal(found.weights, weights)
    assert losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fp32", "fp64"])
@pytest.mark.parametrize("workers", [3, 5])
def test_bound_zero_is_synchronous_sgd_in_every_bit(workers, policy):
    config = configuration(workers, policy=policy)
    found = train(config, 0)
    losses, weights = by_hand(config)
    assert found.versions == [[step] * workers for step in range(config.steps)]
    assert found.losses == losses
    assert torch.equal(found.weights, weights)


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_stale_jobs_are_replayed_by_their_versions(staleness):
    config = configuration(4, steps=8)
    found = train(config, staleness, [parse_fault("slow_compute:rank=2,factor=8", 5)])
    assert all(step - staleness <= v <= step for step, of_step in enumerate(found.versions) for v in of_step)
    assert any(v < step for step, of_step in enumerate(found.versions) for v in of_step)
    again = replayed(config, found.versions)
    assert found.losses == again.losses
    assert torch.equal(found.weights, again.weights)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 3])
def test_the_slow_worker_sets_the_pace(rank):
    config = configuration(3, steps=12)
    fault = parse_fault(f"slow_compute:rank={rank},factor=30", 4)
    found = train(config, 1, [fault])
    assert Answer(3, 12, [], found, sum(found.waited_s)).pace == rank


def test_equal_waits_name_no_worker():
    trained = Trained([1.0], [[0, 0, 0]], [0.5, 0.55, 0.6], torch.zeros(1))
    assert Answer(3, 1, [], trained, 2.0).pace is None


COSTS = Costs(compute=1.0, pull=0.01, push=0.02, ring=0.05)


def test_without_jitter_all_rows_take_their_sums():
    took = computing(COSTS, 4, 10, (), 0.0, 0)
    assert synchronous(COSTS, took).step_s == pytest.approx(1.05)
    row = with_server(COSTS, took, 0)
    # the last of four gets its weights after four pulls, and its gradient comes after it was computed
    assert row.step_s == pytest.approx(4 * COSTS.pull + 1.0 + COSTS.push, rel=0.05)
    assert row.stale == 0


def test_bounds_hide_pauses_but_no_steady_slowness():
    every = (parse_fault("slow_compute:rank=2,factor=2", 5),)
    now_and_then = (parse_fault("slow_compute:rank=2,factor=2,steps=0:200:4", 5),)
    steady, paused = ([], [])
    for faults, rows in ((every, steady), (now_and_then, paused)):
        took = computing(COSTS, 4, 200, faults, 0.0, 0)
        rows += [with_server(COSTS, took, s).step_s for s in (0, 4)]
    assert steady[1] > 0.95 * steady[0]
    assert paused[1] < 1.02 * 1.25 + 4 * COSTS.pull + COSTS.push < paused[0] + 0.1
    assert np.all(np.diff(paused) < 0)


def test_a_server_moves_all_weights_over_one_link():
    """N workers cost N pulls and pushes; a ring's volume does not grow with N."""
    found = [costs_of(job_of_run(configuration(n)), load_hardware("h100")) for n in (3, 6)]
    assert found[0].pull == found[1].pull
    rows = [with_server(c, computing(c, n, 8, (), 0.0, 0), 0) for c, n in zip(found, (3, 6), strict=True)]
    assert rows[1].step_s > rows[0].step_s


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fault", "late_data:rank=1"], "late_data is not planted here"),
        (["--fault", "slow_compute:rank=0"], "rank 0 is the server"),
        (["--set", "numerics.policy=bf16"], "choose fp32 or fp64"),
        (["--set", "mesh.tp=2"], "leave tp, cp and pp at 1"),
    ],
)
def test_what_workers_do_not_compute_is_refused(arguments, said):
    result = CliRunner().invoke(reftrain, ["server", *arguments])
    assert result.exit_code != 0
    assert said in str(result.exception) + result.output


def test_the_document_holds_every_row():
    result = CliRunner().invoke(reftrain, ["server", "--steps", "4", "--staleness", "3", "--json", "-"])
    found = json.loads(result.output)
    assert [row["staleness"] for row in found["rows"]] == [None, 3]
    assert found["trained"] == []
