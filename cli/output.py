"""Writes answers on stdout or into files; talk and progress go to stderr."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from tracekit.errors import UsageError


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
