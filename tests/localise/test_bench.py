"""A few cases of the bench, end to end."""

import pytest

from tests.localise.__main__ import one
from tests.localise.case import make
from tests.localise.report import named_of_known
from tests.localise.schedule import deepspeed, lowered, one_f_one_b
from tests.localise.score import Outcome, kept
from tests.marks import quick_first

SEEDS = (1003, 1007, 1018, 1012, 1025, 1031)
"""Documents on graphs, two faults in ragged windows, slow hosts, a checkpoint: of 2.8 to 2.15, with eight ranks."""


@pytest.mark.parametrize("seed", quick_first(2, SEEDS))
@pytest.mark.slow
def test_case_is_answered(seed):
    outcome = one(seed, world=8)
    assert outcome.result == "right"
    assert outcome.vote_result


@pytest.mark.parametrize(
    "seed", quick_first(1, (9970062, 9970003, 9970011, 9995206, 9995517, 9997820, 9997678))
)
@pytest.mark.slow
def test_streams_of_several_groups_are_read(seed):
    """A CUDA graph, a recording without its host, all-to-alls that look like messages: nothing names their groups."""
    assert one(seed).result == "right"


@pytest.mark.slow
def test_a_healthy_job_near_the_threshold_stays_open():
    """The devices of its first stage idle for their hosts, 2.3 % of the step: no host is proven slow."""
    found = one(9995497)
    assert (found.result, found.suspects) == ("inconclusive", ())


def test_the_loss_of_each_step_is_known():
    """A device that is slow in two of five steps; the mean over all is the slowdown of the case."""
    case = next(c for c in (make(seed, "intermittent", 8) for seed in range(4)) if c.culprits)
    assert case.job.steps == len(case.steps)
    struck = next(fault.steps for fault in case.faults.faults if fault.blamed)
    lost = [with_fault - without for _, with_fault, without in case.steps]
    assert set(sorted(range(len(lost)), key=lambda step: lost[step])[-len(struck) :]) == struck
    assert sum(s[1] for s in case.steps) / sum(s[2] for s in case.steps) == pytest.approx(case.slowdown)


def test_culprits_without_a_trace_are_counted_apart():
    made = [
        outcome((1,), (0, 1), "right", (1, 0)),
        outcome((1,), (0, 2), "right"),
        outcome((), (0,), "right"),
    ]
    assert [o.kept for o in made] == ["all culprits recorded", "no culprit recorded", "nobody to blame"]
    (line,) = named_of_known(made)
    assert "right 1 of 1, 1 of them name another rank as well; no culprit recorded: 1" in line


def outcome(culprits, recorded, result, suspects=()):
    """A case of a slowdown of 10 %, and its answer."""
    told = kept(culprits, recorded)
    return Outcome(
        0, "", "", "", "", "", 8, "", False, "", 1.1, culprits, suspects=suspects, result=result, kept=told
    )


def pairs(plans):
    """Per direction between two stages, the order in which messages are sent and received."""
    sent, received = {}, {}
    for stage, plan in enumerate(plans):
        for send, peer, kind in (message for item in plan if item[0] == "X" for message in item[1]):
            way = (stage, peer) if send else (peer, stage)
            (sent if send else received).setdefault(way, []).append(kind)
    return sent, received


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_both_sides_order_messages_alike(stages):
    for micro in (stages, 2 * stages):
        made = [one_f_one_b(stages, micro), deepspeed(stages, micro)]
        made += [lowered(name, stages, micro, v, fuse=True) for name in ("1f1b", "gpipe") for v in (1, 2)]
        for plans in made:
            sent, received = pairs(plans)
            assert sent == received
