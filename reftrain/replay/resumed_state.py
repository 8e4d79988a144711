"""The state that a resumed run went on from: weights and moments of its checkpoint, read whole and running nothing.

The checkpoint's index is a pickle; only the classes that torch's own writer puts there are made from it, and the files
it names lie beside it.
"""

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from numerics.schema import FOLDER, rank_file
from reftrain.config.run import RunConfig
from reftrain.layout.declaration import Declaration
from reftrain.replay.first_values import State, first_state
from reftrain.replay.formats import formats_of
from reftrain.replay.manifest import ReplayError
from reftrain.thresholds import LARGEST_MANIFEST
from tracekit.small_files import check_regular

INDEX: Final = ".metadata"
_FILE: Final = re.compile(r"__\d{1,9}_\d{1,9}\.distcp")
_DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
    "int64": torch.int64,
}
_ALLOWED: Final = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata",
        "TensorStorageMetadata",
        "TensorProperties",
        "ChunkStorageMetadata",
        "MetadataIndex",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", *_DTYPES},
    "pathlib": {"PosixPath"},
}
"""What the index of a checkpoint may name, by module."""

MOMENTS: Final = ("exp_avg", "exp_avg_sq")


class _ForeignError(Exception):
    """A checkpoint that is not what reftrain writes, or of another run; the message says why."""


class _Index(pickle.Unpickler):
    """Makes what torch's writer puts into an index, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a known class; `_ForeignError` for every other global."""
        if name not in _ALLOWED.get(module, ()):
            raise _ForeignError(f"its index asks for {module[:60]}.{name[:60]}")
        return super().find_class(module, name)


class _Reader(FileSystemReader):
    """torch's reader, with the index read by `_Index`."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the index; `_ForeignError` where it is too large or names files elsewhere."""
        path = Path(self.path) / INDEX
        check_regular(path)
        if path.stat().st_size > LARGEST_MANIFEST:
            raise _ForeignError("its index is larger than 16 MiB")
        with path.open("rb") as file:
            found: Metadata = _Index(file).load()
        for info in found.storage_data.values():
            if not _FILE.fullmatch(str(info.relative_path)) or getattr(info, "transform_descriptors", None):
                raise _ForeignError("its index names files elsewhere")
        return found


def state_before(run: Path, source: object, config: RunConfig) -> State:
    """Return the state that a run resumed from, or the initial state of a run from its first step.

    `source` is the entry of its run.json. `ReplayError` if that checkpoint no longer exists, or is of another model.
    """
    if not source:
        return first_state(config)
    first = _first_step(run)
    folder = _folder(run, str(source), first)
    own = formats_of(config.numerics.policy).parameter
    wide = torch.promote_types(own, torch.float32)
    kinds = (*MOMENTS, *(("master",) if own != wide else ()))
    declared = Declaration(config)
    every = [p for stage in declared.numbers for p in declared.in_order(stage)]
    shapes = {p.name: p.shape for p in every}
    trained = {p.name: p.shape for p in every if not p.frozen}
    parameters = {name: torch.empty(shape, dtype=own) for name, shape in shapes.items()}
    optimizer = {k: {n: torch.empty(s, dtype=wide) for n, s in trained.items()} for k in kinds}
    state = {f"model.{name}": value for name, value in parameters.items()}
    state |= {
        f"optimizer.{k}.{name}": value for k, named in optimizer.items() for name, value in named.items()
    }
    try:
        _load(folder, state, first)
    except (Exception, CheckpointException) as error:
        why = error if isinstance(error, _ForeignError) else f"unreadable ({type(error).__name__})"
        raise ReplayError(
            f"{folder} is not a checkpoint of this run: {why}; put the one of step {first} there"
        ) from error
    return State(first, parameters, optimizer)


def _load(folder: Path, state: Mapping[str, Tensor], first: int) -> None:
    """Fill the tensors of a state from the checkpoint of step `first`.

    `_ForeignError` where it is of another step or model; whatever torch raises where it is damaged.
    """
    reader = _Reader(folder)
    stored = reader.read_metadata().state_dict_metadata
    for key, value in state.items():
        entry = stored.get(key)
        if not isinstance(entry, TensorStorageMetadata) or tuple(entry.size) != tuple(value.shape):
            raise _ForeignError(f"it holds no {key} of this model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it loads in one process
        step = torch.zeros(1, dtype=torch.int64)
        load({**state, "meta.step": step}, storage_reader=reader, no_dist=True)
    if int(step) != first:
        raise _ForeignError(f"it is of step {int(step)}")


def _first_step(run: Path) -> int:
    """Return the first step that the run recorded. `ReplayError` without a capture."""
    steps = recorded_steps(run)
    if steps is None:
        raise ReplayError(
            f"{run / FOLDER / rank_file(0)}: holds no step of a resumed run; run again with --capture digest"
        )
    return steps.start


def recorded_steps(run: Path) -> range | None:
    """Return the steps that rank 0 of a run recorded, first to last; None where it recorded none."""
    try:
        steps = pq.read_table(run / FOLDER / rank_file(0), columns=["step"])["step"].to_numpy()
        steps = steps[steps >= 0]
        return range(int(steps.min()), int(steps.max()) + 1)
    except (OSError, pa.ArrowException, ValueError):
        return None


def recorded_parameters(run: Path, world_size: int) -> set[str]:
    """Return the names of the parameters that all ranks of a run recorded; none where a rank's record is unreadable."""
    names: set[str] = set()
    for rank in range(world_size):
        try:
            table = pq.read_table(run / FOLDER / rank_file(rank), columns=["tensor", "kind"])
        except (OSError, pa.ArrowException, ValueError):
            return set()
        names |= set(table.filter(pc.equal(table["kind"], "param"))["tensor"].unique().to_pylist())
    return names


def _folder(run: Path, source: str, first: int) -> Path:
    """Return the checkpoint of a step below the run's configured folder. `ReplayError` if it does not exist."""
    name = f"step-{first:08d}"
    for root in (run,) if source == "auto" else (Path(source), run):
        for folder in (root, root / name, root / "checkpoint" / name):
            if (folder / INDEX).is_file():
                return folder
    raise ReplayError(
        f"the checkpoint of step {first} that the run went on from is not in {source} any more; "
        "put it there or into the run's checkpoint folder"
    )
