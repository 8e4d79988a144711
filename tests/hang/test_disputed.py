"""Both sides of a dispute are shown: two calls, two orders, two groups of one name, two sends that face each other."""

import pytest

from tests.hang.parted import END, EVALUATE, SAVE, STEP, steps, write, write_groups
from tracekit.report.hang import hang_document, hang_text

PAIR = {"1": ((0, 1), "PIPELINE_MODEL_PARALLEL_GROUP")}
ALL = (0, 1, 2, 3)


def named(finding):
    return {c.rank: c.kind for c in finding.culprits}


def test_both_send_first_are_shown(tmp_path):
    rows = {
        rank: [("1", 1, f"{op} {rank}->{1 - rank}", place, "open")]
        for rank, op, place in ((0, "send", ("give", 11)), (1, "send", ("take", 12)))
    }
    finding = write_groups(tmp_path, PAIR, rows)
    text = hang_text(finding)
    assert (finding.verdict, finding.candidates) == ("inconclusive", (0, 1))
    assert "ranks 0, 1 each wait first in a send to the other" in finding.reason
    assert "rank 0: send to rank 1" in text
    assert "/job/train.py:11 give" in text
    assert "/job/train.py:12 take" in text


@pytest.mark.parametrize(
    ("world", "first", "then", "said"),
    [
        (3, "send {0}->{1}", "recv {0}<-{2}", "ranks 0-2 each wait first in a send to the next in a circle"),
        (2, "recv {0}<-{2}", "send {0}->{1}", "ranks 0, 1 each wait first in a receive from the other"),
        (4, "recv {0}<-{2}", None, "ranks 0-3 each wait first in a receive from the next in a circle"),
    ],
)
def test_messages_in_a_circle_are_told_by_direction(tmp_path, world, first, then, said):
    rows = {}
    for rank in range(world):
        names = [n.format(rank, (rank + 1) % world, (rank - 1) % world) for n in (first, then) if n]
        rows[rank] = [("1", number, name, STEP, "open") for number, name in enumerate(names, 1)]
    finding = write_groups(tmp_path, {"1": (tuple(range(world)), "PIPELINE_MODEL_PARALLEL_GROUP")}, rows)
    assert (finding.verdict, finding.culprits) == ("inconclusive", ())
    assert said in finding.reason


def test_batches_with_both_ends_blame_no_order(tmp_path):
    rows = {
        rank: [("1", 1, f"{op}{1 - rank}", STEP, "open") for op in (f"send {rank}->", f"recv {rank}<-")]
        for rank in (0, 1)
    }
    finding = write_groups(tmp_path, PAIR, rows)
    assert (finding.verdict, finding.culprits) == ("inconclusive", ())
    assert "both ends of every outstanding message were issued" in finding.reason


@pytest.mark.parametrize("odd", [0, 2])
def test_another_order_states_both_orders(tmp_path, odd):
    groups = {"0": (ALL, "default_pg"), "1": (ALL, "second")}
    done = [
        row
        for s in range(1, 4)
        for row in (("0", s, "all_reduce", STEP, "done"), ("1", s, "barrier", END, "done"))
    ]
    ways = [("0", 4, "all_reduce", STEP, "open"), ("1", 4, "barrier", END, "open")]
    rows = {rank: [*done, *(ways[::-1] if rank == odd else ways)] for rank in ALL}
    finding = write_groups(tmp_path, groups, rows)
    assert set(named(finding)) == {odd}
    how = "made barrier 4 of group 1 before all_reduce 4 of group 0, its peers all_reduce 4 of group 0 before barrier 4"
    assert how in hang_text(finding)
    assert "never enqueued" not in hang_text(finding)


@pytest.mark.parametrize("rounds", [(4, 4, 4, 3), (5, 4, 6, 3), (3, 2, 3, 3)])
def test_fewer_rounds_of_a_loop_are_no_stall(tmp_path, rounds):
    expert, attention = ("all_gather", ("experts", 75)), ("all_reduce", ("attention", 77))

    def job(count):
        calls = [attention, *[expert] * count, attention, *[expert] * 4, attention]
        return [(s, op, place, "open" if s > 3 else "done") for s, (op, place) in enumerate(calls, 1)]

    finding = write(tmp_path, [job(count) for count in rounds])
    fewest = rounds.index(min(rounds))
    assert named(finding) == {fewest: "mismatched_call"}
    text = hang_text(finding)
    assert "/job/train.py:75 experts" in text
    assert "/job/train.py:77 attention" in text


