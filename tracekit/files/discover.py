"""Which files the inputs name: files, folders (searched through), globs, fsspec URLs.

What is plainly something else (by name, in a folder) is set aside as foreign. In a recorded run folder
(`run.json` beside `trace/`) only `trace/` holds traces; of its manifest only the mesh and the hosts are read.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import fsspec

from tracekit.errors import InputError
from tracekit.files.source import Source
from tracekit.findings import Rejected
from tracekit.store import is_run

TRACE_ENDS = (".json", ".json.gz", ".json.zst", ".json.zstd", ".parquet", ".trace", ".trace.gz", ".trace.zst")
MAX_MANIFEST = 1 << 26


@dataclass
class Found:
    """Sources to read, which of them the user named one by one, and what was set aside."""

    sources: list[Source] = field(default_factory=list)
    named: set[str] = field(default_factory=set)  # labels
    foreign: list[str] = field(default_factory=list)
    unreadable: list[Rejected] = field(default_factory=list)
    mesh_hints: list[dict[str, Any]] = field(default_factory=list)
    hosts: dict[int, str] = field(default_factory=dict)

    def add(self, source: Source, *, named: bool) -> None:
        """Take a source once, however often it was named."""
        if named:
            self.named.add(source.label)
        if all(source.uri != known.uri for known in self.sources):
            self.sources.append(source)


def discover(inputs: Sequence[str]) -> Found:
    """Everything `inputs` name, sorted; InputError where one of them names nothing."""
    found = Found()
    for text in inputs:
        if "://" in text:
            _remote(text, found)
        elif Path(text).is_dir():
            _folder(Path(text), found)
        elif Path(text).exists():
            _file(Path(text), found, named=True)
            _manifest_near(Path(text).parent, found)
        elif has_magic(text):
            matches = sorted(glob(text, recursive=True))  # noqa: PTH207 (takes absolute patterns)
            if not matches:
                raise InputError(f"{text}: no file matches; check the pattern")
            for match in matches:
                _folder(Path(match), found) if Path(match).is_dir() else _file(
                    Path(match), found, named=False
                )
        else:
            raise InputError(f"{text}: no such file or folder; check the path")
    found.sources.sort(key=lambda s: s.uri)
    return found


def _file(path: Path, found: Found, *, named: bool) -> None:
    if not named and not path.name.lower().endswith(TRACE_ENDS):
        found.foreign.append(str(path))
        return
    try:
        size = path.stat().st_size
    except OSError:
        size = 0  # reading it will say why
    found.add(Source(str(path), str(path), size), named=named)


def _folder(folder: Path, found: Found) -> None:
    manifest = _manifest_near(folder, found)
    if manifest is not None and (folder / "trace").is_dir():
        folder = folder / "trace"
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        reason = f"the folder cannot be read ({error.strerror or error}); check its owner and mode"
        found.unreadable.append(Rejected(str(folder), reason))
        return
    for path in paths:
        if path.name.startswith("."):
            continue
        if not path.is_dir():
            _file(path, found, named=False)
        elif is_run(path):
            found.foreign.append(str(path))
        else:
            _folder(path, found)


def _manifest_near(folder: Path, found: Found) -> dict[str, Any] | None:
    """Read the recorded run's manifest in `folder`, or above it where `folder` is its trace/."""
    path = folder / "run.json" if folder.name != "trace" else folder.parent / "run.json"
    try:
        if path.stat().st_size > MAX_MANIFEST:
            return None
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(manifest, dict) or not str(manifest.get("schema", "")).startswith("reftrain.run/"):
        return None
    hint = _mesh_hint(manifest.get("mesh"))
    if hint is not None and hint not in found.mesh_hints:
        found.mesh_hints.append(hint)
    found.hosts.update(_hosts(manifest.get("hosts")))
    return manifest


def _mesh_hint(mesh: Any) -> dict[str, Any] | None:
    order, sizes = (mesh.get("order"), mesh.get("sizes")) if isinstance(mesh, dict) else (None, None)
    if not isinstance(order, list) or not isinstance(sizes, dict) or set(order) != set(sizes):
        return None
    if not all(type(n) is int and n > 0 for n in sizes.values()):
        return None
    return {"order": order, "sizes": {axis: sizes[axis] for axis in order}}


def _hosts(hosts: Any) -> dict[int, str]:
    """Host by rank from a list by rank, or an object by rank, or an object of rank lists by host."""
    if isinstance(hosts, list):
        return {i: h for i, h in enumerate(hosts) if isinstance(h, str)}
    by_rank: dict[int, str] = {}
    for key, value in hosts.items() if isinstance(hosts, dict) else ():
        if isinstance(value, list):
            by_rank.update({r: key for r in value if type(r) is int})
        elif isinstance(value, str) and key.isdecimal():
            by_rank[int(key)] = value
    return by_rank


def _remote(url: str, found: Found) -> None:
    try:
        fs, path = fsspec.core.url_to_fs(url)
        if has_magic(path):
            paths, named = sorted(p for p in fs.glob(path) if not fs.isdir(p)), False
        elif fs.isdir(path):
            paths, named = sorted(fs.find(path)), False
        else:
            paths, named = [path], True
            fs.info(path)
    except FileNotFoundError as error:
        raise InputError(f"{url}: no such file or folder; check the URL") from error
    except Exception as error:  # every backend has errors of its own
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{url}: cannot be reached ({reason}); check the URL and the credentials") from error
    if not paths:
        raise InputError(f"{url}: no file matches; check the URL")
    for path in paths:
        full = fs.unstrip_protocol(path)
        if not named and not path.lower().endswith(TRACE_ENDS):
            found.foreign.append(full)
        else:
            found.add(Source(full, full, int(fs.info(path).get("size") or 0)), named=named)
