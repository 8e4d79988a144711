"""The colours of all pages: each has one meaning everywhere, and readers who see fewer colours tell them apart.

A page names meanings, never colours: its style defines `--culprit` and so on for a light and for a dark screen. A test
looks at every pair as people with protanopia, deuteranopia and tritanopia see it (Machado, Oliveira and Fernandes,
"A Physiologically-based Model for Simulation of Color Vision Deficiency", 2009).
"""

from dataclasses import dataclass
from typing import Final

from tracekit.axes import AXES, CONTEXT, DATA, PIPELINE, TENSOR


@dataclass(frozen=True)
class Colour:
    """One meaning, and its colour on a light and on a dark page."""

    meaning: str
    light: str
    dark: str


GROUND: Final = Colour("page", "#ffffff", "#14171a")
PALETTE: Final[dict[str, Colour]] = {
    "culprit": Colour("costs time: a culprit, or an excess above the threshold", "#e4673b", "#e67910"),
    "less": Colour("takes less time: below its peers, or shorter than before", "#009d7a", "#a7dbc9"),
    "victim": Colour("waits for others", "#306dbf", "#69caff"),
    "compute": Colour("computes", "#667383", "#848689"),
    "host": Colour("host", "#d1d8e1", "#3e3e3e"),
    TENSOR: Colour("waits on tp", "#523773", "#b960e1"),
    CONTEXT: Colour("waits on cp", "#15561d", "#5bab6f"),
    PIPELINE: Colour("waits on pp", "#cf9300", "#f4d677"),
    DATA: Colour("waits on dp", "#e96bb4", "#f270cc"),
    "tp-pale": Colour("transfers on tp", "#cfaeea", "#615695"),
    "cp-pale": Colour("transfers on cp", "#c0f9c6", "#3c714a"),
    "pp-pale": Colour("transfers on pp", "#edd18e", "#6f641f"),
    "rounding": Colour("differs by rounding or by the order of sums", "#b977d2", "#5551fd"),
    "reported": Colour("a reported value alone differs", "#95b78e", "#c9e2a6"),
    "dp-pale": Colour("transfers on dp", "#eda8b2", "#834770"),
}
"""Colours of data, by name."""
PLAIN: Final[dict[str, Colour]] = {
    "ink": Colour("text", "#1b1f24", "#e4e7eb"),
    "soft": Colour("text beside other text", "#57606a", "#9aa4af"),
    "page": GROUND,
    "panel": Colour("a field of the page", "#f5f6f8", "#1f2429"),
    "line": Colour("a line between fields", "#d5dae0", "#3a424a"),
}
"""Colours of the page itself; striped with the page, they stand for what is not known."""

Fill = tuple[str, ...]
"""Names of colours: one fills an area, several are its stripes."""
MISSING: Final[Fill] = ("soft", "page")
"""What was not recorded."""
DOUBTED: Final[Fill] = ("culprit", "page")
"""A change or a price of the culprit's size that is not proven."""
_OTHER: Final[dict[str, Fill]] = {"waits": ("ink", "page"), "transfers": ("soft", "line")}
"""Communication along no known axis."""
_OWN: Final[dict[str, Fill]] = {
    "compute": ("compute",),
    "host": ("host",),
    "host and gaps": ("host",),
    "idle": ("host", "page"),
    "bubble": (PIPELINE, "pp-pale"),
}
"""Kinds of time that lie along no axis; a bubble is a wait for a neighbour in the pipeline."""


def fill_of(kind: str) -> Fill:
    """Return the colours of a kind of time: `compute`, `waits on tp`, `cp_dp transfer`, …

    Several axes are stripes with the page between them: without it, narrow stripes of two axes run together to the
    colour of a third meaning.
    """
    if kind in _OWN:
        return _OWN[kind]
    words = kind.split()
    does = (
        "waits"
        if {"waits", "waiting"} & {*words}
        else "transfers"
        if {"transfers", "transfer"} & {*words}
        else ""
    )
    if not does or "or" in words:
        return MISSING
    axes = words[-1].split("_") if words[0] == does else words[0].split("_")
    if not {*axes} <= {*AXES}:
        return _OTHER[does]
    names = [axis if does == "waits" else f"{axis}-pale" for axis in axes]
    return (names[0],) if len(names) == 1 else tuple(stripe for name in names for stripe in (name, "page"))


def colours_as_css() -> str:
    """Return the rules that define every colour: as the system is set, and light on paper."""
    every = PLAIN | PALETTE
    light = "".join(f"--{name}:{c.light};" for name, c in every.items())
    dark = "".join(f"--{name}:{c.dark};" for name, c in every.items())
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root:not(.paper){{{dark}}}}}\n"
