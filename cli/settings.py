"""Options from outside the command line: `TRACEKIT_SLOWRANK_MESH` in the environment, `tracekit.toml` in the folder.

The command line goes before the environment, the environment before the file, the file before the default.
"""

import os
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import click

from tracekit.errors import UsageError
from tracekit.small_files import read_small

FILE: Final = "tracekit.toml"
NAMED: Final = "TRACEKIT_CONFIG"
"""Environment variable that names another file."""
ARGUMENTS: Final = f"{__name__}.arguments"
"""Key in click's context of the arguments of a command as they were written."""
MOST_BYTES: Final = 1_000_000
"""A file of settings is no longer than this; whatever is longer was not written as one."""


def read_settings(program: str, command: click.Command, name: str) -> dict[str, Any]:
    """Values of the options of a command by parameter, as `[program.name]` of the file gives them.

    Raises UsageError where the file is not TOML, or names an option that the command has not.
    """
    path = settings_file()
    if path is None:
        return {}
    tables = _table(_table(_parsed(path), program, path), name, path)
    options = {_key(p): p for p in command.params if isinstance(p, click.Option)}
    values: dict[str, Any] = {}
    for key, value in tables.items():
        if key not in options:
            allowed = ", ".join(sorted(options))
            raise UsageError(f"{path}: [{program}.{name}] has no {key!r}; choose from {allowed}")
        values[str(options[key].name)] = _fitting(options[key], value, f"{path}: [{program}.{name}] {key}")
    return values


def name_variables(program: str, command: click.Command, name: str) -> None:
    """Let each option of a command be set by the variable PROGRAM_COMMAND_OPTION."""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            parameter.envvar = "_".join((program, name, _key(parameter))).replace("-", "_").upper()


def from_outside(command: click.Command, values: Collection[str]) -> list[str]:
    """A line for each option of a command that the environment or the file sets; `values` are of the file."""
    lines = []
    for parameter in command.params:
        if isinstance(parameter.envvar, str) and os.environ.get(parameter.envvar):
            lines.append(f"--{_key(parameter)} is set by the environment variable {parameter.envvar}")
        elif parameter.name in values:
            lines.append(f"--{_key(parameter)} is set by {settings_file()}")
    return lines


def settings_file() -> Path | None:
    """The file of settings: the one that `TRACEKIT_CONFIG` names, else the one of the current folder, or None."""
    named = os.environ.get(NAMED)
    if named:
        return Path(named)
    return Path(FILE) if Path(FILE).is_file() else None


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_small(path, MOST_BYTES).decode())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; fix it, or {NAMED}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML ({error}); fix it, or name another file by {NAMED}") from error


def _table(tables: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    found = tables.get(key, {})
    if not isinstance(found, dict):
        raise UsageError(f"{path}: {key!r} is a value; write a table of options, as in [tracekit.slowrank]")
    return found


def _fitting(option: click.Option, value: object, where: str) -> object:
    """A value of the file as click takes it; UsageError where the option cannot hold one of that kind."""
    if option.multiple:
        if isinstance(value, list) and all(isinstance(v, str) for v in value):
            return value
        raise UsageError(f'{where}: a single value; write a list, as in ["rank=5"]')
    if option.is_flag:
        if isinstance(value, bool):
            return value
        raise UsageError(f"{where}: a switch is either; write true or false")
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise UsageError(f'{where}: no text; write one, as on the command line: "3:8"')


def _key(parameter: click.Parameter) -> str:
    """The long name of an option as it is written, without its hyphens."""
    return max(parameter.opts, key=len).removeprefix("--")
