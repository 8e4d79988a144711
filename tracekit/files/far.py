"""Files behind fsspec URLs: the package that serves one, what prevents access to it, and bytes put there."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tracekit.errors import InputError, OutputError, TracekitError

FileSystem = Any
"""A file system of fsspec, which is imported only if an input is a URL."""

Lent = AbstractContextManager[tuple[FileSystem, str]]
"""A file system and a path within it, lent for a while."""


def is_url(text: str) -> bool:
    """Whether a text names something behind a URL rather than a path."""
    return "://" in text


def reached(url: str) -> Lent:
    """Lend the file system of a URL and the path within it; whatever the backend raises becomes an InputError."""
    return _lent(url, "reached", InputError)


def written_to(url: str) -> Lent:
    """Lend the file system of a URL and the path within it; whatever the backend raises becomes an OutputError."""
    return _lent(url, "written", OutputError)


@contextmanager
def _lent(url: str, done: str, fails: type[TracekitError]) -> Iterator[tuple[FileSystem, str]]:
    """Lend the file system of a URL and the path within it; what cannot be `done` becomes the error `fails`."""
    import fsspec  # what reads local files need not wait for it

    try:
        yield fsspec.core.url_to_fs(url)
    except TracekitError:
        raise
    except FileNotFoundError as error:
        raise fails(f"{url}: no such file or folder; check the URL") from error
    except ImportError as error:
        raise fails(
            f"{url}: cannot be {done} ({_protocol(url)} needs a package that is not installed); "
            f"pip install {_package(url)}"
        ) from error
    except Exception as error:  # every backend has errors of its own
        raise fails(
            f"{url}: cannot be {done} ({_in_words(error)}); check the URL and the credentials"
        ) from error


def check_target(url: str) -> None:
    """Raise OutputError if no file can be put behind a URL, as far as a query for its bucket shows.

    Nothing is written: missing permission to write shows only when the file is put.
    """
    with written_to(url) as (system, path):
        if not path.strip("/") or url.endswith("/"):
            raise OutputError(f"{url}: cannot be written (it names no file); add a name to it")
        bucket = path.partition("/")[0]
        if bucket and not system.exists(bucket):
            raise OutputError(
                f"{url}: cannot be written ({bucket} does not exist); create it, or name another"
            )


def put_bytes(url: str, data: bytes) -> None:
    """Put a file behind a URL, whole or not at all where the store writes so; OutputError where it refuses."""
    with written_to(url) as (system, path):
        _make_parent(system, path)
        system.pipe_file(path, data)


def put_file(url: str, local: str) -> None:
    """Put a local file behind a URL, as `put_bytes` does, without holding it in memory."""
    with written_to(url) as (system, path):
        _make_parent(system, path)
        system.put_file(local, path)


def _make_parent(system: FileSystem, path: str) -> None:
    """Make the folder of a path; a store of objects has none, and nothing happens there."""
    parent = path.rpartition("/")[0]
    if "/" in parent.strip("/") or path.startswith("/"):
        system.makedirs(parent or "/", exist_ok=True)


def _protocol(url: str) -> str:
    return url.partition("://")[0]


def _package(url: str) -> str:
    from fsspec.registry import known_implementations

    protocol = _protocol(url)
    return str(known_implementations.get(protocol, {}).get("class", protocol)).partition(".")[0]


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
