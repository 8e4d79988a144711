"""Options from outside the command line: `TRACEKIT_SLOWRANK_MESH` in the environment, `tracekit.toml` in the folder.

The command line goes before the environment, the environment before the file, the file before the default.
"""

import os
import tomllib
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from tracekit.errors import UsageError
from tracekit.small_files import read_small

FILE: Final = "tracekit.toml"
NAMED: Final = "TRACEKIT_CONFIG"
"""Environment variable that names another file."""
PROGRAMS: Final = ("tracekit", "numerics", "reftrain")
ARGUMENTS: Final = f"{__name__}.arguments"
"""Key in click's context of the arguments of a command as they were written."""
MOST_BYTES: Final = 1_000_000
"""A file of settings is no longer than this; whatever is longer was not written as one."""


def read_settings(
    program: str, name: str, command: click.Command, commands: Collection[str]
) -> dict[str, Any]:
    """Values of the options of a command by parameter, as `[program.name]` of the file gives them.

    Raises UsageError where the file is not TOML, or names a program, command or option that there is not; a value that
    an option cannot hold is refused by click, as one of the command line is.
    """
    path = settings_file()
    if path is None:
        return {}
    tables = _table(_known(_parsed(path), {program, *PROGRAMS}, str(path)), program, path)
    options = {_key(p): p for p in command.params if isinstance(p, click.Option)}
    table = _table(_known(tables, commands, f"{path}: [{program}]"), name, path)
    return {
        str(options[key].name): _written(value, options[key].multiple + (options[key].nargs != 1))
        for key, value in _known(table, options, f"{path}: [{program}.{name}]").items()
    }


def name_variables(program: str, command: click.Command, name: str) -> None:
    """Let each option of a command be set by the variable PROGRAM_COMMAND_OPTION.

    click's `auto_envvar_prefix` would ask for names of parameters: TRACEKIT_SLOWRANK_HTML_TO for `--html`.
    """
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            parameter.envvar = "_".join((program, name, _key(parameter))).replace("-", "_").upper()


def from_outside(ctx: click.Context) -> list[str]:
    """A line for each option of the command of a context that the environment or the file sets."""
    lines = []
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(str(parameter.name))
        if source is ParameterSource.ENVIRONMENT:
            lines.append(f"--{_key(parameter)} is set by the environment variable {parameter.envvar}")
        elif source is ParameterSource.DEFAULT_MAP:
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


def _known(table: dict[str, Any], names: Collection[str], where: str) -> dict[str, Any]:
    """The table itself; UsageError where it holds a name that is not among `names`."""
    for key in table:
        if key not in names:
            near = get_close_matches(key, names, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(sorted(names))}"
            raise UsageError(f"{where} has no {key!r}; {meant}")
    return table


def _written(value: object, nested: int) -> object:
    """A value of the file as a command line has it, for click to parse; lists nest as deep as the option takes."""
    if nested == 0:
        return str(value)
    return [_written(one, nested - 1) for one in (value if isinstance(value, list) else [value])]


def _key(parameter: click.Parameter) -> str:
    """The long name of an option as it is written, without its hyphens."""
    return max(parameter.opts, key=len).removeprefix("--")
