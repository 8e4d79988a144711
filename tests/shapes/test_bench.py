"""A few cases end to end, and what counts as right."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.marks import quick_first
from tests.shapes.__main__ import one, options, seeds
from tests.shapes.answer import read
from tests.shapes.draw import MEASURED
from tests.shapes.report import tables
from tests.shapes.score import Outcome

SEEDS = (3071, 98, 70, 81, 64, 61, 1024, 1020, 2055, 2059, 3103)
"""DeepEP, with hosts that wait for its counts; rings without a fault; experts, ZeRO-3, DDP, FSDP2, virtual stages;
symmetric memory, which NCCL does not carry."""
SLOW = Outcome(0, "fsdp2", "slow_gpu", 8, 0.1, (3,), verdict="slow_rank", suspects=(3,), cause="gpu_compute")
OPEN = replace(SLOW, verdict="inconclusive", suspects=(), candidates=(3, 1))
LINK = replace(SLOW, fault="slow_nvlink", culprits=(2, 3), verdict="healthy", suspects=())


@pytest.mark.parametrize("seed", quick_first(2, SEEDS))
@pytest.mark.slow
def test_case_is_answered(seed: int, tmp_path: Path) -> None:
    outcome = one(seed, tmp_path)
    assert outcome.result == "right", outcome


@pytest.mark.slow
def test_a_price_beside_a_large_error_stays_open(tmp_path: Path) -> None:
    """A pipeline in torchtitan with a slow GPU: two steps, which the replay misses by as much as the GPU costs."""
    outcome = one(1022, tmp_path)
    assert (outcome.result, outcome.candidates) == ("open", outcome.culprits)
    assert (tmp_path / "truth.json").exists()
    assert list((tmp_path / "traces").iterdir())


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (SLOW, "right"),
        (replace(SLOW, suspects=(4, 3)), "wrong rank"),
        (replace(SLOW, suspects=(3, 4)), "right"),
        (replace(SLOW, verdict="imbalance", suspects=()), "wrong verdict"),
        (replace(SLOW, verdict="imbalance", suspects=(), uneven=True), "wrong verdict"),
        (replace(SLOW, verdict="imbalance", suspects=(3, 2)), "wrong verdict"),
        (replace(SLOW, verdict="imbalance", suspects=(3, 2), culprits=(2, 3)), "right"),
        (replace(SLOW, verdict="imbalance", suspects=(3, 2), slowdown=0.02), "right"),
        (replace(SLOW, verdict="imbalance", suspects=(), uneven=True, slowdown=0.02), "right"),
        (replace(SLOW, verdict="imbalance", suspects=(), slowdown=0.02), "false alarm"),
        (replace(LINK, verdict="imbalance", suspects=(6, 7), slowdown=0.02), "wrong rank"),
        (replace(LINK, verdict="imbalance", suspects=(6, 7), slowdown=0.02, uneven=True), "right"),
        (replace(SLOW, verdict="slow_link", suspects=(4,)), "wrong verdict"),
        (replace(SLOW, verdict="healthy", suspects=()), "false healthy"),
        (replace(SLOW, verdict="healthy", suspects=(), slowdown=0.02), "right"),
        (replace(SLOW, suspects=(4,), slowdown=0.005), "false alarm"),
        (replace(SLOW, slowdown=0.005), "right"),
        (replace(SLOW, culprits=(), suspects=(4,)), "false alarm"),
        (replace(SLOW, culprits=(), suspects=(), verdict="imbalance"), "right"),
        (replace(SLOW, culprits=(), suspects=(4,), verdict="slow_link"), "false alarm"),
        (OPEN, "open"),
        (replace(OPEN, once=True), "right"),
        (replace(OPEN, once=True, candidates=(1, 3)), "open"),
        (replace(OPEN, unrecorded=True), "right"),
        (replace(OPEN, unrecorded=True, slowdown=0.005), "open"),
        (replace(SLOW, unrecorded=True, suspects=(4,)), "wrong rank"),
        (LINK, "false healthy"),
        (replace(LINK, sole_group=True), "nothing to compare with"),
        (replace(LINK, sole_group=True, fault="flaky_nic"), "false healthy"),
        (replace(LINK, sole_group=True, verdict="slow_link", suspects=(2, 6)), "right"),
        (replace(LINK, sole_group=True, verdict="slow_link", suspects=(5, 6)), "wrong rank"),
        (replace(SLOW, refused=True, error="no ranks"), "refused"),
        (replace(SLOW, error="no answer"), "error"),
    ],
)
def test_answers_are_scored(outcome: Outcome, result: str) -> None:
    assert outcome.result == result


@pytest.mark.parametrize(
    ("vote", "culprits", "slowdown", "result"),
    [
        (3, (3,), 0.1, "right"),
        (4, (3,), 0.1, "wrong rank"),
        (None, (3,), 0.1, "false healthy"),
        (None, (3,), 0.001, "right"),
        (3, (3,), 0.001, "false alarm"),
        (4, (), 0.0, "false alarm"),
    ],
)
def test_the_vote_is_scored_alike(
    vote: int | None, culprits: tuple[int, ...], slowdown: float, result: str
) -> None:
    assert replace(SLOW, vote=vote, culprits=culprits, slowdown=slowdown).voted == result


def test_prices_are_held_against_the_clean_job() -> None:
    assert replace(SLOW, priced=0.08).price_error == pytest.approx(-0.02)
    assert replace(SLOW, priced=0.08, uneven=True).price_error is None
    assert replace(OPEN, priced=0.0).price_error is None


def test_tables_count_every_case() -> None:
    outcomes = [
        replace(SLOW, priced=0.08, vote=3),
        OPEN,
        replace(SLOW, slowdown=0.0, culprits=(), suspects=(1,)),
    ]
    text = tables(outcomes)
    assert "all: 3 cases\n  tracekit right 1  open 1  false alarm 1\n" in text
    assert (
        "slower by 5% or more: 2 cases\n  tracekit right 1  open 1\n  vote     right 1  false healthy 1"
        in text
    )
    assert "price error, points: p50 2.0, p90 2.0, worst -2.0, mean -2.0 of 1" in text
    assert "open with a culprit: 1, first among the candidates in 1" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["slow_gpu", "2", "1", "1", ".", "1", "2.0"] in rows
    assert ["fsdp2", "3", "1", "1", "1", "2", "2.0"] in rows


def test_no_json_is_an_error() -> None:
    outcome = replace(SLOW, verdict="", suspects=())
    read("", "Traceback\nValueError: no\n", outcome)
    assert (outcome.error, outcome.result) == ("ValueError: no", "error")


def test_seeds_are_those_asked_for() -> None:
    assert seeds(options(["--only", "7"])) == [7]
    assert seeds(options(["--seed", "300", "--cases", "3"])) == [300, 301, 302]
    assert seeds(options([])) == list(MEASURED)
    assert len(set(seeds(options(["--cases", "10"])))) == 10
