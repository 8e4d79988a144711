"""Saves and loads the training state with torch.distributed.checkpoint, in the background and atomically.

Each shard is written as a box of its global tensor, so that a checkpoint loads onto any mesh; on the same
mesh the run continues in the same bits. A checkpoint is written under a hidden name and renamed when every
rank has finished: a folder called `step-…` is complete.
"""

import re
import shutil
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from reftrain.errors import CheckpointError, MachineError
from reftrain.model.parameters import Part
from reftrain.train.trainer import Trainer

FINISHED = re.compile(r"step-(\d{8})")
STEP_KEY = "meta.step"
DATA_KEY = "meta.tokens"


class Box(torch.Tensor):
    """A local tensor with its box of the global tensor, in the form that torch.distributed.checkpoint asks for."""

    part: Part
    whole: tuple[int, ...]

    @classmethod
    def of(cls, local: torch.Tensor, part: Part, whole: tuple[int, ...]) -> "Box":
        """View the part of `local` that is not padding as a box; storage is shared."""
        box: Box = torch.Tensor._make_subclass(cls, part.within(local.detach()))  # noqa: SLF001 - torch's own way
        box.part, box.whole = part, whole
        return box

    def _chunk(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(torch.Size(self.part.offsets), torch.Size(self.part.sizes))

    def __create_write_items__(self, fqn: str, _: object) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.plain())
        data = TensorWriteData(self._chunk(), properties, torch.Size(self.whole))
        return [WriteItem(MetadataIndex(fqn, self._chunk().offsets), WriteItemType.SHARD, tensor_data=data)]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [self._chunk()]

    def __get_tensor_shard__(self, _: MetadataIndex) -> torch.Tensor:
        return self.plain()

    def size(self, dim: int | None = None) -> Any:
        """Return the size of the global tensor, which the load planner compares with the stored one."""
        return torch.Size(self.whole) if dim is None else self.whole[dim]

    def plain(self) -> torch.Tensor:
        """Return the same storage as an ordinary tensor."""
        return self.as_subclass(torch.Tensor)


def state_boxes(trainer: Trainer, *, copy: bool) -> dict[str, Any]:
    """Parameters and optimiser state of this rank as boxes by key; shared with the trainer, or copied."""
    parts, specs = trainer.parts(), trainer.specs()
    kinds: Mapping[str, Mapping[str, torch.Tensor]] = {
        "model": trainer.local_parameters(),
        **{f"optimizer.{kind}": tensors for kind, tensors in trainer.optimizer.state().items()},
    }
    boxes: dict[str, Any] = {}
    for kind, tensors in kinds.items():
        for name, tensor in tensors.items():
            if min(parts[name].sizes):
                local = tensor.detach().clone() if copy else tensor
                boxes[f"{kind}.{name}"] = Box.of(local, parts[name], specs[name].shape)
    return boxes


