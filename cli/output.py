"""Answers on stdout or into files, talk on stderr; faults become one sentence and an exit code here."""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from tracekit.errors import TracekitError, UsageError
from tracekit.text import plain

from . import exit_codes

DEBUG = "TRACEKIT_DEBUG"


def emit(text: str, document: Callable[[], str], json_to: str | None) -> None:
    """Print the answer: JSON alone on stdout for `-`, else text, with the JSON in the file named."""
    if json_to == "-":
        click.echo(document(), nl=False)
        return
    click.echo(text, nl=False)
    if json_to is not None:
        write_file(Path(json_to), document())


def write_file(path: Path, text: str) -> None:
    """Write under a temporary name and rename, so that a killed command leaves nothing half-written."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.absolute().parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        Path(file.name).chmod(0o644)
        Path(file.name).replace(path)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror or error}); name another file"
        ) from error


@contextmanager
def reported(program: str) -> Iterator[None]:
    """Turn every exception into one sentence on stderr and the exit code of docs/cli.md."""
    try:
        yield
    except TracekitError as error:
        click.echo(f"{program}: {plain(str(error))}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        click.echo(f"{program}: interrupted", err=True)
        sys.exit(exit_codes.INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo(f"{program}: interrupted", err=True)
        sys.exit(exit_codes.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left: nothing more to say
        sys.exit(exit_codes.OK)
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        click.echo(
            f"{program}: a fault of ours, please report it: {type(error).__name__}: {error} ({DEBUG}=1 shows where)",
            err=True,
        )
        sys.exit(exit_codes.FAULT)


def run(program: str, group: click.Group) -> None:
    """Run a command group as a program; a polite kill cleans up as an interrupt does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with reported(program):
        result: Any = group.main(prog_name=program, standalone_mode=False)
        sys.exit(result if isinstance(result, int) else exit_codes.OK)
