"""Which files the inputs of `tracekit hang` name, and their bytes: any names, folders, globs, fsspec URLs.

First stage of `load`.
"""

import os
from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path

import fsspec

from tracekit.errors import InputError
from tracekit.thresholds import MAX_DUMP_BYTES

_SKIP_ENDS = (".log", ".txt", ".md", ".yaml", ".yml", ".csv", ".parquet", ".html", ".py", ".gz", ".zst")


def read_bytes(path: str) -> bytes:
    """Give the bytes of a file.

    Raises InputError where it is larger than any dump, and OSError or a backend's own error where it cannot be read.
    """
    if "://" in path:
        with fsspec.open(path, "rb") as file:
            data: bytes = file.read(MAX_DUMP_BYTES + 1)
    else:
        with Path(path).open("rb") as file:
            # 0 of a pipe or device; to make room for the greatest dump takes long
            size = os.fstat(file.fileno()).st_size
            data = file.read(min(size or MAX_DUMP_BYTES, MAX_DUMP_BYTES) + 1)
    if len(data) > MAX_DUMP_BYTES:
        raise InputError(
            f"refused: larger than {MAX_DUMP_BYTES >> 20} MiB; no flight recorder writes that much"
        )
    return data


def find_files(inputs: Sequence[str]) -> tuple[list[str], set[str]]:
    """Give every file that `inputs` name, sorted, and those of them that are named one by one.

    Raises InputError where an input names nothing.
    """
    found: dict[str, None] = {}
    named: set[str] = set()
    for text in inputs:
        if "://" in text:
            urls, alone = _remote(text)
            found.update(dict.fromkeys(urls))
            named.update(urls if alone else ())
            continue
        matches = _expand(text)
        if not matches:
            raise InputError(f"{text}: no file matches; check the pattern")
        for match in map(Path, matches):
            if match.is_dir():
                found.update(dict.fromkeys(_walk(match)))
            elif match.exists():
                found[str(match)] = None
                named.add(str(match))
            else:
                raise InputError(f"{text}: no such file or folder; check the path")
    if not found:
        raise InputError(f"{', '.join(inputs)}: no file in there; give the folder that holds the dumps")
    return sorted(found), named


def _remote(url: str) -> tuple[list[str], bool]:
    """Give the files behind an fsspec URL, and whether it names one file; InputError where it cannot be reached."""
    try:
        fs, root = fsspec.core.url_to_fs(url)
        alone = False
        if has_magic(root):
            names = [n for n in fs.glob(root) if not fs.isdir(n)]
        elif fs.isdir(root):
            names = fs.find(root)
        else:
            fs.info(root)
            names, alone = [root], True
        kept = names if alone else [n for n in names if _may_be_dump(n.rpartition("/")[2])]
        return sorted(fs.unstrip_protocol(n) for n in kept), alone
    except FileNotFoundError as error:
        raise InputError(f"{url}: no such file or folder; check the URL") from error
    except Exception as error:  # every backend has errors of its own
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{url}: cannot be reached ({reason}); check the URL and the credentials") from error


def _may_be_dump(name: str) -> bool:
    return not name.startswith(".") and not name.lower().endswith(_SKIP_ENDS)


def _expand(text: str) -> list[str]:
    if not has_magic(text) or Path(text).exists():
        return [text]
    return sorted(glob(text, recursive=True))  # noqa: PTH207 (takes absolute patterns)


def _walk(folder: Path) -> list[str]:
    """Give the files of a folder; of a recorded run (`run.json` beside `fr/`) those in `fr/`."""
    if (folder / "run.json").exists() and (folder / "fr").is_dir():
        folder = folder / "fr"
    paths: list[str] = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        paths.extend(str(Path(root) / name) for name in sorted(files) if _may_be_dump(name))
    return paths


def size_of(path: str) -> int:
    """Give the size of a local file, for progress; 0 where it cannot be told."""
    try:
        return Path(path).stat().st_size if "://" not in path else 0
    except OSError:
        return 0
