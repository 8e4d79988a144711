"""The recorder: a trainer calls it to leave a capture behind. It knows files and tensors, and no trainer.

    recorder = Recorder("run", rank=3, world_size=8, coords={"tp": 1, "cp": 0, "pp": 1, "dp": 0})
    recorder.record("layers.1.attention.out", out, step=0, phase="forward", kind="activation", micro_batch=2,
                    module="layers.1.attention", global_shape=(12, 64, 256), boxes=[Box((4, 0, 0), (1, 64, 256))])
    recorder.close()

Each call computes the fingerprint of the local tensor, or copies a small one, to compute it together with others'.
Nothing is communicated, and nothing is kept but a row (and the values, at level `tensors`, for the names asked for).
The rows go to `rankNNNNN.parquet.partial`, which `close` renames; a run that broke off is recognised by the partial
file it left. The rank that writes stamp.json draws the run's id; the others read it there at `close` and put it into
their files, so that a file of another run is recognised. For whole PyTorch models see `numerics.record.watch`.
"""

import fnmatch
import json
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from numerics.errors import CaptureError
from numerics.record.environment import environment
from numerics.record.fingerprint import fingerprint
from numerics.record.pieces import pieces
from numerics.record.small_tensors import Small, fingerprints, small_one
from numerics.record.switch import chosen_steps
from numerics.record.values_writer import ValuesWriter
from numerics.schema import (
    CAPTURE_SCHEMA,
    FOLDER,
    KINDS,
    PARTIAL_SUFFIX,
    PHASES,
    ROWS,
    RUN_ID,
    STAMP,
    Box,
    Kind,
    Level,
    Phase,
    format_boxes,
    format_shape,
    rank_file,
    values_file,
    whole,
)
from numerics.thresholds.recording import ROWS_PER_GROUP, SMALL_TOGETHER
from tracekit.axes import AXES

__all__ = ["Box", "CaptureError", "Recorder", "whole"]


