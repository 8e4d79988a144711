"""One HTML file that asks for nothing: style, script and data stand in it; the shell of every page.

Every text of a finding is untrusted. The templates escape it, the data block cannot end its element, and the page's own
policy lets only the scripts run whose hashes it names, and no request leave.
"""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from tracekit.installation import DISTRIBUTION, check_extra
from tracekit.page.palette import Fill, colours_as_css
from tracekit.text import plain
from tracekit.units import NS_PER_S

if TYPE_CHECKING:
    from jinja2 import Environment

_IN_DATA: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
JSON_BYTES: Final = 2_000_000
"""Size of an answer as JSON up to which its page holds it: the page of the largest job stays below ten megabytes."""
_EARLIEST_NS: Final = 1_450_000_000 * NS_PER_S
"""End of 2015: PyTorch is younger, so an earlier time is that of a clock which does not count from 1970."""
_LATEST_NS: Final = 4_100_000_000 * NS_PER_S
"""End of 2099: a later time is damage."""
_POLICY: Final = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
_CHARTS: Final = "charts.js"
"""What all scripts that draw use."""


@dataclass(frozen=True)
class About:
    """What the foot of a page says: the command that makes the answer, its input, and when that was recorded.

    recorded: the time of the recording, never that of the page, because the same input gives the same bytes; None where
    the input holds none. settings: which options the environment or a file sets.
    """

    command: str = ""
    inputs: tuple[str, ...] = ()
    recorded: str | None = None
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Download:
    """An answer as JSON inside its page: the name of the file, its size in bytes, and the link; None if too large."""

    name: str
    size: int
    link: str | None


def render(
    package: str,
    template: str,
    values: Mapping[str, Any],
    *,
    document: tuple[str, str],
    about: About | None = None,
    data: Mapping[str, Any] | None = None,
    scripts: Sequence[str] = (),
) -> str:
    """Return the page of a template that lies beside the modules of `package`, or here.

    document: the name of the answer and its JSON, which the page hands out. data: what the scripts draw; a page
    without scripts has none. The same arguments give the same bytes. Raises MissingExtraError where the extra
    `report` is not installed, ValueError for NaN or infinity in `data`.
    """
    check_extra("report", "--html")
    from importlib.metadata import version

    from markupsafe import Markup

    sources = [_file(name, package) for name in ((_CHARTS, *scripts) if scripts else ())]
    hashes = " ".join(f"'sha256-{b64encode(sha256(s.encode()).digest()).decode()}'" for s in sources)
    return (
        _environment(package)
        .get_template(template)
        .render(
            policy=_POLICY.format(scripts=hashes or "'none'"),
            style=Markup(colours_as_css() + _file("page.css")),  # noqa: S704 - ours
            scripts=[Markup(s) for s in sources],  # noqa: S704 - ours; none holds a finding
            data=Markup(data_block(data or {})),  # noqa: S704 - escaped for its element
            about=about or About(),
            made_by=f"{DISTRIBUTION} {version(DISTRIBUTION)}",
            download=_download(*document),
            **values,
        )
    )


def date_text(ns: int) -> str | None:
    """Return a time of a recording, ns since 1970, in UTC; None where its clock began with the machine."""
    if not _EARLIEST_NS <= ns < _LATEST_NS:
        return None
    return datetime.fromtimestamp(ns // NS_PER_S, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def data_block(data: Mapping[str, Any]) -> str:
    """Return `data` as JSON that no text in it can break out of a script element with."""
    return json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_IN_DATA)


def paint(fill: Fill) -> str:
    """Return the colours of a legend's patch or a bar as CSS."""
    first, *others = (f"var(--{name})" for name in fill)
    if not others:
        return first
    stripes = ",".join(f"{c} {3 * i}px {3 * i + 3}px" for i, c in enumerate((first, *others)))
    return f"repeating-linear-gradient(135deg,{stripes})"


def _environment(package: str) -> "Environment":
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(lambda name: _file(name, package)),
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["paint"] = paint
    return environment


def _download(name: str, text: str) -> Download:
    """Return the answer as a link that holds it whole."""
    data = text.encode()
    link = f"data:application/json;base64,{b64encode(data).decode()}" if len(data) <= JSON_BYTES else None
    return Download(f"{name}.json", len(data), link)


def _harmless(value: Any) -> Any:
    """Return text without control characters; what is no plain `str` stays as it is."""
    return plain(value) if type(value) is str else value


def _file(name: str, package: str = __package__) -> str:
    """Return the text of a file of a package, or of the one here where that has none of this name."""
    own = files(package).joinpath(name)
    return (own if own.is_file() else files(__package__).joinpath(name)).read_text(encoding="utf-8")
