"""The manifest of a run folder: written when the run is whole, checked in every value when it is read again."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.json import ParseOptions, ReadOptions, read_json

from tracekit.errors import InputError
from tracekit.findings.shared import Quality, Rejected
from tracekit.own_files import odd_name
from tracekit.schema import GROUPS, RUN_SCHEMA, Group
from tracekit.store import MANIFEST, RankRecord, Run, rank_bound, verify
from tracekit.thresholds.ingest import MAX_COUNT, MAX_RANKS, MAX_TIME_NS

GROUPS_FILE = "groups.parquet"


def save_manifest(run: Run, *, kept: bool) -> None:
    """Write `manifest.json` and `groups.parquet` into the run's folder; OSError where that is impossible.

    A run that is `kept` gets the hashes of its tables and of its manifest, so that a change is noticed when it is read.
    """
    lines = "".join(json.dumps(vars(g)) + "\n" for g in run.groups).encode()
    groups = pa.Table.from_batches([], schema=GROUPS)
    if lines:  # by way of JSON, because pyarrow.table() imports pandas where it is installed
        groups = read_json(
            pa.BufferReader(lines),
            read_options=ReadOptions(use_threads=False, block_size=len(lines) + 64),
            parse_options=ParseOptions(explicit_schema=GROUPS),
        ).cast(GROUPS)
    pq.write_table(groups, run.folder / GROUPS_FILE)
    ranks = [_sealed(run, r) for r in run.ranks] if kept else run.ranks
    manifest = {
        "schema": RUN_SCHEMA,
        "world_size": run.world_size,
        "mesh_hint": run.mesh_hint,
        "groups_sha256": _digest(run.folder / GROUPS_FILE) if kept else "",
        "ranks": [vars(r) for r in ranks],
        "rejected": [vars(r) for r in run.rejected],
        "quality": [vars(q) for q in run.quality],
    }
    if kept:
        manifest["sha256"] = signature(manifest)
    text = json.dumps(manifest, indent=1, ensure_ascii=True) + "\n"
    (run.folder / MANIFEST).write_text(text, encoding="utf-8")


def _sealed(run: Run, record: RankRecord) -> RankRecord:
    """A rank's entry with the hash of its table, and the groups that tell whose table it is."""
    own, others = run.placed(run.events(record.rank, ["group", "group_rank"]), record.rank)
    return replace(
        record, table_sha256=_digest(run.folder / record.table), placed=tuple(sorted(own - others))
    )


def signature(manifest: Mapping[str, Any]) -> str:
    """Return the hash of a manifest's values, without that hash itself."""
    values = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_run(folder: Path) -> Run:
    """Open an ingested run; InputError where its manifest or tables are missing, changed or of another schema."""
    if why := odd_name(folder):
        raise InputError(f"{folder}: {why}; rename it, or copy the run elsewhere")
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["schema"] != RUN_SCHEMA:
            raise InputError(
                f"{folder}: written as {str(manifest['schema'])[:60]!r}, this is {RUN_SCHEMA}; ingest the traces again"
            )
        if manifest.get("sha256", "") not in {"", signature(manifest)}:
            raise InputError(
                f"{folder / MANIFEST}: was changed after it was written (sha256 differs); ingest the traces again"
            )
        if manifest.get("groups_sha256"):
            verify(folder / GROUPS_FILE, str(manifest["groups_sha256"]))
        run = _run_of(folder, manifest, _groups(folder / GROUPS_FILE))
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        pa.ArrowException,
    ) as error:
        raise InputError(
            f"{folder}: its run manifest is damaged ({str(error)[:200]}); ingest the traces again"
        ) from error
    for record in run.ranks:
        inside = (folder / record.table).resolve().is_relative_to(folder.resolve())
        if not inside or not (folder / record.table).is_file():
            raise InputError(f"{folder}: the table of rank {record.rank} is missing; ingest the traces again")
    return run


