"""What fingerprints and sketches alone show to be wrong: collectives, gradients, parameters, messages, flipped bits."""

import zlib

import pytest
import torch

from numerics.columns import Names, read_columns
from numerics.comparison.broken_invariants.invariants import broken_invariants
from numerics.comparison.compare import compare
from numerics.record.recorder import Box, Recorder
from numerics.store import open_capture

RANKS = 3


def drawn(name, shape=(24, 8)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(str(name).encode())))


def write(folder, rows_of, axis="dp"):
    """Capture of the rows (name, value, fields) that `rows_of(rank)` yields."""
    for rank in range(RANKS):
        with Recorder(folder, rank, RANKS, {axis: rank}) as to:
            for name, value, fields in rows_of(rank):
                to.record(name, value, **{"step": 0, "phase": "forward", "kind": "activation", **fields})
    return folder


def broken(folder, rows_of, axis="dp"):
    return broken_invariants(read_columns(open_capture(write(folder, rows_of, axis)), Names()))


PARTS = [drawn(rank, (60,)) for rank in range(RANKS)]


def collective(op, given, got):
    """Rows of one collective of the three ranks; values are flat."""

    def rows_of(rank):
        for kind, side in (("collective_in", given), ("collective_out", got)):
            value = side[rank]
            part = op != "all_reduce" and (kind == "collective_in") == (op == "all_gather")
            label = f"{op}.0" + ("" if op == "all_gather" else ".sum")
            fields = {"kind": kind, "axis": "group", "op": op, "label": label, "group": range(RANKS)}
            size = value.numel()
            place = {
                "global_shape": (size * (RANKS if part else 1),),
                "boxes": [Box((rank * size * part,), (size,))],
            }
            yield label, value, {**fields, **place, "partial": f"rank={rank}"}

    return rows_of


WHOLE = PARTS[2] + PARTS[1] + PARTS[0]
CHUNKS = list(WHOLE.chunk(RANKS))


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("op", "given", "got", "bad"),
    [
        ("all_reduce", PARTS, [WHOLE] * 3, False),
        ("all_reduce", PARTS, [PARTS[0] + PARTS[1]] * 3, True),
        ("all_reduce", PARTS, [WHOLE * 1.001] * 3, True),
        ("reduce_scatter", PARTS, CHUNKS, False),
        ("reduce_scatter", PARTS, [CHUNKS[1], CHUNKS[0], CHUNKS[2]], True),
        ("all_gather", CHUNKS, [WHOLE] * 3, False),
        ("all_gather", CHUNKS, [WHOLE.roll(20)] * 3, True),
    ],
)
def test_parts_and_addends_make_the_whole(tmp_path, op, given, got, bad):
    found = broken(tmp_path, collective(op, given, got))
    assert [one.name for one in found][:1] == (["collective"] if bad else [])


def gradients(change=lambda name, rank, total: total, factor=1 / RANKS):
    """Rows of five parameters' gradients of two micro-batches, and their sums."""
    names = [f"layers.{n}.weight" for n in range(12)]

    def rows_of(rank):
        for name in names:
            for batch in range(2):
                fields = {"phase": "backward", "kind": "param_grad_local", "micro_batch": batch}
                yield f"{name}.grad", drawn(f"{name}{rank}{batch}"), {**fields, "partial": f"dp={rank}"}
        for name in names:
            total = sum(drawn(f"{name}{r}{b}") for r in range(RANKS) for b in range(2)) * factor
            fields = {"phase": "reduce", "kind": "param_grad", "replica": rank}
            yield f"{name}.grad", change(name, rank, total), fields

    return rows_of


@pytest.mark.parametrize("factor", [1.0, 1 / RANKS, 0.0123])
def test_gradients_add_up_by_any_common_factor(tmp_path, factor):
    assert broken(tmp_path, gradients(factor=factor)) == []


def test_a_gradient_that_lacks_a_rank_is_found(tmp_path):
    def lacking(name, _rank, total):
        return total - drawn(f"{name}10") / RANKS if name == "layers.3.weight" else total

    (found,) = broken(tmp_path / "a", gradients(lacking))
    assert found.sentence.startswith("layers.3.weight.grad (step 0, rank 0) is not 0.3333 times the sum")
    answer = compare(tmp_path / "a", None)
    assert (answer.verdict, answer.proof) == ("bug", "invariant")


def test_factors_and_rules_of_a_trainer_are_none(tmp_path):
    own = gradients(lambda name, _rank, total: 2 * total if name == "layers.3.weight" else total)
    assert broken(tmp_path / "own", own) == []
    changed = gradients(lambda name, _rank, total: total + drawn(name) if int(name[7]) % 2 else total)
    assert broken(tmp_path / "changed", changed) == []


@pytest.mark.parametrize("touched", [[], [1], [0, 1, 2]])
def test_parameters_stay_between_steps(tmp_path, touched):
    """A rank that changes its copy alone breaks it; a trainer that changes all does what the records do not show."""
    value = drawn("weight")

    def rows_of(rank):
        yield "weight", value, {"phase": "step", "kind": "param", "replica": rank}
        later = value * 0.99 if rank in touched else value
        yield "weight", later, {"phase": "init", "kind": "param", "replica": rank, "step": 1}

    found = [one.name for one in broken(tmp_path, rows_of)]
    assert found.count("between_steps") == (len(touched) if len(touched) < RANKS else 0)


def stages(wrong):
    """Rows of a pipeline whose stages get what the stage before gave, but for the micro-batches in `wrong`."""

    def rows_of(rank):
        for batch in range(4):
            fields = {"micro_batch": batch}
            sent = batch if batch not in wrong else batch + 10
            if rank:
                yield "in.0", drawn(f"{rank - 1}{sent}"), {**fields, "kind": "input"}
            yield "out", drawn(f"{rank}{batch}"), fields

    return rows_of


def test_a_message_among_many_that_went_astray(tmp_path):
    assert broken(tmp_path / "a", stages(()), "pp") == []
    found = broken(tmp_path / "b", stages((2,)), "pp")
    assert {one.name for one in found} == {"message"}
    assert "what stage 1 got (step 0, micro-batch 2, rank 1) is not what rank 0" in found[0].sentence
    assert broken(tmp_path / "c", stages((0, 1, 2, 3)), "pp") == []  # the trainer changes what it sends


@pytest.mark.parametrize(
    ("dtype", "bit"), [("float32", 3), ("float32", 30), ("bfloat16", 6), ("bfloat16", 15)]
)
def test_one_flipped_bit_is_told_from_fingerprints(tmp_path, dtype, bit):
    value = drawn("weight").to(getattr(torch, dtype))
    other = value.clone()
    whole = torch.int32 if dtype == "float32" else torch.int16
    flat = other.view(whole).reshape(-1)
    flat[77] ^= -(1 << 15) if bit == 15 and dtype == "bfloat16" else 1 << bit

    def rows_of(rank):
        yield "weight", other if rank == 1 else value, {"phase": "step", "kind": "param", "replica": rank}

    found = broken(tmp_path, rows_of)
    assert found[0].sentence.endswith(f"one flipped bit: bit {bit} of element (9, 5), all others are equal")
