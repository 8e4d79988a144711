"""Writes answers on stdout or into files; talk and progress go to stderr."""

import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from tracekit.errors import InputError, OutputError
from tracekit.files.far import check_target, is_url, put_bytes
from tracekit.own_files import unwritable
from tracekit.text import fitted
from tracekit.thresholds.ingest import FILES_NAMED

from . import streams

NARROWEST = 40
"""Columns of a terminal below which lines are not broken: a label leaves no room for words."""
Form = Callable[[], str | bytes]
"""Writes the answer in one form, when it is asked for."""


def emit(text: str, document: Form, json_to: str | None, *others: tuple[Form, str | None]) -> None:
    """Print the answer as text, and write it as JSON and in the `others` forms into the files named.

    A form with the target `-` is printed instead of the text; a form with the target None is not written. Files are
    written first, so they exist even if the reader of stdout leaves early. If stdout is closed, a file suffices.
    """
    forms = [(document, json_to), *others]
    files = [(form, target) for form, target in forms if target not in (None, "-")]
    for form, target in files:
        write_file(str(target), form())
    if files and streams.is_closed():
        return
    printed = next((form() for form, target in forms if target == "-"), text)
    said(printed) if printed is text else click.echo(printed, nl=False)


def said(text: str) -> None:
    """Print lines for people: on a terminal broken to its width, elsewhere as they are, a fact a line."""
    fits = sys.stdout.isatty() and (room := shutil.get_terminal_size().columns) >= NARROWEST
    click.echo(fitted(text, room) if fits else text, nl=False)


def write_file(target: str | Path, text: str | bytes) -> None:
    """Write a file whole or not at all, here or behind a URL; a pipe or device, such as /dev/stdout, as it is.

    Raises OutputError, with the remedy, where that fails; a link is never replaced.
    """
    data = text if isinstance(text, bytes) else text.encode("utf-8")
    if is_url(str(target)):
        put_bytes(str(target), data)
        return
    check_writable(target)
    path = Path(target)
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            _replaced(path, data)
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error


def check_writable(target: str | Path) -> None:
    """Raise OutputError if a file cannot be written; called before the work that fills it.

    Raises BadParameter if its name is empty, as from an unset variable.
    """
    if str(target) == "":
        raise click.BadParameter("it is empty; name a file")
    if is_url(str(target)):
        check_target(str(target))
        return
    path = Path(target)
    folder = path.absolute().parent
    if path.is_dir():
        raise _refused(path, "it is a folder; the option before it takes the file to write")
    if path.exists() and not path.is_file():
        return
    if path.is_symlink():
        raise _refused(path, "it is a symbolic link")
    if not folder.is_dir():
        raise _refused(path, "its folder does not exist")
    if why := unwritable(folder):
        raise _refused(path, f"its folder refuses: {why}")


def _replaced(path: Path, data: bytes) -> None:
    """Write under a temporary name and rename, so that a killed command leaves nothing half-written."""
    with tempfile.NamedTemporaryFile(
        dir=path.absolute().parent, prefix=f".{path.name}.", delete=False
    ) as file:
        temporary = Path(file.name)
        try:
            file.write(data)
            file.flush()
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _refused(path: Path, why: str) -> OutputError:
    return OutputError(f"{path}: cannot be written ({why}); name another file")


_PRINTED = f"{__name__}.printed"
"""Key in click's context of the option that takes stdout."""


class NamedPath(click.Path):
    """A path of a file or folder; an empty one, as of an unset variable, is refused instead of taken for `.`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; BadParameter where it is empty."""
        if value == "":
            self.fail("it is empty; name a path", param, ctx)
        return super().convert(value, param, ctx)


class FiniteRange(click.FloatRange):
    """A number within bounds; `nan` is refused, which every comparison lets pass."""

    name = "float range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; raises BadParameter for other text, values out of bounds, and infinities."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return found


A_FILE = NamedPath(path_type=Path, dir_okay=False)
FOLDER = NamedPath(path_type=Path, file_okay=False)


def to_file(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    """Check `--json` and the like before any work; `-` is stdout, which only one of them can have."""
    if text == "-" and ctx.meta.setdefault(_PRINTED, param.opts[0]) != param.opts[0]:
        raise click.BadParameter(f"{ctx.meta[_PRINTED]} is printed already; name a file for one of them")
    if text is not None and text != "-":
        check_writable(text)
    return text


JSON = click.option(
    "--json",
    "json_to",
    metavar="FILE|-",
    callback=to_file,
    help="Write the answer as JSON; - is stdout, in place of text.",
)
"""The option of every command that can answer as JSON; `json_to` takes its value."""

MARKDOWN = click.option(
    "--markdown",
    "markdown_to",
    metavar="FILE|-",
    callback=to_file,
    help="Write the answer as Markdown for an issue or a chat; - is stdout, in place of text.",
)
"""The option of every command that answers as Markdown; `markdown_to` takes its value."""


@contextmanager
def about(inputs: Sequence[object]) -> Iterator[None]:
    """Put the inputs in front of a refusal that names none of them."""
    try:
        yield
    except InputError as error:
        names = [str(given) for given in inputs]
        if any(name in str(error) for name in names):
            raise
        raise type(error)(f"{', '.join(names[:FILES_NAMED])}: {error}") from error