def finished(folder: Path) -> list[tuple[int, Path]]:
    """Finished checkpoints in a folder by ascending step."""
    if not folder.is_dir():
        return []
    matches = ((FINISHED.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in matches if match)


def find(resume: str, own: Path) -> Path | None:
    """Checkpoint that `checkpoint.resume` means, or None for a fresh start.

    Raises `CheckpointError` when the named one does not exist.
    """
    if not resume:
        return None
    folder = own if resume == "auto" else Path(resume)
    if (folder / ".metadata").is_file():
        return folder
    found = finished(folder) or finished(folder / "checkpoint")
    if found:
        return found[-1][1]
    if resume == "auto":
        return None
    raise CheckpointError(f"checkpoint.resume: {resume} holds no finished checkpoint; name a folder step-…")


class Checkpointer:
    """Saves in the background every `checkpoint.every` steps and keeps the last ones. Constructed on every rank."""

    def __init__(self, trainer: Trainer, folder: Path) -> None:
        self.trainer, self.folder = trainer, folder
        self.config = trainer.config.checkpoint
        self.group = dist.new_group(backend="gloo", group_desc="checkpoint")
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        if trainer.mesh.rank == 0 and (self.config.every or self.config.at_end):
            _make_folder(folder)
            for leftover in folder.glob(".step-*"):
                shutil.rmtree(leftover, ignore_errors=True)

    def after_step(self, step: int) -> None:
        """Save when a checkpoint is due after this step (counted from 0)."""
        due = self.config.every and (step + 1) % self.config.every == 0
        if due or (self.config.at_end and step + 1 == self.trainer.config.steps):
            self.save(step + 1)

    def save(self, steps_done: int) -> None:
        """Start saving; waits for the save before it. Raises `MachineError` when that one failed."""
        self.wait()
        boxes = state_boxes(self.trainer, copy=self.config.asynchronous)
        boxes[STEP_KEY] = torch.tensor([steps_done])
        data = self.trainer.loader.state(steps_done)
        if data is not None:
            boxes[DATA_KEY] = torch.tensor(data)
        self._thread = threading.Thread(target=self._write, args=(boxes, steps_done), name="checkpoint")
        self._thread.start()
        if not self.config.asynchronous:
            self.wait()

    def wait(self) -> None:
        """Wait for the save under way; raises `MachineError` when it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise MachineError(
                f"checkpoint in {self.folder}: {_reason(error)}; free space or choose another out"
            )

    def _write(self, boxes: dict[str, Any], steps_done: int) -> None:
        name = f"step-{steps_done:08d}"
        hidden = self.folder / f".{name}"
        try:
            writer = FileSystemWriter(hidden, single_file_per_rank=True)
            save(boxes, storage_writer=writer, process_group=self.group)
            if self.trainer.mesh.rank == 0:
                self._publish(hidden, self.folder / name)
        except BaseException as error:  # noqa: BLE001 - handed to the training thread; dcp raises such
            self._error = error

    def _publish(self, hidden: Path, final: Path) -> None:
        if final.exists():
            shutil.rmtree(final)
        hidden.rename(final)
        for _, old in finished(self.folder)[: -self.config.keep]:
            shutil.rmtree(old, ignore_errors=True)

    def load(self, path: Path) -> int:
        """Load a checkpoint into the trainer, whatever mesh wrote it; return the steps it has done.

        Raises `CheckpointError` when it is unreadable or of another model.
        """
        boxes = state_boxes(self.trainer, copy=False)
        reader = FileSystemReader(path)
        try:
            stored = reader.read_metadata()
        except Exception as error:
            raise CheckpointError(f"{path}: {_reason(error)}; name a finished checkpoint") from error
        _check_same_model(path, boxes, stored)
        step, data = torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
        kept = {DATA_KEY: data} if DATA_KEY in stored.state_dict_metadata else {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # dcp warns of ranks that hold no metadata
                load({**boxes, STEP_KEY: step, **kept}, storage_reader=reader, process_group=self.group)
        except (Exception, CheckpointException) as error:
            raise CheckpointError(f"{path}: {_reason(error)}; name another finished checkpoint") from error
        steps_done = int(step.item())
        _check_same_data(path, data.tolist() if kept else None, self.trainer.loader.state(steps_done))
        self.trainer.optimizer.set_steps(steps_done)
        return steps_done


def _check_same_model(path: Path, boxes: Mapping[str, Any], stored: Metadata) -> None:
    for key, box in boxes.items():
        entry = stored.state_dict_metadata.get(key)
        if not isinstance(entry, TensorStorageMetadata):
            raise CheckpointError(f"{path}: holds no {key}; load it with the model and policy that wrote it")
        if tuple(entry.size) != box.whole:
            raise CheckpointError(
                f"{path}: {key} is {tuple(entry.size)}, here {box.whole}; load it with its own model"
            )


def _check_same_data(path: Path, stored: Sequence[int] | None, own: tuple[int, int] | None) -> None:
    """Refuse to go on in another place of the data, or in another data set."""
    if stored is None or own is None:
        return
    if stored[1] != own[1]:
        raise CheckpointError(f"{path}: was trained on another data set; name its files in their order")
    if stored[0] != own[0]:
        raise CheckpointError(
            f"{path}: {stored[0]} tokens were read, here {own[0]} would have been; keep data.batch_size and seq_len"
        )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(f"{folder}: {error.strerror}; choose another out") from error


def _reason(error: BaseException) -> str:
    """First line of the innermost error that a checkpoint of many ranks wraps."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, Mapping) and failures:
        first = next(iter(failures.values()))
        return _reason(first[0] if isinstance(first, tuple) else first)
    return (str(error) or type(error).__name__).strip().splitlines()[0]
