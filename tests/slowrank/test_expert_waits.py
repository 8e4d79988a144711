"""All-to-alls of experts: which member the others wait for, and the sender, receiver or path that is slow."""

import numpy as np
import pytest

from tests.slowrank.experts import Experts
from tests.slowrank.jobs import grid
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.answers.expert_waits import Calls, parts_by_load
from tracekit.mesh.parts import given_parts
from tracekit.report.slowrank_json import slowrank_document
from tracekit.report.slowrank_text import slowrank_text

TOKENS = 4000.0
PER_TOKEN_NS = 10.0


def dealt(calls, members, seed=3, spread=1.0):
    """Elements from each source to each destination: there and back, as a router deals them again in each call."""
    random = np.random.default_rng(seed)
    share = random.gamma(1.0 / spread, size=(calls, members, members))
    there = TOKENS * share / share.sum(axis=-1, keepdims=True)
    return np.where(np.arange(calls)[:, None, None] % 2, there.transpose(0, 2, 1), there)


def took(sent, slower=None):
    """The time of each call: that of the most loaded sender or receiver, or of the path, by `slower` factors."""
    apart = np.where(np.eye(sent.shape[1], dtype=bool), 0.0, sent) * PER_TOKEN_NS
    ways = apart if slower is None else apart * slower
    ends = np.maximum(ways.sum(axis=1).max(axis=1), ways.sum(axis=2).max(axis=1))
    return ends * np.random.default_rng(5).uniform(0.99, 1.01, len(sent))


def factors(members, where, factor):
    slower = np.ones((members, members))
    slower[where] = factor
    return slower


@pytest.mark.parametrize(
    ("where", "factor", "part"),
    [
        ((2, slice(None)), 5.0, ("send", (20,))),
        ((slice(None), 1), 5.0, ("receive", (10,))),
        ((3, 0), 20.0, ("way", (30, 0))),
    ],
)
@pytest.mark.parametrize("members", [4, 6])
def test_what_slow_calls_follow_is_named(where, factor, part, members):
    sent = dealt(60, members)
    ranks = tuple(10 * place for place in range(members))
    assert parts_by_load(Calls(ranks, sent, took(sent, factors(members, where, factor)))) == (part,)


def test_a_uniformly_slow_group_has_no_slow_part():
    sent = dealt(60, 4)
    assert parts_by_load(Calls((0, 1, 2, 3), sent, 5.0 * took(sent))) == ()


@pytest.mark.parametrize("sent", [np.full((60, 4, 4), 1000.0), dealt(3, 4), dealt(0, 4)])
def test_equal_splits_and_few_calls_separate_nothing(sent):
    slow = took(sent, factors(4, (2, slice(None)), 5.0)) if len(sent) else np.zeros(0)
    assert parts_by_load(Calls((0, 1, 2, 3), sent, slow)) == ()


def test_chance_names_no_part():
    named = 0
    for seed in range(200):
        sent = dealt(20, 4, seed)
        times = np.random.default_rng(seed + 1000).uniform(1.0, 2.0, len(sent))
        named += bool(parts_by_load(Calls((0, 1, 2, 3), sent, times)))
    assert named == 0


def test_two_ranks_do_not_separate_sender_and_path():
    sent = dealt(60, 2)
    found = parts_by_load(Calls((0, 1), sent, took(sent, factors(2, (0, 1), 5.0))))
    assert set(found) == {("send", (0,)), ("receive", (1,)), ("way", (0, 1))}


def test_a_late_source_is_a_heavy_row(tmp_path):
    job = given_parts(grid(tp=2, dp=4), {"ep": 4}, ())
    found = analyse(Experts(job, slow={5: 1.3}).write(tmp_path))
    assert [s.rank for s in found.suspects] == [5]
    waits = found.expert_waits
    assert 5 in waits.ranks
    rows = np.array(waits.ms).sum(axis=1)
    assert rows[waits.ranks.index(5)] > 0.9 * rows.sum() > 1.0
    assert np.diagonal(np.array(waits.ms)).max() == 0
    assert slowrank_document(found)["expert_waits"]["ranks"] == list(waits.ranks)


class Routed(Experts):
    """Experts whose split sizes are recorded, and whose all-to-alls last as long as their loads need."""

    slower = factors(4, (2, slice(None)), 6.0)
    struck = 1

    def together(self, ranks, kind, op, more=lambda rank: {}):
        """An operation of all groups of a kind among `ranks`; an all-to-all deals tokens by chance."""
        if op != "all_to_all":
            super().together(ranks, kind, op, more)
            return
        for number, members in enumerate(m for k, m in self.groups if k == kind and set(m) <= set(ranks)):
            handles = {r: self.lines[r].post(self.number[members], op) for r in members}
            sent = np.round(dealt(1, len(members), int(self.random.integers(1 << 30)))[0]).astype(int)
            spent = took(sent[None].astype(float), self.slower if number == self.struck else None)[0] / 1000
            end = max(handle[0] for handle in handles.values()) + spent
            for place, r in enumerate(members):
                out, back = sent[place].tolist(), sent[:, place].tolist()
                sizes = {
                    "in_nelems": sum(out),
                    "out_nelems": sum(back),
                    "in_split": str(out),
                    "out_split": str(back),
                }
                self.lines[r].finish(handles[r], end, **sizes)


def test_the_answer_names_the_slow_sender(tmp_path):
    job = given_parts(grid(tp=2, dp=4), {"ep": 4}, ())
    found = analyse(Routed(job).write(tmp_path))
    assert found.verdict == "slow_link", found.reason
    assert [(p.kind, p.ranks) for p in found.network_parts] == [("send", (5,))], found.reason
    assert found.reason.endswith("they share only the sending side of rank 5")


def test_verbose_text_shows_the_matrix_of_a_small_group(tmp_path):
    job = given_parts(grid(tp=2, dp=4), {"ep": 4}, ())
    found = analyse(Experts(job, slow={5: 1.3}).write(tmp_path))
    text = slowrank_text(found, verbose=True)
    assert all(f"experts    for rank {rank}: " in text for rank in found.expert_waits.ranks)
    assert "experts" not in slowrank_text(found)


def test_a_slow_group_without_splits_says_what_would_decide(tmp_path):
    job = given_parts(grid(tp=2, dp=4), {"ep": 4}, ())
    found = analyse(Experts(job, link={(1, 3, 5, 7): 30.0}).write(tmp_path))
    assert (found.verdict, found.network_parts) == ("slow_link", ())
    assert "record calls with different split sizes" in found.reason
