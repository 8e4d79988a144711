"""Reads a `RunConfig` from a TOML file and flags: preset first, then the file, then the flags.

Unknown tables and fields, and values of another type, are refused with the nearest name.
"""

import difflib
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from reftrain.config.presets import preset_tables
from reftrain.config.run import RunConfig
from reftrain.errors import ConfigError
from reftrain.thresholds import LARGEST_CONFIG_FILE, LARGEST_INTEGER, LARGEST_NUMBER
from tracekit.small_files import read_small

RUN_TABLE = "run"


def load(path: Path | None, overrides: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """Build the configuration from a file (or none) and overrides `{table: {field: value}}`.

    Raises `ConfigError` with the field and the remedy.
    """
    tables = read_tables(path) if path else {}
    try:
        return _merged(tables, overrides)
    except ConfigError as error:
        if path is None or _refused({}, overrides) == str(error):
            raise
        raise ConfigError(f"{path}: {error.field}", error.problem, error.remedy) from error


def _refused(tables: Mapping[str, Mapping[str, Any]], overrides: Mapping[str, Mapping[str, Any]]) -> str:
    """Return why tables and overrides make no configuration, or nothing where they make one."""
    try:
        _merged(tables, overrides)
    except ConfigError as error:
        return str(error)
    return ""


def _merged(tables: Mapping[str, Mapping[str, Any]], overrides: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """Build the configuration from a file's tables and overrides, with the presets that they name."""
    preset = overrides.get("model", {}).get("preset") or tables.get("model", {}).get("preset") or "tiny"
    data = overrides.get("data", {}).get("preset") or tables.get("data", {}).get("preset") or ""
    merged: dict[str, dict[str, Any]] = {}
    for source in (preset_tables(preset, data), tables, overrides):
        for table, values in source.items():
            merged.setdefault(table, {}).update(values)
    return from_tables(merged)


def read_tables(path: Path) -> dict[str, dict[str, Any]]:
    """Read the tables of a TOML file; raise `ConfigError` when it is unreadable or no table of tables."""
    try:
        document = tomllib.loads(read_small(path, LARGEST_CONFIG_FILE).decode())
    except OSError as error:
        raise ConfigError(str(path), error.strerror or str(error), "give a readable TOML file") from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # bad TOML, text in another coding, a number of 5 000 digits
        raise ConfigError(str(path), f"is not valid TOML ({str(error)[:200]})", "correct the file") from error
    for name, table in document.items():
        if not isinstance(table, dict):
            raise ConfigError(
                f"{path}: {name}", "is outside a table", f"write it under [{RUN_TABLE}] or its own table"
            )
    return document


def from_tables(tables: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """Build a `RunConfig` from `{table: {field: value}}`; the table `run` holds RunConfig's own fields."""
    hints = get_type_hints(RunConfig)
    nested = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    for table in tables:
        if table not in nested and table != RUN_TABLE:
            raise ConfigError(
                table, "is not a table", f"did you mean [{_nearest(table, [*nested, RUN_TABLE])}]?"
            )
    arguments: dict[str, Any] = {}
    for name, kind in nested.items():
        if name in tables:
            arguments[name] = typing.cast("Any", kind)(**_typed(name, kind, tables[name]))
    own = _typed(RUN_TABLE, RunConfig, tables.get(RUN_TABLE, {}), skip=frozenset(nested))
    return RunConfig(**arguments, **own)


def _typed(
    table: str, kind: Any, values: Mapping[str, Any], skip: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Check names and types of one table's values; lists become tuples, whole numbers become floats."""
    known = get_type_hints(kind)
    hints = {f.name: known[f.name] for f in fields(kind) if f.name not in skip}
    for name in values:
        if name not in hints:
            raise ConfigError(
                f"{table}.{name}", "is not a field", f"did you mean {_meant(name, list(hints))}?"
            )
    return {name: _convert(f"{table}.{name}", hints[name], value) for name, value in values.items()}


def _convert(field: str, hint: Any, value: Any) -> Any:
    if get_origin(hint) is typing.Literal:
        hint = str
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(field, f"{value!r} is not a list", "write it in square brackets")
        return tuple(_convert(field, get_args(hint)[0], item) for item in value)
    if isinstance(hint, types.GenericAlias):
        raise TypeError(f"no conversion for {field}: {hint}")
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) < LARGEST_NUMBER:
            raise ConfigError(
                field, f"{str(value)[:40]} is not a size", f"give a number below {LARGEST_NUMBER:g}"
            )
        return float(value)
    if type(value) is int and not abs(value) < LARGEST_INTEGER:
        raise ConfigError(
            field, f"{str(value)[:40]} is not a size", f"give a number below {LARGEST_INTEGER:.0e}"
        )
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        names = {int: "a whole number", float: "a number", str: "text in quotes", bool: "true or false"}
        raise ConfigError(field, f"{value!r} has the wrong type", f"give {names[hint]}")
    return value


def _meant(name: str, known: list[str]) -> str:
    """The nearest name in the table, or the field of that very name in another one."""
    for table, kind in get_type_hints(RunConfig).items():
        if is_dataclass(kind) and name in {f.name for f in fields(kind)}:
            return f"{table}.{name}"
    return _nearest(name, known)


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return close[0]