def _groups(path: Path) -> list[dict[str, Any]]:
    """Return the rows of GROUPS in a file; an Arrow error or ValueError where its columns differ."""
    table = pq.ParquetFile(path).read(use_threads=False).cast(GROUPS)
    if any(table.column(name).null_count for name in GROUPS.names):
        raise ValueError("a group is incomplete")
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def _run_of(folder: Path, manifest: dict[str, Any], groups: list[dict[str, Any]]) -> Run:
    """Return the run that a manifest describes; ValueError, TypeError or KeyError for a value that we do not write."""
    world = manifest["world_size"]
    named = {*(r["rank"] for r in manifest["ranks"]), *(member for g in groups for member in g["ranks"])}
    most = rank_bound(None if world is None else _whole(world, MAX_RANKS + 1), named)
    made = tuple(
        Group(
            _whole(g["group"], len(groups)),
            _members(g["ranks"], most),
            _texts(g["names"]),
            _texts(g["descs"]),
        )
        for g in groups
    )
    if [g.group for g in made] != list(range(len(made))) or len({g.ranks for g in made}) < len(made):
        raise ValueError("its groups are not in order, or one is there twice")
    ranks = tuple(_record(r, len(groups)) for r in manifest["ranks"])
    if [r.rank for r in ranks] != sorted({r.rank for r in ranks}) or not ranks:
        raise ValueError("its ranks are not in order")
    if ranks[-1].rank >= most:
        raise ValueError(f"rank {ranks[-1].rank} is beyond the job's {most}")
    if len({r.table for r in ranks}) < len(ranks):
        raise ValueError("two ranks share one table")
    return Run(
        folder=folder,
        ranks=ranks,
        groups=made,
        rejected=tuple(Rejected(**r) for r in manifest["rejected"]),
        quality=tuple(Quality(**q) for q in manifest["quality"]),
        world_size=None if world is None else most,
        mesh_hint=checked_hint(manifest["mesh_hint"]),
    )


def _record(raw: dict[str, Any], groups: int) -> RankRecord:
    """Return one rank's entry, with all numbers within bounds."""
    made = RankRecord(
        **(
            raw
            | {
                "groups": tuple(raw["groups"]),
                "windows": tuple(raw.get("windows", ())),
                "window_names": _texts(raw.get("window_names", [])),
                "placed": tuple(raw.get("placed", ())),
            }
        )
    )
    texts = (made.path, made.format, made.sha256, made.table, made.table_sha256, made.device)
    if not all(type(t) is str for t in texts) or not (made.host is None or type(made.host) is str):
        raise ValueError(f"rank {str(made.rank)[:20]}: a text field is not a string")
    if not made.table.isprintable():
        raise ValueError(f"rank {str(made.rank)[:20]}: the file name of its table is not printable")
    _whole(made.rank, MAX_RANKS)
    _whole(made.events, MAX_COUNT)
    _whole(made.bytes, MAX_COUNT)
    if made.world_size is not None:
        _whole(made.world_size, MAX_RANKS + 1)
    for begin in made.windows:
        _whole(begin + MAX_TIME_NS, 2 * MAX_TIME_NS)
    for number in made.groups:
        _whole(number + 1, groups + 1)  # −1 is a group that the job does not have
    if len(made.window_names) not in {0, max(len(made.windows), 1)}:
        raise ValueError(f"rank {str(made.rank)[:20]}: names of windows that it has not")
    for number in made.placed:
        _whole(number, groups)
    return made


def _whole(value: Any, end: int) -> int:
    """Return `value` if it is an integer from 0 and below `end`; else ValueError."""
    if type(value) is not int or not 0 <= value < end:
        raise ValueError(f"{str(value)[:20]!r} is not a number below {end}")
    return value


def _members(ranks: list[Any], world: int) -> tuple[int, ...]:
    """Return the members of a group, as tracekit writes them: at least one, each of the job, in order and once."""
    found = tuple(_whole(r, world) for r in ranks)
    if not found or any(a >= b for a, b in pairwise(found)):
        raise ValueError("a group's members are missing or not in order")
    return found


def _texts(values: list[Any]) -> tuple[str, ...]:
    if type(values) is not list or not all(type(v) is str for v in values):
        raise ValueError("a group's name is not a string")
    return tuple(values)


def checked_hint(hint: Any) -> dict[str, Any] | None:
    """Return the mesh that a file of a run hints at; ValueError, TypeError or KeyError where we write no such mesh."""
    if hint is None:
        return None
    for size in hint["sizes"].values():
        _whole(size, MAX_RANKS + 1)
    if sorted(hint["order"]) != sorted(hint["sizes"]):
        raise ValueError("its mesh names other axes than its order")
    return {"order": [str(a) for a in hint["order"]], "sizes": dict(hint["sizes"])}
