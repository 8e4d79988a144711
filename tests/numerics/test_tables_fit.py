"""Tables of the terminal's answers: at most 80 columns, the end of a long name, and no column of nothing."""

import math

import pytest

from numerics.findings import CompareFinding, TensorDifference
from numerics.report.ladder import ladder_text
from numerics.report.text import compare_text
from tests.numerics.test_ladder_page import finding, rung

LONG = "model.layers.31.feed_forward.experts.127.down_projection.weight.exp_avg_sq"


def table(*rows):
    """The lines of the table of differences."""
    text = compare_text(CompareFinding("bug", "none", "why", "a", "b", None, largest_differences=rows))
    lines = text.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("differ most:"))
    return lines[begin : begin + 1 + len(rows)]


@pytest.mark.parametrize("known", [(4096.0, 1e-3, 0.999999, 1.000001), (None, 2e-2, None, None), (None,) * 4])
@pytest.mark.parametrize("name", ["x", LONG])
def test_differences_fit_and_stand_below_their_heads(known, name):
    head, *rows = table(TensorDifference(name, 0, *known), TensorDifference("y", 12_345, *(None,) * 4))
    assert max(map(len, [head, *rows])) <= 80
    assert rows[0].split()[0] in {name, "…" + name[len(name) - len(rows[0].split()[0]) + 1 :]}
    heads = ["max ulp", "rel", "cosine", "ratio"]
    assert [h in head for h in heads] == [value is not None for value in known]
    shown = [h for h, value in zip(heads, known, strict=True) if value is not None]
    ends = [head.index(h) + len(h) for h in ["step", *shown]]
    assert all(row[end - 1] != " " for row in rows for end in ends)


def test_the_ladder_fits():
    rungs = [
        rung(0, "plateau", (1.0, math.nan, math.inf)),
        rung(1, "unknown", (1e-300, 0.0, 0.0), module=LONG),
    ]
    rungs = [r.__class__(**{**vars(r), "tensor": LONG}) for r in rungs]
    lines = ladder_text(finding(*rungs), verbose=True).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("exp_avg_sq" in line for line in lines) == 2