class Recorder:
    """Records one rank (or, in a replay, one virtual rank) of a run into `run_dir`/capture.

    `coords` are the rank's coordinates on the axes; an axis left out is 0. `names` are glob patterns of the tensors
    to keep with values at level `tensors`; empty means all. `source` names the producer. `config` names what the run
    computes where no run.json does. `first` makes this rank write stamp.json (rank 0 if left out). CaptureError where
    the folder holds a finished capture of this rank, or cannot be written.
    """

    def __init__(
        self,
        run_dir: str | Path,
        rank: int,
        world_size: int,
        coords: Mapping[str, int] | None = None,
        *,
        level: Level = "digest",
        names: Sequence[str] = (),
        source: str = "",
        config: Mapping[str, Any] | None = None,
        first: bool | None = None,
    ) -> None:
        self.rank, self.world_size, self.level = rank, world_size, level
        self.declared = tuple(coords or ())
        self.coords = {axis: int((coords or {}).get(axis, 0)) for axis in AXES}
        self._names = tuple(names)
        self._steps = chosen_steps()
        self._folder = Path(run_dir) / FOLDER
        self.path = self._folder / rank_file(rank)
        self._partial = self.path.with_name(self.path.name + PARTIAL_SUFFIX)
        self._lock = threading.Lock()
        self._rows: list[dict[str, Any]] = []
        self._small: list[tuple[dict[str, Any], Small]] = []
        self._order = 0
        self._closed = False
        stamp = self._stamp(source, config)
        try:
            self._open(stamp, write_stamp=rank == 0 if first is None else first)
        except OSError as error:
            raise CaptureError(f"{self._folder}: cannot be written ({error.strerror or error})") from error

    def _open(self, stamp: Mapping[str, Any], *, write_stamp: bool) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            raise CaptureError(f"{self.path}: a capture is there already; choose another folder")
        if write_stamp:
            temporary = self._folder / f".{STAMP}.tmp"
            content = {**stamp, "run": uuid.uuid4().hex}
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            temporary.replace(self._folder / STAMP)
        mine = {**stamp, "rank": self.rank, "coords": self.coords}
        own = {b"numerics.stamp": json.dumps(mine).encode()}
        self._writer = pq.ParquetWriter(
            self._partial, ROWS.with_metadata(own), compression="zstd", write_page_checksum=True
        )
        self._values = (
            ValuesWriter(self._folder / values_file(self.rank)) if self.level == "tensors" else None
        )

    def _stamp(self, source: str, config: Mapping[str, Any] | None) -> dict[str, Any]:
        return {
            "schema": CAPTURE_SCHEMA,
            "world_size": self.world_size,
            "level": self.level,
            "names": list(self._names),
            "source": source,
            "config": None if config is None else dict(config),
            "environment": environment(),
        }

    def keeps(self, tensor: str) -> bool:
        """Return whether values of this tensor are stored."""
        return self._values is not None and (
            not self._names or any(fnmatch.fnmatchcase(tensor, name) for name in self._names)
        )

    def records(self, step: int, phase: str, kind: str) -> bool:
        """Return whether a row of this step is kept: every step, or the steps that NUMERICS_CAPTURE_STEPS lists.

        The state before a listed step is kept as well: the values before the first step, and the weights and moments
        after the step before.
        """
        chosen = self._steps
        state = phase == "step" and kind in {"param", "optimizer"}
        return chosen is None or step < 0 or step in chosen or (state and step + 1 in chosen)

    def record(
        self,
        tensor: str,
        value: torch.Tensor,
        *,
        step: int,
        phase: Phase,
        kind: Kind,
        module: str = "",
        micro_batch: int = -1,
        global_shape: Sequence[int] | None = None,
        boxes: Sequence[Box] | None = None,
        replica: int = 0,
        partial: str | None = None,
        axis: str | None = None,
        op: str | None = None,
        label: str | None = None,
        group: Sequence[int] | None = None,
    ) -> None:
        """Record a tensor: `value` holds the `boxes` of the global tensor of `global_shape`.

        Without them `value` is the whole tensor. `tensor` and `module` are global names. `replica` numbers the ranks
        that hold the very same part, `partial` names the addend ("tp=1") where the global tensor is a sum. The
        arguments are the columns of `schema.ROWS`. CaptureError where value and boxes do not fit together.
        """
        if phase not in PHASES or kind not in KINDS:
            raise CaptureError(
                f"{tensor}: phase {phase!r} or kind {kind!r} is unknown; phases are {', '.join(PHASES)}, "
                f"kinds {', '.join(KINDS)}"
            )
        if not self.records(step, phase, kind):
            return
        row: dict[str, Any] = {"step": step, "phase": phase, "micro_batch": micro_batch, "kind": kind}
        row |= {"module": module, "replica": replica, "partial": partial}
        row |= {"axis": axis, "op": op, "label": label}
        row["group"] = None if group is None else ",".join(str(rank) for rank in group)
        self._add(tensor, value.detach(), global_shape, boxes, row)

    def _add(
        self,
        tensor: str,
        value: torch.Tensor,
        global_shape: Sequence[int] | None,
        boxes: Sequence[Box] | None,
        row: dict[str, Any],
    ) -> None:
        """Complete a row by what is known of the tensor, store its values where asked, and append the row."""
        shape = tuple(value.shape) if global_shape is None else tuple(int(n) for n in global_shape)
        parts = whole(shape) if boxes is None else tuple(boxes)
        try:
            place = _place(shape, parts)
            keeps = self.keeps(tensor)
            small = None if keeps else small_one(value, shape, parts)
            row |= {} if small else fingerprint(value, shape, parts).__dict__
        except CaptureError as error:
            raise CaptureError(f"{tensor}: {error}") from error
        row |= {"tensor": tensor, "dtype": str(value.dtype).removeprefix("torch."), "rank": self.rank}
        row |= place | self.coords
        with self._lock:
            if self._closed:
                raise CaptureError(f"{tensor}: recorded after the capture was closed")
            row["values"] = self._keep(row, value, parts) if keeps else None
            row["order"] = self._order
            self._order += 1
            self._rows.append(row)
            if small is not None:
                self._small.append((row, small))
            if len(self._small) >= SMALL_TOGETHER:
                self._settle()
            if len(self._rows) >= ROWS_PER_GROUP:
                self._flush()

    def _keep(self, row: Mapping[str, Any], value: torch.Tensor, parts: Sequence[Box]) -> str | None:
        if self._values is None or not row["numel"]:
            return None
        key = f"{row['digest']:016x}.{row['dtype']}.{row['global_shape']}.{row['boxes']}"
        flat = torch.cat([piece.reshape(-1) for piece in pieces(value, parts)])
        self._values.add(key, flat.cpu())
        return key

    def _settle(self) -> None:
        """Complete the rows of small tensors by their fingerprints."""
        found = fingerprints([small for _, small in self._small])
        for (row, _), one in zip(self._small, found, strict=True):
            row.update(one.__dict__)
        self._small.clear()

    def _flush(self) -> None:
        self._settle()
        if self._rows:
            arrays = [pa.array([row[field.name] for row in self._rows], field.type) for field in ROWS]
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=ROWS))
            self._rows.clear()

    def close(self) -> None:
        """Finish the files, so that the rank's capture appears whole. Call it after a good run only."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._flush()
            run = self._run_id()
            self._writer.add_key_value_metadata({RUN_ID: run})
            self._writer.close()
            if self._values is not None:
                self._values.close({"run": run, "rank": str(self.rank)})
            self._partial.replace(self.path)

    def abandon(self) -> None:
        """Give the capture up where the disk takes no more: its partial file stays, as that of a run that broke off."""
        with self._lock:
            self._closed = True
            self._rows.clear()
            self._small.clear()
            if self._values is not None:
                self._values.abandon()
            with suppress(OSError):
                self._writer.close()

    def _run_id(self) -> str:
        """Return the id of this run in stamp.json; empty where no stamp is to be seen from here."""
        try:
            return str(json.loads((self._folder / STAMP).read_text(encoding="utf-8"))["run"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()


@lru_cache(maxsize=4096)
def _place(shape: tuple[int, ...], parts: tuple[Box, ...]) -> dict[str, str]:
    """Return shape and boxes as a row names them. CaptureError where a box is no part of such a tensor."""
    for box in parts:
        if len(box.offsets) != len(shape) or len(box.sizes) != len(shape):
            raise CaptureError(f"{box} is not a box of a tensor of shape {shape}")
        sides = zip(box.offsets, box.sizes, shape, strict=True)
        if not all(o >= 0 and n >= 0 and o + n <= s for o, n, s in sides):
            raise CaptureError(f"{box} reaches outside the global shape {shape}")
    return {"global_shape": format_shape(shape), "boxes": format_boxes(parts)}
