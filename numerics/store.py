"""Reads a run's capture: finds its ranks, refuses damaged and foreign files, and returns one table.

Input is untrusted: a folder may hold a capture that a crash cut short, one that lacks ranks, files of another run, or
no capture at all. Each case ends here with one sentence, so that no verdict ever rests on half a capture.
"""

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from numerics.errors import CaptureError
from numerics.row_bounds import fault_in
from numerics.schema import CAPTURE_SCHEMA, FOLDER, PARTIAL_SUFFIX, ROWS, RUN_ID, STAMP, values_file
from numerics.thresholds.reading import MAX_JSON_BYTES, MAX_RANKS, READER_BYTES, READER_SECONDS
from numerics.thresholds.report import RANKS_IN_SENTENCE
from numerics.values_file import ValuesFile
from tracekit.axes import AXES
from tracekit.errors import InputError
from tracekit.small_files import read_small
from tracekit.workers import Limits, deaths

RUN_SCHEMA: Final = "reftrain.run/1"
LIMITS: Final = Limits(
    seconds=READER_SECONDS,
    memory=READER_BYTES,
    chunk=64,
    slow="reading it took longer than any capture does",
    big="not enough memory to read it",
    broken="reading it killed the process that tried: it is damaged in a way that a parser does not survive",
)
"""Bounds on reading one file of a run."""
_RANK_FILE: Final = re.compile(r"rank(\d{1,7})\.parquet")


@dataclass(frozen=True)
class Capture:
    """A whole capture of one run.

    `folder` is the run folder as the user named it. `table` holds the ROWS of all ranks, by rank and order, with one
    dictionary for each column. `config` is the configuration of run.json, else of the stamp; None where both lack it.
    `environments` are the distinct environments, each with its ranks. `run` is the run's id, empty in older captures.
    """

    folder: Path
    world_size: int
    level: str
    source: str
    table: pa.Table
    config: dict[str, Any] | None
    environments: tuple[tuple[dict[str, Any], tuple[int, ...]], ...]
    values: dict[int, Path] = field(default_factory=dict)
    run: str = ""

    @property
    def environment(self) -> dict[str, Any]:
        """Environment of the first rank."""
        return self.environments[0][0] if self.environments else {}

    def read_values(self, rank: int, key: str) -> np.ndarray:
        """Return the flat values under a key; bfloat16 is widened to float32. InputError where the file is damaged."""
        if rank not in self.values:
            raise InputError(f"{self.folder}: rank {rank} left no values; capture with level tensors")
        try:
            path = self.values[rank]
            state = path.stat()
            file = _open_values(path, state.st_mtime_ns, state.st_size, state.st_ino)
            self._refuse_foreign(file, rank)
            found = file.read(key)
        except (CaptureError, OSError) as error:
            raise InputError(str(error)) from error
        return (found.astype(np.uint32) << 16).view(np.float32) if file.is_bfloat16(key) else found

    def _refuse_foreign(self, file: ValuesFile, rank: int) -> None:
        """Raise CaptureError where values are of another run or rank than this one."""
        other = file.origin.get("run", "")
        if (self.run and other and other != self.run) or file.origin.get("rank", str(rank)) != str(rank):
            raise CaptureError(
                f"{file.path}: holds values of rank {file.origin.get('rank', '?')[:20]} of run {other[:40]}, not of "
                f"rank {rank} of run {self.run[:40]}; copy the right file here"
            )


@lru_cache(maxsize=64)
def _open_values(path: Path, *_state: int) -> ValuesFile:
    """Return the values file as it is now: its time, size and inode show if the file was written again."""
    return ValuesFile(path)


def open_capture(folder: Path) -> Capture:
    """Return the capture of a run folder, or of the capture folder itself.

    InputError, with the file, the reason and the remedy, where there is no capture, or it was cut short, lacks ranks
    or holds files of another run.
    """
    root = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    if not root.is_dir():
        raise InputError(f"{folder}: no such folder; name the folder of a run made with --capture")
    stamp = _stamp(folder, root)
    world = stamp.get("world_size")
    if not isinstance(world, int) or isinstance(world, bool) or not 1 <= world <= MAX_RANKS:
        raise InputError(f"{root / STAMP}: no sensible world size ({str(world)[:40]}); capture the run again")
    found = {
        int(m[1]): path
        for path in sorted(root.iterdir())
        if (m := _RANK_FILE.fullmatch(path.name)) and path.is_file()
    }
    _refuse_broken(folder, root, found, world)
    table, environments = _read_ranks(found, world, stamp)
    if not table.num_rows:
        raise InputError(
            f"{root}: the capture holds no tensor; was --capture on, and did the run make a step?"
        )
    manifest = _manifest(root.parent if root.name == FOLDER else root)
    return Capture(
        folder=folder,
        world_size=world,
        level=str(stamp.get("level", "digest")),
        source=str(stamp.get("source", "")),
        table=table,
        config=manifest if manifest is not None else _config(stamp),
        environments=environments,
        values={rank: root / values_file(rank) for rank in found if (root / values_file(rank)).is_file()},
        run=str(stamp.get("run", "")),
    )


def _read_ranks(
    found: dict[int, Path], world: int, stamp: dict[str, Any]
) -> tuple[pa.Table, tuple[tuple[dict[str, Any], tuple[int, ...]], ...]]:
    """Return the rows of all ranks as one table, and the distinct environments with their ranks."""
    read = [(found[rank], rank, stamp) for rank in range(world)]
    for place, reason in deaths(read, lambda task: _read_rank(*task), LIMITS).items():
        raise InputError(f"{read[place][0]}: {reason}; capture the run again")
    tables: list[pa.Table] = []
    environments: dict[str, tuple[dict[str, Any], list[int]]] = {}
    for rank in range(world):
        table, own = _read_rank(found[rank], rank, stamp)
        tables.append(table)
        name = json.dumps({k: v for k, v in own.items() if k != "host"}, sort_keys=True)
        environments.setdefault(name, (own, []))[1].append(rank)
    distinct = tuple((own, tuple(ranks)) for own, ranks in environments.values())
    return pa.concat_tables(tables).unify_dictionaries(), distinct


