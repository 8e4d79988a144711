"""One self-contained HTML file: it holds its style, script, chart library and data.

Every text of a finding is untrusted. The templates escape it, the data block cannot end its element, and the page's own
policy allows only the two scripts with the hashes that it names, and no request.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final

from tracekit.installation import check_extra
from tracekit.text import plain

_IN_DATA: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def render(template: str, data: dict[str, Any], **values: Any) -> str:
    """Return the page of a template in this folder; `data` goes to the script, `values` to the template.

    The same arguments give the same bytes. Raises MissingExtraError where the extra `report` is not installed.
    """
    check_extra("report", "--html")
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    scripts = [get_plotlyjs().replace("</script", "<\\/script"), _file("page.js")]
    hashes = " ".join(f"'sha256-{b64encode(sha256(s.encode()).digest()).decode()}'" for s in scripts)
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(_file),
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        policy=_POLICY.format(scripts=hashes),
        style=Markup(_file("page.css")),  # noqa: S704 - ours
        scripts=[Markup(s) for s in scripts],  # noqa: S704 - ours and the library's; neither holds a finding
        data=Markup(data_block(data)),  # noqa: S704 - escaped for its element
        **values,
    )


BELOW: Final = ("evidence", "quality", "rejected", "note")
"""Labels of lines with sections of their own."""


def below(lines: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the lines of an answer for templates: `lines` beside the verdict, and the lines `below` by label."""
    return {
        "lines": [line for line in lines if line[0] not in BELOW],
        "below": [(name, [text for label, text in lines if label == name]) for name in BELOW],
    }


_POLICY: Final = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def data_block(data: dict[str, Any]) -> str:
    """Return `data` as JSON in which no text can end a script element. Raises ValueError for NaN and infinity."""
    return json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_IN_DATA)


def _harmless(value: Any) -> Any:
    """The text without control characters; a value that is not a plain `str` is unchanged."""
    return plain(value) if type(value) is str else value


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