def test_stack_is_that_of_the_mismatched_call(tmp_path):
    odd = [*steps(5), (6, "all_gather", EVALUATE, "open"), (7, "all_reduce", STEP, "open")]
    usual = [*steps(6)[:5], (6, "barrier", SAVE, "open"), (7, "all_reduce", STEP, "open")]
    text = hang_text(write(tmp_path, [usual, odd, usual]))
    block = text.split("call 6 as rank 1 made it:\n")[1].split("\n\n")[0]
    assert "train.py:70 evaluate" in block
    assert "train_step" not in block


def test_two_of_five_in_another_branch(tmp_path):
    odd = [*steps(5), (6, "all_gather", EVALUATE, "open")]
    usual = [*steps(5), (6, "all_reduce", STEP, "open")]
    assert named(write(tmp_path, [usual, odd, usual, odd, usual])) == dict.fromkeys((1, 3), "mismatched_call")


def test_two_of_four_in_another_branch_are_open(tmp_path):
    odd = [*steps(5), (6, "all_gather", EVALUATE, "open")]
    new = [*steps(5), (6, "broadcast", SAVE, "open")]
    finding = write(tmp_path, [new, odd, new, odd])
    assert (finding.verdict, finding.candidates) == ("inconclusive", ALL)
    (call,) = hang_document(finding)["open_calls"]
    assert [side["ranks"] for side in call["sides"]] == [[0, 2], [1, 3]]


def test_candidates_in_two_groups_show_both_calls(tmp_path):
    groups = {"1": ((0, 1), "tp"), "2": ((0, 1), "cpu_group")}
    done = [
        row
        for s in range(1, 4)
        for row in (("2", s, "broadcast", SAVE, "done"), ("1", s, "all_gather", STEP, "done"))
    ]
    rows = {0: [*done, ("2", 4, "broadcast", SAVE, "open")], 1: [*done, ("1", 4, "all_gather", STEP, "open")]}
    text = hang_text(write_groups(tmp_path, groups, rows))
    assert "rank 0: broadcast" in text
    assert "rank 1: all_gather" in text


def one_name(folder, views, finished, *, desc="undefined", name="1"):
    """Ranks of `views` made the group `name` with these members; those of `finished` have done its first call."""
    for rank, members in views.items():
        state = "done" if rank in finished else "open"
        rows = {rank: [("0", 1, "barrier", STEP, "done"), (name, 1, "all_reduce", END, state)]}
        finding = write_groups(folder, {"0": (ALL, "default_pg"), name: (members, desc)}, rows)
    return finding


@pytest.mark.parametrize("finished", [(), (0, 3)])
def test_one_name_of_unlike_groups_is_said(tmp_path, finished):
    finding = one_name(tmp_path, {0: (0, 3), 1: (1, 2), 2: (1, 2), 3: (0, 3)}, finished)
    assert (finding.verdict, finding.culprits) == ("inconclusive", ())
    assert "the name 1 belongs to groups with different members" in finding.reason
    assert "new_group" in finding.to_decide


def test_overlapping_groups_of_one_name(tmp_path):
    finding = one_name(tmp_path, {0: (0, 1), 1: (1, 2), 2: (1, 2), 3: (0, 1, 3)}, ())
    assert finding.culprits == ()
    assert "new_group" in finding.to_decide


@pytest.mark.parametrize(("desc", "name"), [("mesh_tp", "1"), ("default_pg:split:1", "1")])
def test_names_repeat_soundly_in_a_mesh(tmp_path, desc, name):
    finding = one_name(tmp_path, {0: (0, 3), 1: (1, 2), 2: (1, 2), 3: (0, 3)}, (0, 3), desc=desc, name=name)
    assert "new_group" not in finding.reason
