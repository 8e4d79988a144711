"""`reftrain reproduce`: the papers' tables and figures beside ours."""

import json

import click

from reftrain.errors import ConfigError

from ..completion import figures, one_of
from ..output import JSON, emit
from ..progress import waiting


@click.command()
@click.argument("figure", required=False, shell_complete=one_of(figures))
@JSON
def reproduce(figure: str | None, json_to: str | None) -> None:
    """Print published values beside ours, the deviation, and where it comes from.

    FIGURE names one table or figure; without it all are computed, which takes two minutes.

    \b
    reftrain reproduce figure10
    """
    from reftrain.cost.hardware import load_hardware
    from reftrain.papers.registry import FIGURES, MISSING
    from reftrain.papers.report import document, text

    if figure is not None and figure not in FIGURES:
        why = next((f": {one.why}" for one in MISSING if one.name == figure), "")
        problem = f"{figure[:40]!r} is not reproduced{why}" if why else f"{figure[:40]!r} is unknown"
        raise ConfigError("FIGURE", problem, f"choose {', '.join(FIGURES)}")
    chosen = [FIGURES[figure]] if figure else list(FIGURES.values())
    with waiting("computing the figures"):
        found = [(one, one.lines(load_hardware(one.machine))) for one in chosen]
    missing = () if figure else MISSING
    emit(text(found, missing), lambda: json.dumps(document(found, missing)) + "\n", json_to)
