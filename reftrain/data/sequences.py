"""Sequences of packed documents, each a function of seed and number only, so that no mesh can change them.

A sequence has seq_len + 1 tokens: documents one after another, each ended by `eos`, and, in synthetic data,
padding at the end of uneven length, so that micro-batches have uneven counts of valid targets.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from reftrain.config.run import DataConfig
from reftrain.data.tokens import TokenSource
from reftrain.errors import ConfigError
from reftrain.thresholds import LARGEST_TEXT_FILE, LEAST_VOCABULARY
from tracekit.small_files import read_small

Tokens = npt.NDArray[np.int64]

BYTE_EOS = 256
BYTE_PAD = 257


class Source(Protocol):
    """Numbered sequences."""

    eos: int
    pad: int

    def sequence(self, number: int) -> Tokens:
        """Tokens of one sequence, (seq_len + 1,)."""
        ...


class SyntheticSource:
    """Random documents with something to learn: each token depends on the one before it."""

    def __init__(self, config: DataConfig, vocab_size: int) -> None:
        if vocab_size < LEAST_VOCABULARY:
            raise ConfigError(
                "model.vocab_size",
                f"{vocab_size} is too small for documents",
                f"give {LEAST_VOCABULARY} or more",
            )
        self.config = config
        self.eos = vocab_size - 2
        self.pad = vocab_size - 1
        self._words = vocab_size - 2

    def sequence(self, number: int) -> Tokens:
        """Tokens of one sequence, (seq_len + 1,)."""
        rng = np.random.default_rng((self.config.seed, number))
        length = self.config.seq_len + 1
        kept = length - int(length * self.config.padding * rng.random())
        out = np.full(length, self.pad, dtype=np.int64)
        start = 0
        while start < kept:
            size = 1 + int(rng.exponential(self.config.mean_document))
            stop = min(start + size, kept)
            steps = rng.integers(1, 8, size=stop - start)
            steps[0] = rng.integers(0, self._words)
            out[start:stop] = np.cumsum(steps) % self._words
            out[stop - 1] = self.eos
            start = stop
        return out


class TextSource:
    """Bytes of the user's files, each file a document, cut into sequences visited in a seeded order."""

    eos = BYTE_EOS
    pad = BYTE_PAD

    def __init__(self, config: DataConfig, vocab_size: int) -> None:
        if vocab_size <= BYTE_PAD:
            raise ConfigError(
                "model.vocab_size",
                f"{vocab_size} does not hold the 256 bytes, eos and padding",
                "give 258 or more",
            )
        self._length = config.seq_len
        self._seed = config.seed
        self._stream = np.concatenate([_document(Path(name)) for name in config.files])
        self._count = len(self._stream) // self._length
        if self._count == 0 or len(self._stream) <= self._length:
            raise ConfigError(
                "data.files",
                f"{len(self._stream)} bytes do not fill one sequence of {config.seq_len} tokens",
                "name larger files or a smaller seq_len",
            )

    def sequence(self, number: int) -> Tokens:
        """Tokens of one sequence, (seq_len + 1,); every epoch visits all sequences in another order."""
        epoch, place = divmod(number, self._count)
        order = np.random.default_rng((self._seed, epoch)).permutation(self._count)
        start = int(order[place]) * self._length
        piece = self._stream[start : start + self._length + 1]
        return np.pad(piece, (0, self._length + 1 - len(piece)), constant_values=self.pad)


class MixedSource:
    """Several sources, one for each file: a sequence's number draws its source by the shares, and its place there.

    Other shares leave the place of every sequence as it was, so that a change of the mix repeats none.
    """

    def __init__(self, config: DataConfig, vocab_size: int) -> None:
        alone = [replace(config, files=(name,), mix=()) for name in config.files]
        self._sources = [make_source(each, vocab_size) for each in alone]
        self._ends = np.cumsum(config.mix) / sum(config.mix)
        self._seed = config.seed
        first = self._sources[0]
        self.eos, self.pad = first.eos, first.pad

    @property
    def identity(self) -> int | None:
        """A number that changes with the data sets, not with their shares; None where they have none."""
        each = [getattr(source, "identity", None) for source in self._sources]
        if None in each:
            return None
        return zlib.crc32(repr(each).encode())

    def chosen(self, number: int) -> int:
        """Return which file a sequence comes from."""
        drawn = np.random.default_rng((self._seed, _MIXED, number)).random()
        return int(np.searchsorted(self._ends, drawn, side="right"))

    def sequence(self, number: int) -> Tokens:
        """Tokens of one sequence, (seq_len + 1,)."""
        return self._sources[self.chosen(number)].sequence(number)


_MIXED = 41
"""Part of the seed that draws sources, so that it draws nothing else."""


def _document(path: Path) -> Tokens:
    try:
        raw = read_small(path, LARGEST_TEXT_FILE)
    except OSError as error:
        raise ConfigError("data.files", f"{path}: {error.strerror}", "name readable text files") from error
    return np.append(np.frombuffer(raw, dtype=np.uint8).astype(np.int64), BYTE_EOS)


def make_source(config: DataConfig, vocab_size: int) -> Source:
    """Open the source the configuration names; raises `ConfigError` when it does not fit the vocabulary."""
    kinds: dict[str, Callable[[DataConfig, int], Source]] = {
        "synthetic": SyntheticSource,
        "text": TextSource,
        "tokens": TokenSource,
    }
    return MixedSource(config, vocab_size) if config.mix else kinds[config.source](config, vocab_size)


def stack(source: Source, numbers: Sequence[int]) -> Tokens:
    """Several sequences as one array, (len(numbers), seq_len + 1)."""
    return np.stack([source.sequence(number) for number in numbers])
