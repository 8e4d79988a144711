"""Finds the files that inputs name: files, folders (searched through), globs, fsspec URLs.

In a folder a file is taken or set aside by its name. Of a recorded run (`run.json` beside `trace/` and `fr/`) only the
folder with the wanted files is searched. Ingested run folders inside a folder are set aside whole. `ingest` looks for
traces, `dumps` for flight-recorder dumps; they want different files (`Wanted`) and find them in the same way.
"""

import json
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from glob import glob, has_magic
from math import prod
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from tracekit.errors import InputError, UsageError
from tracekit.files.far import is_url, reached
from tracekit.files.source import Source
from tracekit.findings import Rejected
from tracekit.small_files import read_small
from tracekit.store import is_run
from tracekit.thresholds.ingest import MAX_RANKS, MAX_RUN_MANIFEST

MANIFEST = "run.json"
SCHEMA = "reftrain.run/"
RANK = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class RecordedRun:
    """The mesh of a recorded run and the host of each rank.

    mesh_hint: {"order": axes inner to outer, "sizes": size by axis}; None where the manifest holds no usable mesh.
    """

    mesh_hint: dict[str, Any] | None
    hosts: dict[int, str]


@dataclass(frozen=True)
class Wanted:
    """The files that a search takes.

    takes: whether a file of this name is taken where the user named only its folder (a hidden local one never is).
    part: the folder of a recorded run that holds such files ("trace" or "fr").
    patterns_name_files: whether a local file that a glob matches counts as named by the user.
    """

    takes: Callable[[str], bool]
    part: str
    patterns_name_files: bool = False


Inputs = str | PathLike[str] | Sequence[str | PathLike[str]]
"""Files, folders, globs and URLs, as callers of the public functions name them."""


@dataclass
class Found:
    """Sources to read, sorted; which of them the user named one by one; and what was set aside."""

    sources: list[Source] = field(default_factory=list)
    named: set[str] = field(default_factory=set)  # labels
    foreign: list[str] = field(default_factory=list)
    unreadable: list[Rejected] = field(default_factory=list)
    runs: dict[str, RecordedRun] = field(default_factory=dict)  # the recorded runs met, by folder
    ingested: list[str] = field(default_factory=list)  # folders of ingested runs, which no search goes into

    def run_of(self, label: str) -> str:
        """Return the folder of the recorded run that holds a file, the innermost one; "" where none does."""
        return next((str(p) for p in Path(label).parents if str(p) in self.runs), "")

    def within_another(self, label: str) -> bool:
        """Return whether a file that was not named is of a run within a run, as a failed attempt of an elastic job."""
        return label not in self.named and sum(str(p) in self.runs for p in Path(label).parents) > 1


def discover(inputs: Sequence[str], wanted: Wanted) -> Found:
    """Find every wanted file that `inputs` name; InputError where one of them names nothing or is unreachable.

    Raises UsageError where one is empty: an unset variable of the shell must not mean this folder.
    """
    search = _Search(wanted)
    for text in inputs:
        if not text.strip():
            raise UsageError("an input is empty; name a file, a folder, a glob or a URL")
        if is_url(text):
            search.url(text)
        else:
            search.path(text)
    search.found.sources.sort(key=lambda s: s.uri)
    return search.found


def _is_folder(path: Path) -> bool:
    """Return whether `path` is a folder, as far as permissions allow."""
    try:
        return path.is_dir()
    except OSError:
        return False


def listed(inputs: Inputs) -> list[str]:
    """Return what a caller named, one path, glob or URL or several, as a list of texts."""
    several = [inputs] if isinstance(inputs, str | PathLike) else inputs
    return [fspath(one) for one in several]


