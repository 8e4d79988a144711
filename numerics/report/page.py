"""What the pages of numerics share: one file without scripts or references, and the picture of modules by step."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from tracekit.text import plain

_STYLE: Final = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1c2024;background:#fff}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.2rem;margin:1.8rem 0 .5rem}h3{font-size:1rem;margin:1.4rem 0 .4rem}
.bug,.precision_policy{border-left:.4rem solid #c2321f}
.drift,.identical,.signed_zero,.reporting_only{border-left:.4rem solid #2c7a4b}
.undecided,.incomparable{border-left:.4rem solid #b7791f}.verdict{padding:.6rem 1rem;background:#f5f6f8}
table{border-collapse:collapse;font-size:13px}td,th{padding:.15rem .5rem;text-align:left}
th{font-weight:600}td.n{text-align:right;font-variant-numeric:tabular-nums}
.map td{width:1.4rem;height:1.1rem;padding:0;border:1px solid #fff}.map th{font-weight:400;white-space:nowrap}
.map td{print-color-adjust:exact;-webkit-print-color-adjust:exact}
.map .unknown{border:1px dashed #8a929a}
.map thead th{writing-mode:vertical-rl;height:7rem}.scroll{overflow-x:auto}
code{font:13px ui-monospace,monospace;background:#f0f1f3;padding:.1rem .3rem}
pre{overflow-x:auto;background:#f5f6f8;padding:1rem}
@media(prefers-color-scheme:dark){
body{color:#e6e8ea;background:#15181b}.verdict,pre,code{background:#23272b}
.map td{border-color:#15181b}.map .unknown{border-color:#8a929a}}
@media print{body{margin:0;max-width:none;color:#000;background:#fff}.scroll,pre{overflow:visible}
pre{white-space:pre-wrap}.verdict,pre,code{background:#fff}.map td{border-color:#fff}
h2,h3{break-after:avoid}tr{break-inside:avoid}}
"""
Place = tuple[str, int, str]
"""A module, a step and a phase: one field of a picture."""
_PHASES: Final = {"init": 0, "forward": 1, "backward": 2, "reduce": 3, "step": 4, "save": 5}


def page(title: str, parts: Sequence[str]) -> str:
    """Return the page of these parts, which are HTML already; its own policy forbids scripts and requests."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{text(title)}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def text(untrusted: object) -> str:
    """Return a text of a file as HTML shows it, without control characters."""
    return escape(plain(str(untrusted), "?"))


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Return a table of names and texts."""
    return "<table>" + "".join(f"<tr><th>{text(k)}</th><td>{text(v)}</td></tr>" for k, v in rows) + "</table>"


def listed(title: str, rows: Sequence[str]) -> str:
    """Return a list under a heading; nothing where it is empty."""
    if not rows:
        return ""
    return f"<h2>{text(title)}</h2><ul>" + "".join(f"<li>{text(row)}</li>" for row in rows) + "</ul>"


def picture(fields: Mapping[Place, str]) -> str:
    """Return a table of fields, which are HTML: modules downwards as they come, steps and phases to the right."""
    columns = sorted({(step, _PHASES.get(phase, 9), phase) for _, step, phase in fields})
    modules = dict.fromkeys(module for module, _, _ in fields)
    head = "".join(f"<th>{f'{step} ' * (step >= 0)}{text(phase)}</th>" for step, _, phase in columns)
    body = "".join(
        f"<tr><th>{text(module)}</th>"
        + "".join(fields.get((module, step, phase), "<td></td>") for step, _, phase in columns)
        + "</tr>"
        for module in modules
    )
    return (
        f'<div class="scroll"><table class="map"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def field(colour: str | None, depth: float, words: str) -> str:
    """Return a field: a colour ("red,green,blue", None: unknown), how strong it is, and what is said of it."""
    if colour is None:
        return f'<td class="unknown" title="{text(words)}"></td>'
    return f'<td style="background:rgba({colour},{depth:.2f})" title="{text(words)}"></td>'


def strength(relative: float | None) -> float:
    """Return how strong the colour of a relative size is: from 0.45 at 1e-9, or for none, to 1 above 1."""
    if relative is None or not 0 < relative < math.inf:
        return 0.99
    return min(1.0, 0.45 + 0.06 * max(0.0, 9 + float(f"{relative:e}".partition("e")[2])))