def _refuse_broken(folder: Path, root: Path, found: dict[int, Path], world: int) -> None:
    """Raise InputError where a rank never finished, does not belong here, or is missing."""
    broken = sorted(
        int(m[1])
        for path in root.iterdir()
        if path.name.endswith(PARTIAL_SUFFIX)
        and (m := _RANK_FILE.fullmatch(path.name[: -len(PARTIAL_SUFFIX)]))
    )
    if broken:
        raise InputError(
            f"{folder}: the capture was cut short: {_ranks(broken)} never finished (the run broke off or still runs); "
            "let it finish, or capture the run again"
        )
    extra = sorted(rank for rank in found if rank >= world)
    if extra:
        raise InputError(
            f"{folder}: {_ranks(extra)} cannot belong to a run of {world} ranks; remove the files of another run"
        )
    missing = [rank for rank in range(world) if rank not in found]
    if missing:
        raise InputError(
            f"{folder}: {_ranks(missing)} of {world} left no capture; "
            "copy the missing files here, or capture the run again"
        )


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:RANKS_IN_SENTENCE]) + (
        ", …" if len(ranks) > RANKS_IN_SENTENCE else ""
    )
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


def _json(path: Path) -> dict[str, Any]:
    found = json.loads(read_small(path, MAX_JSON_BYTES).decode())
    if not isinstance(found, dict):
        raise TypeError("no table")
    return found


def _stamp(folder: Path, root: Path) -> dict[str, Any]:
    try:
        stamp = _json(root / STAMP)
    except FileNotFoundError:
        raise InputError(
            f"{folder}: no capture ({FOLDER}/{STAMP} is missing); run again with --capture digest"
        ) from None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{root / STAMP}: unreadable ({error}); capture the run again") from error
    if stamp.get("schema") != CAPTURE_SCHEMA:
        raise InputError(
            f"{root / STAMP}: written as {str(stamp.get('schema'))[:60]!r}, this is {CAPTURE_SCHEMA}; capture again"
        )
    return stamp


def _read_rank(path: Path, rank: int, stamp: dict[str, Any]) -> tuple[pa.Table, dict[str, Any]]:
    """Return the rows of one rank and its environment. InputError for a file of another kind, schema, rank or run."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table, metadata = file.read(use_threads=False), file.metadata.metadata or {}
    except (OSError, pa.ArrowException, ValueError) as error:
        raise InputError(f"{path}: unreadable ({str(error)[:200]}); capture the run again") from error
    if table.schema.names != ROWS.names:
        raise InputError(f"{path}: no capture rows (its columns are others); remove the foreign file")
    try:
        own = json.loads(metadata.get(b"numerics.stamp", b"null"))
        table = table.cast(ROWS.with_metadata(None))
    except (ValueError, pa.ArrowException, RecursionError) as error:
        raise InputError(f"{path}: damaged ({str(error)[:200]}); capture the run again") from error
    if not isinstance(own, dict) or not isinstance(own.get("environment"), dict):
        raise InputError(f"{path}: carries no stamp; capture the run again")
    for name in ("world_size", "level", "source", "config"):
        if own.get(name) != stamp.get(name):
            raise InputError(
                f"{path}: belongs to another run ({name} {str(own.get(name))[:60]!r}, "
                f"the others {str(stamp.get(name))[:60]!r}); copy the right file here"
            )
    run, known = metadata.get(RUN_ID.encode(), b"").decode(errors="replace"), str(stamp.get("run", ""))
    if run and known and run != known:
        raise InputError(
            f"{path}: belongs to another run ({run[:40]!r}, stamp.json says {known[:40]!r}); "
            "copy the right file here"
        )
    _refuse_place(path, table, own, rank)
    return table, own["environment"]


def _refuse_place(path: Path, table: pa.Table, own: dict[str, Any], rank: int) -> None:
    """Raise InputError where a file's rows are of another rank, or of other coordinates than it says."""
    if (fault := fault_in(table)) is not None:
        raise InputError(f"{path}: damaged rows ({fault}); capture the run again")
    ranks = set(table.column("rank").unique().to_pylist())
    if own.get("rank") != rank or ranks - {rank}:
        raise InputError(f"{path}: holds rows of rank {own.get('rank')}; copy the right file here")
    coords = own.get("coords")
    if not isinstance(coords, dict):
        return
    for axis in AXES:
        found = set(table.column(axis).unique().to_pylist())
        if found - {coords.get(axis)}:
            raise InputError(
                f"{path}: says it is {axis} rank {str(coords.get(axis))[:20]} and holds rows of {axis} rank "
                f"{min(found - {coords.get(axis)})}; copy the right file here"
            )


def _manifest(folder: Path) -> dict[str, Any] | None:
    """Return run.json without the planted faults, which no analysis may see; None where it is of another schema."""
    path = folder / "run.json"
    if not path.is_file():
        return None
    try:
        manifest = _json(path)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: unreadable ({error}); copy the run's manifest again") from error
    if manifest.get("schema") != RUN_SCHEMA:
        return None
    return {name: value for name, value in manifest.items() if "fault" not in name}


def _config(stamp: dict[str, Any]) -> dict[str, Any] | None:
    config = stamp.get("config")
    return config if isinstance(config, dict) else None
