"""FLOPs of products, and sizes and types on Gloo, are read from what is recorded of inputs, by every reader alike."""

import json

import pytest

from tests.ingest.sample import document, event, scanned


def flops(name, shapes, beside=None):
    """What both readers make of an operator's inputs; `beside` sends the block the slow way."""
    first = event(0) | ({} if beside is None else {"ts": beside})
    called = event(1, cat="cpu_op", name=name, args={"Input Dims": shapes})
    rows, record = scanned(json.dumps(document([first, called])).encode())
    assert not record.issues["non_integer_value"]
    return rows[-1]["flops"]


@pytest.mark.parametrize("beside", [None, "1e0"])
@pytest.mark.parametrize(
    ("name", "shapes", "expected"),
    [
        ("aten::mm", [[2, 3], [3, 5]], 60),
        ("aten::addmm", [[5], [2, 3], [3, 5], [], []], 60),
        ("aten::bmm", [[7, 2, 3], [7, 3, 5]], 420),
        ("aten::baddbmm", [[7, 2, 5], [7, 2, 3], [7, 3, 5]], 420),
        ("aten::_scaled_dot_product_flash_attention", [[2, 4, 8, 16]] * 3 + [[]], 4 * 2 * 4 * 8 * 8 * 16),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", [[2, 4, 8, 16]] * 4, 65536),
        ("aten::linear", [[2, 3], [3, 5]], None),
        ("aten::mm", [[2, 3], [4, 5]], None),
        ("aten::mm", [[2, 3]], None),
        ("aten::mm", [[2, 3], [3, -5]], None),
        ("aten::mm", [[2, 3], [3, "5"]], None),
        ("aten::mm", [[10**18, 3], [3, 5]], None),
        ("aten::mm", [[[2, 3], [3, 5]], []], None),
        ("aten::mm", "[[2, 3], [3, 5]]", None),
        ("aten::mm", 7, None),
    ],
)
def test_a_product_of_known_shapes(name, shapes, expected, beside):
    assert flops(name, shapes, beside) == expected


@pytest.mark.parametrize("beside", [None, "1e0"])
@pytest.mark.parametrize(
    ("name", "shapes", "expected"),
    [
        ("gloo:all_reduce", [[512, 512]], 512 * 512),
        ("gloo:broadcast", [[7], [2, 3]], 13),
        ("gloo:all_gather", [[7]], 7),
        ("gloo:scatter", [[7], [7]], None),
        ("gloo:barrier", [[7]], None),
        ("gloo:all_reduce", [[]], None),
        ("gloo:all_reduce", [], None),
        ("gloo:all_reduce", [[10**18, 10**18]], None),
        ("gloo:send", [[512]], 512),
        ("gloo:recv", [[512]], 512),
        ("aten::copy_", [[512]], None),
    ],
)
def test_elements_of_collectives_on_gloo(name, shapes, expected, beside):
    first = event(0) | ({} if beside is None else {"ts": beside})
    called = event(1, cat="user_annotation", name=name, args={"Input Dims": shapes})
    (*_, row), _ = scanned(json.dumps(document([first, called])).encode())
    assert (row["in_nelems"], row["flops"]) == (expected, None)


def test_recorded_sizes_count_before_shapes():
    args = {"Input Dims": [[512]], "Collective name": "allreduce", "In msg nelems": 9}
    ((row,), _) = scanned(json.dumps(document([event(0, name="gloo:all_reduce", args=args)])).encode())
    assert row["in_nelems"] == 9


def dtype(name, types, beside=None, **more):
    """What a reader makes of the types of a call's inputs; `beside` sends the block the slow way."""
    first = event(0) | ({} if beside is None else {"ts": beside})
    called = event(1, cat="user_annotation", name=name, args={"Input type": types} | more)
    (*_, row), _ = scanned(json.dumps(document([first, called])).encode())
    return row["dtype"]


@pytest.mark.parametrize("beside", [None, "1e0"])
@pytest.mark.parametrize(
    ("name", "types", "expected"),
    [
        ("gloo:all_reduce", ["float"], "Float"),
        ("gloo:all_gather", ["c10::BFloat16"], "BFloat16"),
        ("gloo:recv", ["long int"], "Long"),
        ("gloo:scatter", ["double", "double"], "Double"),
        ("gloo:all_reduce", ["float", "double"], None),
        ("gloo:all_reduce", ["c10::complex<float>"], None),
        ("gloo:all_reduce", [], None),
        ("gloo:all_reduce", [7], None),
        ("gloo:all_reduce", "float", None),
        ("c10d::allreduce_", ["float"], None),
    ],
)
def test_types_of_calls_on_gloo(name, types, expected, beside):
    assert dtype(name, types, beside) == expected


@pytest.mark.parametrize("beside", [None, "1e0"])
def test_a_recorded_type_counts_before_inputs(beside):
    assert dtype("gloo:all_reduce", ["float"], beside, **{"Collective name": "x", "dtype": "Half"}) == "Half"
