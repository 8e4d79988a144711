"""Tokenised data sets as a stream of documents, cut into sequences by number.

Documents are taken in a seeded order, another one each epoch, and joined, with `data.eos` after each unless they end so
themselves (`append_eos = false`). Sequence n holds tokens n·seq_len to (n + 1)·seq_len of that stream, the last of them
as a target: it is a function of its number, so that any rank reads only its own sequences, and a run resumes within a
document. A checkpoint keeps the number of tokens read, and the identity of the data set.
"""

import hashlib
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from reftrain.config.run import DataConfig
from reftrain.data.columns import ColumnFile
from reftrain.data.megatron import MegatronFile
from reftrain.errors import ConfigError
from reftrain.thresholds import MOST_DOCUMENTS

Integers = npt.NDArray[np.int64]

COLUMNAR: Final = (".parquet", ".arrow", ".feather")
INDEXED: Final = (".bin", ".idx")
_NO_PADDING: Final = -1
"""A stream of documents has no padding: no token is this one."""


class DocumentFile(Protocol):
    """A file of tokenised documents."""

    path: Path
    lengths: Integers

    def document(self, number: int) -> Integers:
        """Return the tokens of a document."""
        ...


def open_files(names: tuple[str, ...], column: str) -> list[DocumentFile]:
    """Open files of documents; of a folder, all such files in it. Raises `ConfigError`."""
    paths: list[Path] = []
    for path in map(Path, names):
        inside = (
            sorted(p for p in path.iterdir() if p.suffix in (*COLUMNAR, ".bin")) if path.is_dir() else [path]
        )
        if not inside:
            raise ConfigError(
                "data.files", f"{path} holds no data set", "name a folder of .parquet, .arrow or .bin"
            )
        paths += inside
    opened: list[DocumentFile] = []
    for path in paths:
        if path.suffix in COLUMNAR:
            opened.append(ColumnFile(path, column))
        elif path.suffix in INDEXED:
            opened.append(MegatronFile(path))
        else:
            raise ConfigError(
                "data.files", f"{path} is of no known form", "give .parquet, .arrow or .bin with .idx"
            )
    return opened


class TokenSource:
    """Sequences of a tokenised data set. Raises `ConfigError` for files that hold none."""

    pad = _NO_PADDING

    def __init__(self, config: DataConfig, vocab_size: int) -> None:
        if not 0 <= config.eos < vocab_size:
            raise ConfigError(
                "data.eos",
                f"{config.eos} is no token of {vocab_size}",
                "give the token that ends a document, and as model.vocab_size the vocabulary of its tokeniser",
            )
        self.eos, self._vocabulary, self._seed = config.eos, vocab_size, config.seed
        self._length, self._shuffles, self._appends = config.seq_len, config.shuffle, config.append_eos
        self._files = open_files(config.files, config.column)
        lengths = [file.lengths for file in self._files]
        self._first: Integers = np.cumsum([0, *map(len, lengths)])
        if self._first[-1] > MOST_DOCUMENTS:
            raise ConfigError("data.files", f"{self._first[-1]} documents are too many", "name fewer files")
        self._lengths: Integers = np.concatenate(lengths)
        self.identity = self._identity()
        self._epoch = -1
        self._order: Integers = np.empty(0, np.int64)
        self._ends: Integers = np.empty(0, np.int64)
        with_ends = self._with_ends()
        self._tokens = int(with_ends.sum())
        if self._tokens <= self._length:
            raise ConfigError(
                "data.files",
                f"{self._tokens} tokens do not fill a sequence of {self._length}",
                "name more files",
            )

    def _identity(self) -> int:
        """Return a number for the lengths of all documents in their order: another data set has another one."""
        return int.from_bytes(hashlib.sha256(self._lengths.tobytes()).digest()[:7], "little")

    def _with_ends(self) -> Integers:
        """Return the length of each document with its end; one that has no token has none."""
        return np.where(self._lengths > 0, self._lengths + self._appends, 0)

    def _enter(self, epoch: int) -> None:
        """Lay out the documents of an epoch."""
        if epoch == self._epoch:
            return
        count = len(self._lengths)
        rng = np.random.default_rng((self._seed, epoch))
        self._order = rng.permutation(count) if self._shuffles else np.arange(count)
        self._ends = np.cumsum(self._with_ends()[self._order])
        self._epoch = epoch

    def sequence(self, number: int) -> Integers:
        """Return the tokens of one sequence, (seq_len + 1,)."""
        first, wanted = number * self._length, self._length + 1
        pieces: list[Integers] = []
        while wanted:
            epoch, at = divmod(first, self._tokens)
            self._enter(epoch)
            place = int(np.searchsorted(self._ends, at, side="right"))
            document = self._document(int(self._order[place]))
            begin = at - (int(self._ends[place]) - len(document))
            pieces.append(document[begin : begin + wanted])
            first, wanted = first + len(pieces[-1]), wanted - len(pieces[-1])
        return np.concatenate(pieces)

    def _document(self, number: int) -> Integers:
        """Return a document with its end; refuse tokens that the model does not have."""
        which = int(np.searchsorted(self._first, number, side="right")) - 1
        file = self._files[which]
        tokens = file.document(number - int(self._first[which]))
        if len(below := tokens[tokens < 0]):
            raise ConfigError(
                "data.files",
                f"{file.path} holds {below[0]}, which is no token",
                "name data.column, or another file",
            )
        outside = tokens[tokens >= self._vocabulary]
        if len(outside):
            raise ConfigError(
                "model.vocab_size",
                f"{file.path} holds token {outside[0]}, the model has {self._vocabulary}",
                "give the vocabulary of the tokeniser",
            )
        return np.append(tokens, self.eos) if self._appends else tokens
