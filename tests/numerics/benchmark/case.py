"""What a case of the benchmark is: two runs, and what must be said of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Tables = Mapping[str, Mapping[str, Any]]

BASE: Tables = {
    "model": {"layers": 2},
    "data": {"batch_size": 12, "seq_len": 48, "micro_batch_size": 2},
    "run": {"steps": 2, "device": "cpu"},
    "evidence": {"capture": "tensors"},
}


def merged(*sources: Tables) -> dict[str, dict[str, Any]]:
    """Tables laid over one another, the later ones on top."""
    out: dict[str, dict[str, Any]] = {}
    for source in sources:
        for table, values in source.items():
            out.setdefault(table, {}).update(values)
    return out


@dataclass(frozen=True)
class Where:
    """The true place: regular expressions for the tensors (or collective labels) that are exactly it, and for its
    module; names of its axis (empty: the bug has none); words of a right explanation (empty: none is asked for)."""

    tensors: str
    module: str
    axes: tuple[str, ...] = ()
    explains: str = ""
    step: int = 0


@dataclass(frozen=True)
class Case:
    """`parallel` against `baseline`; `verdicts` are right answers, the first of them best; `where` of a bug."""

    name: str
    what: str
    parallel: Tables
    baseline: Tables
    verdicts: tuple[str, ...]
    where: Where | None = None
    patch: str = ""  # source patch of the trainer, for bugs beyond the list
    change: str = ""  # change of source planted in each rank of the parallel run (`changed.ALL`)
    trainer: str = ""  # change of a trainer that is not ours (`foreign`); the tables say nothing then
    environment: Mapping[str, str] | None = None  # of the parallel run

    @property
    def is_bug(self) -> bool:
        """Whether something is wrong with the parallel run."""
        return self.where is not None
