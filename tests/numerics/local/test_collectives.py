"""Orders of sums found from a collective's recorded inputs and output, and what is wrong where none is."""

import pytest
import torch

from numerics.columns import Names, read_columns
from numerics.local.gradients.collective_sums import check_collectives
from numerics.local.gradients.learned_orders import LearnedOrders
from numerics.local.gradients.sum_orders import all_orders
from numerics.local.judgement import Standing
from numerics.local.records.recorded import RecordedRun
from numerics.record.recorder import Box, Recorder
from numerics.store import open_capture
from reftrain.replay.ring import ring_sum

SIZE = 600


def addends(ranks, dtype=torch.float32, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    return [torch.randn(SIZE, generator=drawn, dtype=torch.float64).to(dtype) for _ in range(ranks)]


def tree(parts):
    return (parts[0] + parts[1]) + (parts[2] + parts[3])


def halves(parts):
    return (parts[0] + parts[2]) + (parts[1] + parts[3])


def found(parts, out, divisor=1.0):
    orders = all_orders(scaled=divisor != 1)
    return {o for o in orders if o.gives(lambda add: add(parts), out, len(parts), divisor)}


@pytest.mark.parametrize(
    ("add", "name"),
    [
        (ring_sum, "a ring, downwards"),
        (lambda parts: sum(parts[1:], parts[0]), "rank after rank"),
        (lambda parts: sum(parts[-2::-1], parts[-1]), "rank after rank, from the last"),
        (tree, "recursive doubling"),
        (halves, "recursive halving"),
        (lambda parts: parts[0] + (parts[1] + parts[3]) + parts[2], "a binary tree"),
    ],
)
def test_the_order_of_a_sum_is_found(add, name):
    parts = addends(4)
    names = {order.name for order in found(parts, add(parts))}
    assert name in names
    assert names <= {name, "a ring, upwards", "a ring, downwards"}  # a piece of a ring goes rank after rank
    assert len({"recursive doubling", "recursive halving", "a binary tree", "rank after rank"} & names) < 2


def test_scales_and_wider_sums_are_found():
    parts = addends(3, torch.bfloat16)
    wide = sum((p.float() for p in parts[1:]), parts[0].float()).bfloat16()
    assert all(order.wide for order in found(parts, wide))
    parts = addends(3)
    mean = sum((p * (1 / 3) for p in parts[1:]), parts[0] * (1 / 3))
    assert {o.scaling for o in found(parts, mean, 3.0)} == {"product before"}


@pytest.mark.parametrize("ranks", [3, 4, 6])
def test_wrong_sums_follow_no_order(ranks):
    parts = addends(ranks)
    assert found(parts, ring_sum(parts))
    assert not found(parts, ring_sum(parts[1:]))
    assert not found(parts, ring_sum([*parts, parts[0]]))


def captured(folder, calls, ranks=4, op="all_reduce", combines="sum"):
    """Columns of a capture of collectives: `calls` are (inputs by rank, outputs by rank)."""
    for rank in range(ranks):
        with Recorder(folder, rank, ranks, {"dp": rank}, level="tensors") as recorder:
            for number, sides in enumerate(calls):
                for kind, side in zip(("collective_in", "collective_out"), sides, strict=True):
                    label = f"{op}.{number}.{combines}"
                    part = (kind == "collective_in") == (op == "all_gather") and op != "all_reduce"
                    count = side[rank].numel()
                    recorder.record(
                        label,
                        side[rank],
                        step=0,
                        phase="backward",
                        kind=kind,
                        axis="group",
                        op=op,
                        label=label,
                        group=range(ranks),
                        partial=f"rank={rank}",
                        global_shape=(count * ranks if part else count,),
                        boxes=[Box((rank * count if part else 0,), (count,))],
                    )
    return read_columns(open_capture(folder), Names())


def judged(folder, calls, **more):
    learned = LearnedOrders()
    checks = check_collectives(RecordedRun(captured(folder, calls, **more)), 0, learned)
    return [check.judged for check, _ in checks], learned


def flipped(value, at, bit):
    out = value.clone()
    out.view(torch.int32)[at] ^= 1 << bit
    return out


REPAIRS = {
    "missing": (lambda p: ring_sum([p[0], p[1], p[3]]), "the addend of rank 2 is missing"),
    "twice": (lambda p: ring_sum(p) + p[1], "rank 1 is added twice"),
    "alone": (lambda p: p[3], "it holds the addend of rank 3 alone: nothing was summed"),
    "factor": (lambda p: ring_sum(p) / 4, "it is the right sum times 1/4, one over the ranks"),
    "narrow": (
        lambda p: ring_sum([x.bfloat16() for x in p]).float(),
        "it was summed in bfloat16, its addends are float32",
    ),
    "bit": (
        lambda p: flipped(ring_sum(p), 77, 24),
        f"element 77 of {SIZE} alone differs, by one flipped bit: bit 24",
    ),
    "other": (lambda p: p[0] * p[1], ""),
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("bug", REPAIRS)
def test_what_repairs_a_wrong_sum_is_told(tmp_path, bug):
    make, words = REPAIRS[bug]
    parts = addends(4, seed=9)
    good = addends(4)
    found, _ = judged(tmp_path, [(good, [ring_sum(good)] * 4), (parts, [make(parts)] * 4)])
    assert [one.standing for one in found] == [Standing.EQUAL, Standing.BEYOND]
    assert found[1].how == words
    assert found[1].format == ("bfloat16" if bug == "narrow" else "")


def test_a_flipped_bit_needs_no_learned_order(tmp_path):
    parts = addends(4)
    found, _ = judged(tmp_path, [(parts, [flipped(ring_sum(parts), 77, 24)] * 4)])
    assert found[0].how == f"one flipped bit: bit 24 of element 77 (of {SIZE}), all others are right"


def test_few_elements_get_no_explanation(tmp_path):
    parts = [part[:5] for part in addends(4)]
    found, _ = judged(tmp_path, [(parts, [2 * ring_sum(parts)] * 4)])
    assert (found[0].standing, found[0].how) == (Standing.BEYOND, "")


def test_learned_orders_hold_for_all_calls(tmp_path):
    first, second = addends(4), addends(4, seed=1)
    calls = [(first, [ring_sum(first)] * 4), (second, [tree(second)] * 4)]
    found, learned = judged(tmp_path, calls)
    assert [one.standing for one in found] == [Standing.EQUAL, Standing.WITHIN]
    assert learned.said == (
        "all_reduce (sum) of float32 over ranks 0, 1, 2, 3: a ring, downwards explains 1 calls; 1 calls follow another",
    )


def test_one_rank_with_another_result_is_judged(tmp_path):
    parts = addends(4)
    out = ring_sum(parts)
    found, _ = judged(tmp_path, [(parts, [out, out, out - parts[1], out])])
    assert found[0].how == "the addend of rank 1 is missing"


def test_scattered_and_gathered_parts_are_checked(tmp_path):
    parts = addends(4)
    whole, share = ring_sum(parts), SIZE // 4
    pieces = [whole[n * share : (n + 1) * share] for n in range(4)]
    found, _ = judged(tmp_path / "s", [(parts, pieces)], op="reduce_scatter")
    assert found[0].standing == Standing.EQUAL
    found, _ = judged(tmp_path / "g", [(pieces, [whole] * 4)], op="all_gather", combines="")
    assert found[0].standing == Standing.EQUAL
    found, _ = judged(tmp_path / "w", [(pieces, [whole.roll(1)] * 4)], op="all_gather", combines="")
    assert found[0].standing == Standing.BEYOND


def test_greatest_values_and_integers_round_nothing(tmp_path):
    parts = addends(4)
    most = torch.stack(parts).amax(0)
    found, _ = judged(tmp_path / "m", [(parts, [most] * 4)], combines="max")
    assert found[0].standing == Standing.EQUAL
    counts = [torch.arange(20) + rank for rank in range(4)]
    calls = [(counts, [sum(counts)] * 4), (counts, [sum(counts) + (torch.arange(20) == 3)] * 4)]
    found, _ = judged(tmp_path / "i", calls)
    assert [one.standing for one in found] == [Standing.EQUAL, Standing.BEYOND]