class _Search:
    """A search and the files it has found so far."""

    def __init__(self, wanted: Wanted) -> None:
        self.found = Found()
        self._wanted = wanted
        self._taken: set[str] = set()  # uris
        self._visited: set[Path] = set()  # real folders

    def path(self, text: str) -> None:
        """Take a local file, a folder, or the matches of a glob."""
        path = Path(text)
        if path.is_dir():
            self._enter(path)
        elif path.exists():
            self._file(path, named=True)
            self._manifest(path.parent)
        elif has_magic(text):
            matches = [Path(m) for m in sorted(glob(text, recursive=True))]  # noqa: PTH207 (takes absolute patterns)
            if not matches:
                raise InputError(f"{text}: no file matches; check the pattern")
            for match in matches:
                if match.is_dir():
                    self._enter(match)
                else:
                    self._file(match, named=self._wanted.patterns_name_files)
        else:
            raise InputError(f"{text}: no such file or folder; check the path")

    def url(self, url: str) -> None:
        """Take a file behind an fsspec URL, a folder there, or the matches of a glob there."""
        named = False
        with reached(url) as (fs, path):
            if has_magic(path):
                listed = fs.glob(path, detail=True)
            elif fs.isdir(path):
                listed = fs.find(path, detail=True)
            else:
                listed, named = {path: fs.info(path)}, True
        files = {name: info for name, info in listed.items() if named or info.get("type") != "directory"}
        if not files:
            raise InputError(f"{url}: no file matches; check the URL")
        for name, info in sorted(files.items()):
            self._take(fs.unstrip_protocol(name), int(info.get("size") or 0), named=named)

    def _file(self, path: Path, *, named: bool) -> None:
        try:
            found = path.stat()
        except OSError:
            self._take(str(path), 0, named=named)  # reading it will say why
            return
        if stat.S_ISREG(found.st_mode):
            self._take(str(path), found.st_size, named=named)
        elif named or self._wanted.takes(path.name):
            reason = "it is not a regular file but a pipe, a socket or a device; copy what it gives to a file first"
            self.found.unreadable.append(Rejected(str(path), reason))

    def _take(self, uri: str, size: int, *, named: bool) -> None:
        """Take a file once, however often it is named, or set it aside by its name."""
        source = Source(uri, uri, size)
        if named:
            self.found.named.add(uri)
        elif not self._wanted.takes(source.name):
            self.found.foreign.append(uri)
            return
        if uri not in self._taken:
            self._taken.add(uri)
            self.found.sources.append(source)

    def _folder(self, folder: Path) -> None:
        """Search a folder and those in it, each real folder once: links may lead back up."""
        if self._manifest(folder) and (folder / self._wanted.part).is_dir():
            folder = folder / self._wanted.part
        try:
            real = folder.resolve()
            if real in self._visited:
                return
            self._visited.add(real)
            paths = sorted(folder.iterdir(), key=lambda p: (p.is_symlink(), p))
        except OSError as error:
            reason = f"the folder cannot be read ({error.strerror or error}); check its owner and mode"
            self.found.unreadable.append(Rejected(str(folder), reason))
            return
        for path in paths:
            if path.name.startswith("."):
                continue
            if not _is_folder(path):
                self._file(path, named=False)
            else:
                self._enter(path)

    def _enter(self, folder: Path) -> None:
        """Search a folder, or set it aside where it is an ingested run."""
        if is_run(folder):
            self.found.foreign.append(str(folder))
            self.found.ingested.append(str(folder))
        else:
            self._folder(folder)

    def _manifest(self, folder: Path) -> bool:
        """Note the mesh and hosts of a recorded run in `folder`, or above it where `folder` is its part."""
        whole = folder.parent if folder.name == self._wanted.part else folder
        run = recorded_run(whole)
        if run is None:
            return False
        self.found.runs[str(whole)] = run
        return True


# Reads the mesh and the hosts from the manifest of a recorded run (`run.json`), and nothing else.


def recorded_run(folder: Path) -> RecordedRun | None:
    """Read `run.json` in `folder`; None without it, or where it is unreadable, too large or of another schema."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(read_small(path, MAX_RUN_MANIFEST).decode())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(manifest, dict) or not str(manifest.get("schema", "")).startswith(SCHEMA):
        return None
    return RecordedRun(_mesh_hint(manifest.get("mesh")), _hosts(manifest.get("hosts")))


def _mesh_hint(mesh: Any) -> dict[str, Any] | None:
    order, sizes = (mesh.get("order"), mesh.get("sizes")) if isinstance(mesh, dict) else (None, None)
    if not isinstance(order, list) or not isinstance(sizes, dict):
        return None
    if not all(type(axis) is str for axis in order) or sorted(order) != sorted(sizes):
        return None
    if not all(type(n) is int and 0 < n <= MAX_RANKS for n in sizes.values()):
        return None
    if prod(sizes.values()) > MAX_RANKS:
        return None
    return {"order": order, "sizes": {axis: sizes[axis] for axis in order}}


def _hosts(hosts: Any) -> dict[int, str]:
    """Return host by rank, from a list by rank, an object by rank, or an object that lists ranks by host."""
    if isinstance(hosts, list):
        return {i: h for i, h in enumerate(hosts) if isinstance(h, str)}
    by_rank: dict[int, str] = {}
    for key, value in hosts.items() if isinstance(hosts, dict) else ():
        if isinstance(value, list):
            by_rank.update({r: key for r in value if type(r) is int})
        elif isinstance(value, str) and RANK.fullmatch(key):
            by_rank[int(key)] = value
    return by_rank
