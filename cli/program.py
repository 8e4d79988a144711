"""The one `main` of the three programs: a list of commands, run and reported in the same way.

A program is data: its help, and one `Command` for each command with the line that the program's `--help` shows. The
module of a command is imported when the command is called, so that `--help` loads no library.
"""

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click

from tracekit.errors import TracekitError
from tracekit.installation import missing_extra

from . import exit_codes, streams
from .settings import ARGUMENTS, from_outside, name_variables, read_settings

DEBUG = "TRACEKIT_DEBUG"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_AGAIN_S = 0.01
"""Time for a finaliser or hook to return before an interrupt is raised again."""
_NOTES = 10
"""Notes of an error that are shown, as files that were rejected."""


@dataclass(frozen=True)
class Command:
    """One command of a program; `module` of this package holds it under its own name, or as `function`."""

    name: str
    module: str
    summary: str
    function: str = ""

    def load(self) -> click.Command:
        """The click command; imports its module."""
        module = import_module(f"{__package__}.{self.module}")
        found: click.Command = getattr(module, self.function or self.name)
        return found


class Program(click.Group):
    """A group of commands that are imported when they are called, listed by what they are for."""

    def __init__(self, *, sections: Mapping[str, Sequence[Command]] | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.sections = sections or {}
        self.entries = {entry.name: entry for entries in self.sections.values() for entry in entries}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands, in the order of the help."""
        del ctx
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None; imports its module."""
        del ctx
        if cmd_name not in self.entries:
            return None
        command = self.entries[cmd_name].load()
        name_variables(str(self.name), command, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names, which takes from a file of settings what is not given."""
        near = get_close_matches(args[0], self.entries) if args else []
        if near and args[0] not in self.entries:
            ctx.fail(f"No such command '{args[0]}'. Did you mean {' or '.join(near)}?")
        name, command, rest = super().resolve_command(ctx, args)
        ctx.meta[ARGUMENTS] = tuple(rest)
        if name and command and not {*rest} & {*ctx.help_option_names}:
            ctx.default_map = {name: read_settings(str(self.name), name, command, self.entries)}
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error names the options that were set outside the command line.

        A failed import of a package of an extra becomes a MissingExtraError.
        """
        try:
            return super().invoke(ctx)
        except ImportError as error:
            refusal = missing_extra(error, f"{self.name} {ctx.invoked_subcommand}")
            if refusal is None:
                raise
            raise refusal from error
        except (click.ClickException, TracekitError) as error:
            for line in self._from_outside(ctx):
                error.add_note(line)
            raise

    def _from_outside(self, ctx: click.Context) -> list[str]:
        """Lines on the options of the called command that were set outside the command line, valid or not."""
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        if command is None:
            return []
        written = list(ctx.meta[ARGUMENTS])
        return from_outside(
            command.make_context(ctx.invoked_subcommand, written, parent=ctx, resilient_parsing=True)
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line a command, by section, without importing any."""
        del ctx
        widest = max(map(len, self.entries), default=0)
        for title, entries in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(entry.name.ljust(widest), entry.summary) for entry in entries])


def program(
    folder: str, sections: Mapping[str, Sequence[Command]]
) -> Callable[[Callable[[], None]], Program]:
    """Decorate a function with the help of a program as its docstring.

    `sections` are its commands by purpose; their modules are in `folder`.
    """

    def decorate(function: Callable[[], None]) -> Program:
        group = click.group(
            cls=Program,
            sections={
                title: [replace(entry, module=f"{folder}.{entry.module}") for entry in entries]
                for title, entries in sections.items()
            },
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        return group(click.version_option(package_name="tracekit4d")(function))

    return decorate


def run(group: Program) -> NoReturn:
    """Run a program with the arguments of this process and leave with its exit code."""
    end_politely()
    streams.prepare()
    with reported(str(group.name)):
        result: Any = group.main(prog_name=group.name, standalone_mode=False)
        sys.exit(result if isinstance(result, int) else exit_codes.OK)
    raise AssertionError  # `reported` always leaves


def end_politely() -> None:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup the terminal may go
            signal.signal(number, signal.default_int_handler)
    sys.unraisablehook = _interrupt_again


def _interrupt_again(dropped: "sys.UnraisableHookArgs") -> None:
    """Raise an interrupt again that came within a finaliser or a hook of a fork, where Python drops every exception."""
    if not issubclass(dropped.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
        return
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


@contextmanager
def reported(name: str) -> Iterator[None]:
    """Turn every exception into one sentence on stderr and its exit code (`exit_codes.of_error`)."""
    try:
        yield
    except (
        BrokenPipeError,
        streams.ReaderLeftError,
    ) as error:  # the reader left: there is nothing more to say
        sys.exit(exit_codes.of_error(error))
    except click.ClickException as error:
        error.show()
        _print_notes(error)
        sys.exit(exit_codes.of_error(error))
    except (KeyboardInterrupt, Exception) as error:
        code = exit_codes.of_error(error)
        if code == exit_codes.FAULT and os.environ.get(DEBUG):
            raise
        click.echo(f"{name}: {_sentence(error, code)}", err=True)
        _print_notes(error)
        sys.exit(code)


def _print_notes(error: BaseException) -> None:
    """Print the first notes of an error, such as the files that could not be used."""
    from tracekit.text import plain

    notes: list[str] = getattr(error, "__notes__", [])
    for note in notes[:_NOTES]:
        click.echo(plain(note), err=True)
    if len(notes) > _NOTES:
        click.echo(f"and {len(notes) - _NOTES} more", err=True)


def _sentence(error: BaseException, code: int) -> str:
    """Return the message of an error for the user, without control characters that a terminal would obey."""
    from tracekit.text import plain

    if code == exit_codes.INTERRUPTED:
        return "interrupted"
    if code == exit_codes.FAULT:
        error_text = f"{type(error).__name__}: {error}"
        return plain(f"a fault of ours, please report it: {error_text} ({DEBUG}=1 shows where)")
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        remedy = "free space there, or name" if error.errno in FULL else "name"
        return plain(f"{where}{error.strerror or error}; {remedy} another file or folder")
    return plain(str(error))
