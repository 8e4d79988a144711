"""What `tracekit` reads, damaged: traces, whole jobs, operation tables, dumps, run folders."""

import hashlib
import json
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
from tracekit_cli.tracekit_commands.hang import hang
from tracekit_cli.tracekit_commands.slowrank import slowrank

from tests.fuzz.mutate import damaged, in_document, in_text, put_table, strange
from tests.fuzz.outcome import KEPT
from tests.generator import generate
from tests.generator.mesh import Mesh
from tests.hang.simulate import make
from tests.ingest.sample import document, event, kernel, noise
from tests.ingest.test_ops import rows
from tracekit.files.source import Source
from tracekit.ingest import load, reading
from tracekit.ingest.file_result import FileResult

Judge = Callable[[str], str]
"""stdout of an answered command → "" or what is wrong with the answer."""


@dataclass(frozen=True)
class Input:
    """One damaged input: the command to run on it, and how to judge the answer."""

    command: click.Command
    arguments: Sequence[str]
    judge: Judge = lambda _: ""
    unnamed: bool = False  # a refusal need not name a file: there may be none


Damage = Callable[[Random, Path], Input]
"""Writes one damaged input into an empty folder."""


def trace(rng: Random, folder: Path) -> Input:
    """One or two short traces of which one is damaged."""
    for rank in range(rng.choice((1, 2))):
        data = in_text(_short(rank), rng) if rank == 0 else json.dumps(_short(rank)).encode()
        (folder / f"rank{rank}.json").write_bytes(data)
    return Input(slowrank, [str(folder), "--quiet", "--json", "-"])


@cache
def _short(rank: int) -> dict[str, Any]:
    """Two steps of three kernels and a collective each."""
    listed = [*noise()]
    for step in range(2):
        begin = 1000.0 + 100 * step
        listed.append(event(0, name=f"ProfilerStep#{step}", cat="user_annotation", ts=begin, dur=99.0))
        listed += [event(i, ts=begin + 10 * i, dur=5.0, args={"External id": i}) for i in range(1, 3)]
        listed += [kernel(i) | {"ts": begin + 10 * i, "dur": 5.0} for i in range(3, 6)]
        told = {
            "Collective name": "allreduce", "In msg nelems": 64, "Out msg nelems": 64, "dtype": "Float",
            "Group size": 2,
            "Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]",
            "Seq": step, "stream": 20, "device": 0, "correlation": 90 + step, "External id": 7, "Rank": rank,
        }  # fmt: skip
        where = {"ts": begin + 60, "dur": 20.0, "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)"}
        listed.append(kernel(8, **told) | where)
    pg = [
        {
            "pg_name": "0",
            "pg_desc": "default_pg",
            "pg_size": 2,
            "ranks": [0, 1],
            "backend_config": "cuda:nccl",
        }
    ]
    info = {
        "backend": "nccl",
        "rank": rank,
        "world_size": 2,
        "pg_count": 1,
        "pg_config": pg,
        "nccl_version": "2.21.5",
    }
    return document(listed, rank, distributedInfo=info, baseTimeNanoseconds=10**18)


@cache
def _job(seed: int) -> tuple[Path, dict[str, Any], int, int]:
    """Folder of a slow job of four ranks, one of its traces, the rank of that, and the slow rank."""
    mesh = Mesh(("tp", "cp", "pp", "dp"), {"tp": 2, "cp": 1, "pp": 1, "dp": 2})
    case = generate(
        seed,
        kind="slow_compute",
        mesh=mesh,
        missing=set(),
        truncated={},
        gz=False,
        names=0,
        steps=3,
        ragged=False,
    )
    folder = Path(mkdtemp(prefix="fuzzjob", dir=KEPT))
    case.write(folder)
    (culprit,) = case.truth.suspects
    for path in folder.iterdir():
        found = json.loads(path.read_text())
        found["traceEvents"] = [
            e for e in found["traceEvents"] if e.get("cat") not in ("cpu_op", "cuda_runtime")
        ]
        path.write_text(json.dumps(found))
    innocent = next(r for r in range(4) if r != culprit)
    paths = sorted(folder.iterdir())
    return folder, json.loads(paths[innocent].read_text()), innocent, culprit


def job(rng: Random, folder: Path) -> Input:
    """A slow job of four ranks in which the trace of an innocent is damaged."""
    source, whole, innocent, culprit = _job(rng.randrange(3))
    for rank, path in enumerate(sorted(source.iterdir())):
        if rank == innocent:
            (folder / path.name).write_bytes(in_text(whole, rng))
        else:
            (folder / path.name).hardlink_to(path)

    def judge(out: str) -> str:
        found = json.loads(out)
        named = {s["rank"] for s in found["suspects"]}
        return "flip" if found["verdict"] == "healthy" or named - {culprit, innocent} else ""

    return Input(slowrank, [str(folder), "--quiet", "--json", "-"], judge)


_READ: dict[tuple[int, int], FileResult] = {}
_read_file = reading.read_file


def read_once(source: Source, out: Path, progress: Callable[[int], None] | None = None) -> FileResult:
    """`read_file` that reads the files of `_job`, which come as hard links, once in this process."""
    found = Path(source.uri).stat()
    key = found.st_dev, found.st_ino
    if found.st_nlink == 1:
        return _read_file(source, out, progress)
    if key not in _READ:
        kept = Path(mkdtemp(prefix="fuzzread", dir=KEPT)) / "table"
        _READ[key] = _read_file(source, kept, progress)
    result = _READ[key]
    (table,) = result.tables
    out.hardlink_to(table.path)
    return replace(result, label=source.label, tables=(replace(table, path=str(out)),))


