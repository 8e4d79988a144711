"""Reads a `RunConfig` from a TOML file and flags: preset first, then the file, then the flags.

Unknown tables and fields, and values of another type, are refused with the nearest name.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec

from reftrain.config.presets import preset_tables
from reftrain.config.run import RunConfig
from reftrain.errors import ConfigError
from reftrain.thresholds import LARGEST_CONFIG_FILE, LARGEST_NUMBER
from tracekit.small_files import read_small

RUN_TABLE = "run"
_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text in quotes",
    "bool": "true or false",
    "array": "a list in square brackets",
}
"""What a value must be, by msgspec's word for it."""


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


def from_file_tables(tables: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """Build the configuration from tables as a file holds them, with the presets that they name."""
    return _merged(tables, {})


def read_document(path: Path) -> dict[str, Any]:
    """Read a TOML file; raise `ConfigError` when it is unreadable or not TOML."""
    try:
        document: dict[str, Any] = tomllib.loads(read_small(path, LARGEST_CONFIG_FILE).decode())
    except OSError as error:
        raise ConfigError(str(path), error.strerror or str(error), "give a readable TOML file") from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # bad TOML, text in another coding, a number of 5 000 digits
        raise ConfigError(str(path), f"is not valid TOML ({str(error)[:200]})", "correct the file") from error
    return document


def read_tables(path: Path) -> dict[str, dict[str, Any]]:
    """Read the tables of a TOML file; raise `ConfigError` when it is unreadable or no table of tables."""
    document = read_document(path)
    only_tables(document, f"{path}: ")
    return document


def only_tables(document: Mapping[str, Any], where: str = "") -> None:
    """Raise `ConfigError` for a field outside a table; `where` is put before its name."""
    for name, table in document.items():
        if not isinstance(table, dict):
            raise ConfigError(
                f"{where}{name}", "is outside a table", f"write it under [{RUN_TABLE}] or its own table"
            )


def from_tables(tables: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """Build a `RunConfig` from `{table: {field: value}}`; the table `run` holds RunConfig's own fields."""
    _check_names(tables)
    nested = {name: values for name, values in tables.items() if name != RUN_TABLE}
    document = {**tables.get(RUN_TABLE, {}), **nested}
    try:
        return msgspec.convert(document, RunConfig)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error), document) from error


def known_fields() -> dict[str, list[str]]:
    """Return the names of all fields by table, those of a run itself under `run`."""
    hints = get_type_hints(RunConfig)
    known = {table: [f.name for f in fields(kind)] for table, kind in hints.items() if is_dataclass(kind)}
    known[RUN_TABLE] = [name for name in hints if name not in known]
    return known


def _check_names(tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse tables and fields of other names, with the nearest one; msgspec would pass over those of a dataclass."""
    known = known_fields()
    for table, values in tables.items():
        if table not in known:
            raise ConfigError(table, "is not a table", f"did you mean [{_nearest(table, [*known])}]?")
        for name in values:
            if name not in known[table]:
                other = [f"[{name}]"] if name in known else [f"{t}.{name}" for t in known if name in known[t]]
                meant = (other or [_nearest(name, known[table])])[0]
                raise ConfigError(f"{table}.{name}", "is not a field", f"did you mean {meant}?")


def _wrong_type(message: str, document: Mapping[str, Any]) -> ConfigError:
    """Return the refusal of a value, from msgspec's message: "Expected `int`, got `str` - at `$.a.b[1]`"."""
    problem, _, place = message.partition(" - at `$.")
    keys = re.findall(r"\w+", place)
    value: Any = document
    for key in keys:
        value = value[int(key) if isinstance(value, list | tuple) else key]
    names = [key for key in keys if not key.isdigit()]
    field = ".".join(names if len(names) > 1 else [RUN_TABLE, *names])
    wanted = next((said for kind, said in _KINDS.items() if problem.startswith(f"Expected `{kind}`")), None)
    if wanted is None:  # a whole number that no float holds
        return ConfigError(
            field, f"{str(value)[:40]} is not a size", f"give a number below {LARGEST_NUMBER:g}"
        )
    return ConfigError(field, f"{value!r} has the wrong type", f"give {wanted}")


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return close[0]
