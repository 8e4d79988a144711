"""Evidence that is taken away never makes an innocent a suspect, nor a sick job healthy."""

import gzip
import re

import pytest

from tests.generator import generate
from tests.marks import quick_first
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.case.case import Case
from tracekit.ingest import load

PEERS = ("Src Rank", "Dst Rank", "Rank")
PRICE = 0.02  # relative: what inferred peers may cost of a price
CASES = [(301, "slow_compute"), (305, "slow_compute"), (307, "slow_compute"), (302, "slow_host")]
SLOW = [pytest.param(case, marks=pytest.mark.slow) for case in CASES]


def erase(folder, keys):
    """Take arguments out of every event of every file."""
    pattern = re.compile(rb',?\s*"(%s)":\s*("[^"]*"|[-\d.]+)' % b"|".join(k.encode() for k in keys))
    for path in sorted(folder.rglob("*.json*")):
        packed = path.suffix == ".gz"
        data = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
        data = re.sub(rb"\{\s*,", b"{", pattern.sub(b"", data))
        path.write_bytes(gzip.compress(data, 1) if packed else data)


@pytest.fixture(scope="module", params=[(*CASES[0], 8), *SLOW], ids=str)
def answers(request, tmp_path_factory):
    """(truth, answer with all evidence, answer without the peers of messages) of a job with pipeline stages."""
    seed, kind, *world = request.param
    case = generate(seed, kind=kind, truncated={}, **({"world": world[0]} if world else {}))
    assert case.truth.sizes["pp"] > 1
    folder = tmp_path_factory.mktemp("erased")
    case.write(folder)
    whole = analyse(load([str(folder)]))
    erase(folder, PEERS)
    return case.truth, whole, analyse(load([str(folder)]))


@pytest.mark.slow
def test_without_peers_the_culprit_stays_or_it_is_open(answers):
    truth, whole, erased = answers
    assert whole.verdict == "slow_rank"
    assert erased.verdict in {"slow_rank", "inconclusive"}
    named = {s.rank for s in (*erased.suspects, *erased.candidates)}
    assert named & set(truth.suspects)


@pytest.mark.slow
def test_the_interval_holds_the_price(answers):
    truth, whole, erased = answers
    lost = whole.suspects[0].lost_ms_per_step
    assert whole.suspects[0].lost_ms_low <= lost <= whole.suspects[0].lost_ms_high
    for candidate in erased.candidates:
        assert candidate.lost_ms_low <= candidate.lost_ms_high
    if erased.verdict == "inconclusive" and truth.kind == "slow_compute":
        assert erased.candidates[0].lost_ms_high == pytest.approx(lost, rel=0.25)


def test_coverage_never_rises_where_peers_are_unknown(answers):
    _, whole, erased = answers
    assert erased.coverage.matched <= whole.coverage.matched
    assert all(0 <= share <= 1 for share in erased.coverage.by_axis.values())


def test_an_open_answer_says_what_would_decide(answers):
    _, _, erased = answers
    assert (erased.to_decide is not None) == (erased.verdict == "inconclusive")
    assert erased.to_decide is None or "peers" in erased.to_decide


def test_common_ends_tell_the_peers_again(answers):
    _, whole, erased = answers
    assert [s.rank for s in erased.suspects] == [s.rank for s in whole.suspects]
    assert erased.what_if.slowdown == pytest.approx(whole.what_if.slowdown, rel=PRICE)


@pytest.mark.parametrize("seed", quick_first(1, [301, 302, 305]))
@pytest.mark.slow
def test_a_healthy_job_without_peers_blames_nobody(tmp_path, seed):
    generate(seed, kind="healthy").write(tmp_path)
    erase(tmp_path, PEERS)
    answer = analyse(load([str(tmp_path)]))
    assert answer.verdict in {"healthy", "inconclusive"}
    assert not answer.suspects


@pytest.mark.slow
def test_a_model_that_misses_the_steps_proves_nothing(tmp_path, monkeypatch):
    case = generate(301, kind="slow_compute")
    case.write(tmp_path)
    monkeypatch.setattr(Case, "residual_ns", property(lambda case: case.step_ns))
    answer = analyse(load([str(tmp_path)]))
    assert (answer.verdict, answer.suspects) == ("inconclusive", ())
    assert answer.candidates[0].rank in case.truth.suspects