def operations(rng: Random, folder: Path) -> Input:
    """An operation table with strange values, columns or bytes."""
    path = folder / "ops.parquet"
    if rng.random() < 0.85:
        put_table(_operations(), path, rng)
    else:
        path.write_bytes(damaged(_parquet(), rng))
    return Input(slowrank, [str(path), "--quiet", "--json", "-"])


@cache
def _operations() -> pa.Table:
    return pa.Table.from_pylist(list(rows()))


@cache
def _parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(_operations(), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


@cache
def _hung(seed: int) -> tuple[list[bytes], dict[int, Any], int]:
    """The dumps of a hung job of eight ranks, and the culprit."""
    sizes = {"tp": 2, "cp": 1, "pp": 2, "dp": 2}
    case = make(
        seed, fault=("host_stall", "device_unseen", "wrong_size")[seed % 3], sizes=sizes, ring=25, timed=True
    )
    for entry in (e for d in case.dumps.values() for e in d["entries"]):
        entry["duration_ms"] = 1.0 + entry["record_id"] % 7
    return [pickle.dumps(d) for d in case.dumps.values()], case.dumps, case.culprit


def dumps(rng: Random, folder: Path) -> Input:
    """The dumps of a hung job in which the one of an innocent is damaged."""
    whole, decoded, culprit = _hung(rng.randrange(9))
    innocent = rng.choice([r for r in decoded if r != culprit])
    for rank, data in enumerate(whole):
        (folder / f"dump_{rank}").write_bytes(data if rank != innocent else _dump(decoded[rank], data, rng))
    command = hang if rng.random() < 0.8 else slowrank

    def judge(out: str) -> str:
        found = json.loads(out)
        named = {c["rank"] for c in found.get("culprits", ())}
        return "flip" if found["verdict"] == "none" or named - {culprit, innocent} else ""

    arguments = [str(folder), "--quiet", "--json", "-", "--jobs", "1"]
    return Input(command, arguments, judge if command is hang else lambda _: "")


def _dump(dump: Any, data: bytes, rng: Random) -> bytes:
    kind = rng.random()
    if kind < 0.6:
        return pickle.dumps(in_document(dump, rng), protocol=rng.choice((2, 4)))
    if kind < 0.75:
        at = rng.randrange(len(dump["entries"]))
        entries = list(dump["entries"])
        key = rng.choice(list(entries[at]))
        entries[at] = entries[at] | {key: strange(rng, entries[at][key])}
        return pickle.dumps({**dump, "entries": entries}, protocol=2)
    return in_text(dump, rng) if kind < 0.85 else damaged(data, rng)


@cache
def kept() -> Path:
    """A run folder that `tracekit ingest` left."""
    with TemporaryDirectory() as folder:
        for rank in range(2):
            (Path(folder) / f"rank{rank}.json").write_text(json.dumps(_short(rank)))
        out = Path(mkdtemp(prefix="fuzzrun", dir=KEPT)) / "run"
        load([folder], out=out)
    return out


def run_folder(rng: Random, folder: Path) -> Input:
    """An ingested run with a damaged manifest or table; its hashes are right or not."""
    run = folder / "run"
    (run / "events").mkdir(parents=True)
    source = kept()
    for path in source.rglob("*.*"):
        os.link(path, run / path.relative_to(source))
    name = rng.choice(("manifest.json", "manifest.json", "groups.parquet", "events/rank-000000.parquet"))
    path = run / name
    data = path.read_bytes()
    path.unlink()
    if name == "manifest.json":
        manifest = json.loads(data)
        del manifest["sha256"]  # else nothing behind the hash would be reached
        path.write_bytes(in_text(manifest, rng))
    elif rng.random() < 0.7:
        put_table(pq.read_table(source / name), path, rng)
        if rng.random() < 0.8:
            _signed(run, name)
    else:
        path.write_bytes(damaged(data, rng))
    return Input(slowrank, [str(run), "--quiet", "--json", "-"])


def _signed(run: Path, name: str) -> None:
    """Give the manifest of a run the right hash and number of rows of a changed table."""
    manifest = json.loads((run / "manifest.json").read_text())
    digest, count = hashlib.sha256((run / name).read_bytes()).hexdigest(), 1
    with suppress(pa.ArrowException, OSError):
        count = pq.read_metadata(run / name).num_rows
    if name == "groups.parquet":
        manifest["groups_sha256"] = digest
    else:
        manifest["ranks"][0] |= {"table_sha256": digest, "events": count}
    del manifest["sha256"]
    (run / "manifest.json").unlink()
    (run / "manifest.json").write_text(json.dumps(manifest, indent=1))


@cache
def _run_json() -> dict[str, Any]:
    return {
        "schema": "reftrain.run/1",
        "mesh": {"order": ["tp", "cp", "pp", "dp"], "sizes": {"tp": 2, "cp": 1, "pp": 1, "dp": 1}},
        "world_size": 2, "hosts": {"0": "a", "1": "b"}, "steps": 2, "model": {"layers": 2},
    }  # fmt: skip


def recorded(rng: Random, folder: Path) -> Input:
    """Whole traces beside a damaged run.json."""
    (folder / "trace").mkdir()
    for rank in range(2):
        (folder / "trace" / f"rank{rank}.json").write_text(json.dumps(_short(rank)))
    (folder / "run.json").write_bytes(in_text(_run_json(), rng))
    return Input(slowrank, [str(folder), "--quiet", "--json", "-"])


TRACEKIT: Mapping[str, Damage] = {
    "trace": trace, "job": job, "operation table": operations, "dumps": dumps, "run folder": run_folder,
    "run.json": recorded,
}  # fmt: skip
