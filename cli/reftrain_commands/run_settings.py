"""Reads the configuration of a run from the flags that several commands of `reftrain` share."""

from collections.abc import Sequence
from typing import Any

from reftrain.errors import ConfigError
from reftrain.thresholds import MOST_STEPS, MOST_TRACED
from tracekit.axes import AXES
from tracekit.mesh import parse_sizes
from tracekit.text import whole_number

Tables = dict[str, dict[str, Any]]
"""Values by table and field, as `reftrain.config.file.load` takes them."""


def tables_of(preset: str | None, mesh: str | None, settings: Sequence[str]) -> Tables:
    """Return the tables from `--preset`, `--mesh` and `--set`; ConfigError or UsageError for an unknown value."""
    tables: Tables = {}
    for setting in settings:
        table, field, value = parse_setting(setting)
        tables.setdefault(table, {})[field] = value
    if preset:
        tables.setdefault("model", {})["preset"] = preset
    if mesh:
        tables.setdefault("mesh", {}).update(mesh_table(mesh))
    return tables


def mesh_table(text: str) -> dict[str, Any]:
    """The table `mesh` from `tp=2,pp=2`: sizes of the axes named, and the order with all others outside them."""
    sizes = parse_sizes(text)
    return {**sizes, "order": [*sizes, *(axis for axis in AXES if axis not in sizes)]}


def parse_steps(text: str) -> list[int]:
    """The steps that `3` or `2:4` (end excluded) names; raises ConfigError where it names none."""
    first, colon, end = text.partition(":")
    begin, stop = whole_number(first, MOST_STEPS), whole_number(end, MOST_STEPS)
    steps = range(begin or 0, (stop or 0) if colon else (begin or 0) + 1)
    if begin is None or not 0 < len(steps) <= MOST_TRACED:
        remedy = f"write for example 3 or 2:4, {MOST_TRACED} steps or fewer below {MOST_STEPS}"
        raise ConfigError("--trace", f"{text[:40]!r} is not a step or range", remedy)
    return list(steps)


def parse_setting(text: str) -> tuple[str, str, Any]:
    """Table, field and value of `table.field=value`; the value is TOML, and text where it is not.

    Raises ConfigError where the table, the field or the equals sign is missing.
    """
    import tomllib

    name, equals, value = text.partition("=")
    table, dot, field = name.partition(".")
    if not equals or not dot:
        raise ConfigError(
            "--set", f"{text!r} is not a table.field=value", "write for example optimizer.clip_norm=0.5"
        )
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        parsed = value
    return table, field, parsed
