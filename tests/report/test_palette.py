"""The colours of all pages: apart for every reader, one meaning each, and the one scale that they follow."""

import re
from itertools import combinations

import numpy as np
import pytest

from tests.house.source import ROOT
from tracekit.axes import AXES
from tracekit.page.palette import GROUND, MISSING, PALETTE, PLAIN, colours_as_css, fill_of
from tracekit.page.scale import scale_of, span_of, whole

SEEN = {
    "all colours": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}  # fmt: skip
"""Linear RGB as people see it: Machado, Oliveira and Fernandes (2009), severity 1."""
TO_XYZ = np.array([
    [0.4124564, 0.3575761, 0.1804375],
    [0.2126729, 0.7151522, 0.0721750],
    [0.0193339, 0.1191920, 0.9503041],
])  # fmt: skip
APART = 10.0
"""Distance in CIELAB of two colours that are not taken for each other side by side; 2.3 is just visible."""


def seen(colour, matrix):
    """A colour in CIELAB (D65), as somebody sees it."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(np.array(matrix) @ linear, 0, 1) / (0.95047, 1, 1.08883)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SEEN)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_two_colours_are_told_apart(theme, sight):
    every = {name: getattr(colour, theme) for name, colour in {**PALETTE, "page": GROUND}.items()}
    near = {
        pair: float(np.linalg.norm(seen(every[pair[0]], SEEN[sight]) - seen(every[pair[1]], SEEN[sight])))
        for pair in combinations(every, 2)
    }
    assert {pair: d for pair, d in near.items() if d < APART} == {}


def blended(fill, theme):
    """The colour that stripes have from afar, which add up as light does."""
    colours = [getattr((PALETTE | PLAIN)[name], theme) for name in fill]
    rgb = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in colours])
    light = np.mean(np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4), axis=0)
    mixed = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * v):02x}" for v in mixed)


@pytest.mark.parametrize("sight", SEEN)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_stripes_of_axes_never_look_like_culprits(theme, sight):
    kinds = [
        f"{what} on {'_'.join(some)}" for what in ("waits", "transfers") for some in combinations(AXES, 2)
    ]
    culprit = seen(getattr(PALETTE["culprit"], theme), SEEN[sight])
    near = {
        kind: np.linalg.norm(seen(blended(fill_of(kind), theme), SEEN[sight]) - culprit) for kind in kinds
    }
    assert min(near.values()) > 2 * APART, near


def test_each_meaning_has_one_colour():
    meanings = [colour.meaning for colour in PALETTE.values()]
    assert len(set(meanings)) == len(meanings)
    assert all(f"--{name}:" in colours_as_css() for name in PALETTE | PLAIN)


@pytest.mark.parametrize(
    ("kind", "fill"),
    [
        ("waits on tp", ("tp",)),
        ("tp waiting", ("tp",)),
        ("transfers on cp_dp", ("cp-pale", "page", "dp-pale", "page")),
        ("cp_dp transfer", ("cp-pale", "page", "dp-pale", "page")),
        ("compute", ("compute",)),
        ("host and gaps", ("host",)),
        ("host", ("host",)),
        ("waits or transfers", MISSING),
        ("tp either", MISSING),
        ("unknown", MISSING),
        ("<b>", MISSING),
        ("", MISSING),
    ],
)
def test_kinds_of_time_have_their_colours(kind, fill):
    assert fill_of(kind) == fill


@pytest.mark.parametrize("axis", ["other", "unknown", "ep", "cp_ep"])
def test_unknown_axes_borrow_no_colour(axis):
    for kind in (f"waits on {axis}", f"transfers on {axis}"):
        assert not {*fill_of(kind)} & {*AXES, *PALETTE}


def test_pages_name_meanings_and_no_colours():
    """Every colour is that of the palette: none stands in a template, a script or a module of a page."""
    files = [
        path
        for folder in ("tracekit/page", "tracekit/report/html", "numerics/report")
        for path in (ROOT / folder).iterdir()
        if path.suffix in {".j2", ".js", ".css", ".py"} and path.name != "palette.py"
    ]
    found = {path.name: re.findall(r"#[0-9a-fA-F]{3,8}\b(?!;)", path.read_text()) for path in files}
    assert {name: colours for name, colours in found.items() if colours} == {"charts.js": ["#111", "#fff"]}


@pytest.mark.parametrize("values", [[], [np.nan], [0.0], [1.0, -1.0], [3.0], [-7.0, 2.0], [1e-9]])
def test_scales_reach_the_threshold(values):
    scale = scale_of(values, 2.0)
    known = [v for v in values if not np.isnan(v)]
    assert scale.high == max([2.0, *known])
    assert scale.low == (min([-2.0, *known]) if any(v < 0 for v in known) else 0.0)
    assert scale.pale == 2.0


def test_spans_show_the_threshold_both_ways():
    assert span_of([100.0, 100.1, 100.2], 2.0).document() == pytest.approx(
        {"low": 98.1, "high": 102.1, "pale": 2}
    )
    assert span_of([90.0, 100.0, 130.0], 2.0).document() == {"low": 90.0, "high": 130.0, "pale": 2.0}
    assert span_of([], 2.0).document() == {"low": -2.0, "high": 2.0, "pale": 2.0}
    assert whole(7.0).document() == {"low": 0.0, "high": 7.0, "pale": 0.0}
