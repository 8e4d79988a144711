"""A mesh as data, and the flags that describe one."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mesh.uses import grid
from tracekit.axes import AXES
from tracekit.errors import UsageError
from tracekit.mesh import Mesh, from_sizes, parse_mesh, parse_order

SIZES = st.fixed_dictionaries({d: st.integers(1, 3) for d in AXES})


def test_ranks_count_up_along_the_order_inner_axis_first():
    mesh = grid(tp=2, cp=1, pp=2, dp=2)
    assert mesh.order == ("tp", "cp", "pp", "dp")
    assert mesh.world_size == 8
    assert mesh.coords(1) == {"dp": 0, "pp": 0, "cp": 0, "tp": 1}
    assert mesh.coords(2) == {"dp": 0, "pp": 1, "cp": 0, "tp": 0}
    assert mesh.coords(4) == {"dp": 1, "pp": 0, "cp": 0, "tp": 0}


def test_another_order_numbers_ranks_otherwise():
    mesh = grid(("tp", "cp", "dp", "pp"), tp=2, pp=2, dp=2)
    assert mesh.coords(2) == {"dp": 1, "pp": 0, "cp": 0, "tp": 0}
    assert mesh.line(0, ["pp"]) == (0, 4)


def test_coords_are_listed_in_descent_order_whatever_the_order():
    for order in (("dp", "pp", "cp", "tp"), ("tp", "cp", "pp", "dp")):
        assert list(grid(order, tp=2, pp=2).coords(3)) == ["dp", "pp", "cp", "tp"]


def test_line_holds_ranks_that_differ_on_its_axes():
    mesh = grid(tp=2, cp=2, dp=2)
    assert mesh.line(5, ["tp"]) == (4, 5)
    assert mesh.line(5, ["cp"]) == (5, 7)
    assert mesh.line(5, ["tp", "cp"]) == (4, 5, 6, 7)
    assert mesh.line(5, []) == (5,)
    assert mesh.line(5, AXES) == tuple(range(8))


def test_dims_of_names_axes_of_whole_lines_or_planes():
    mesh = grid(tp=2, cp=2, dp=2)
    assert mesh.dims_of([4, 5]) == ("tp",)
    assert mesh.dims_of([0, 4]) == ("dp",)
    assert set(mesh.dims_of([0, 1, 2, 3]) or ()) == {"tp", "cp"}
    assert set(mesh.dims_of(range(8)) or ()) == {"tp", "cp", "dp"}
    assert mesh.dims_of([0, 3]) is None
    assert mesh.dims_of([0, 1, 2]) is None
    assert mesh.dims_of([98, 99]) is None


@settings(max_examples=40, deadline=None)
@given(SIZES, st.permutations(AXES))
def test_coordinates_are_unique_and_lines_have_axis_size(sizes, order):
    mesh = from_sizes(sizes, order)
    taken = {tuple(mesh.coords(r)[d] for d in AXES) for r in range(mesh.world_size)}
    assert taken == set(product(*(range(sizes[d]) for d in AXES)))
    for r in range(mesh.world_size):
        for d in AXES:
            line = mesh.line(r, [d])
            assert r in line
            assert [mesh.coords(o)[d] for o in sorted(line, key=lambda o: mesh.coords(o)[d])] == list(
                range(sizes[d])
            )
            assert all(mesh.line(o, [d]) == line for o in line)


def test_explicit_coordinates_need_no_strides():
    mesh = Mesh(("tp", "dp"), {"tp": 2, "dp": 2}, {0: (0, 0), 3: (1, 0), 1: (0, 1), 2: (1, 1)})
    assert mesh.line(0, ["tp"]) == (0, 3)
    assert mesh.dims_of([1, 2]) == ("tp",)


@pytest.mark.parametrize(
    ("text", "sizes", "order"),
    [
        ("tp=8,cp=1,pp=16,dp=128", {"tp": 8, "cp": 1, "pp": 16, "dp": 128}, ["tp", "cp", "pp", "dp"]),
        ("dp=2", {"dp": 2, "tp": 1, "cp": 1, "pp": 1}, ["dp", "tp", "cp", "pp"]),
        (" TP = 2 , dp=4 ", {"tp": 2, "dp": 4, "cp": 1, "pp": 1}, ["tp", "dp", "cp", "pp"]),
    ],
)
def test_parse_mesh_keeps_the_order_written(text, sizes, order):
    parsed = parse_mesh(text)
    assert parsed == sizes
    assert list(parsed) == order


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("xp=2", "unknown axis 'xp'"),
        ("", "unknown axis"),
        ("tp=2,,dp=2", "unknown axis ''"),
        ("tp=2,tp=4", "given twice"),
        ("tp=0", "an integer from 1 to 1048576"),
        ("tp=-2", "an integer from 1 to 1048576"),
        ("tp=2.5", "an integer from 1 to 1048576"),
        ("tp", "an integer from 1 to 1048576"),
        ("tp=two", "an integer from 1 to 1048576"),
    ],
)
def test_parse_mesh_says_what_is_wrong(text, says):
    with pytest.raises(UsageError, match=says) as caught:
        parse_mesh(text)
    assert str(caught.value).startswith("--mesh: ")


def test_parse_order_appends_axes_left_out():
    assert parse_order("tp,cp,dp,pp") == ("tp", "cp", "dp", "pp")
    assert parse_order("DP, tp") == ("dp", "tp", "cp", "pp")


@pytest.mark.parametrize(
    ("text", "says"), [("tp,xp", "unknown axis 'xp'"), ("tp,dp,tp", "given twice"), (" , ", "no axis given")]
)
def test_parse_order_says_what_is_wrong(text, says):
    with pytest.raises(UsageError, match=says) as caught:
        parse_order(text)
    assert str(caught.value).startswith("--order: ")
