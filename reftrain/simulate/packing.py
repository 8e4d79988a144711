"""Attention of each data and context rank: the pairs that attend, from packed documents.

Documents do not attend to each other, so a sequence of short ones costs less than one long document. Lengths
are drawn as `reftrain.data.sequences` draws synthetic ones. Context rank i of cp holds chunks i and 2·cp-1-i of
2·cp; its work is the number of (query, key) pairs of its queries ("Scaling Llama 3 Training", the section on
context parallelism).
"""

from dataclasses import dataclass

import numpy as np

from reftrain.errors import ConfigError
from reftrain.simulate.grid import F64, I64


@dataclass(frozen=True)
class Packing:
    """Sequences of packed documents; lengths are in tokens."""

    seq_len: int
    micro_batch_size: int
    mean_document: int
    seed: int

    def pairs(self, step: int, micro_batches: int, dp: int, cp: int) -> F64:
        """Return the pairs that attend, by micro-batch, data and context rank; (micro_batches, dp, cp).

        Raises ConfigError where the sequence cannot be cut into 2·cp chunks.
        """
        if self.seq_len % (2 * cp):
            raise ConfigError(
                "data.seq_len", f"{self.seq_len} tokens cannot be cut into {2 * cp} chunks",
                f"choose a multiple of {2 * cp}",
            )  # fmt: skip
        out = np.zeros((micro_batches, dp, cp))
        for replica in range(dp):
            rng = np.random.default_rng([self.seed, 71, step, replica])
            for micro_batch in range(micro_batches):
                for _ in range(self.micro_batch_size):
                    out[micro_batch, replica] += self._sequence(rng, cp)
        return out

    def causal_pairs(self) -> float:
        """Pairs of a micro-batch that is one document."""
        return self.micro_batch_size * self.seq_len * (self.seq_len + 1) / 2

    def _sequence(self, rng: np.random.Generator, cp: int) -> F64:
        """Pairs of one sequence by context rank, (cp,)."""
        ends = self._ends(rng)
        starts = np.concatenate([[0], ends[:-1]])
        cuts = np.arange(2 * cp + 1, dtype=np.int64) * (self.seq_len // (2 * cp))
        before = _pairs_before(cuts, starts, ends)
        chunks = np.diff(before)
        return np.asarray(chunks[:cp] + chunks[::-1][:cp])

    def _ends(self, rng: np.random.Generator) -> I64:
        """Ends of the documents that fill a sequence."""
        guess = 2 * self.seq_len // self.mean_document + 8
        ends = np.zeros(0, np.int64)
        while not len(ends) or ends[-1] < self.seq_len:
            drawn = 1 + rng.exponential(self.mean_document, guess).astype(np.int64)
            ends = np.concatenate([ends, np.cumsum(drawn) + (ends[-1] if len(ends) else 0)])
        kept = ends[: int(np.searchsorted(ends, self.seq_len, side="left")) + 1]
        return np.minimum(kept, self.seq_len)


def _pairs_before(cuts: I64, starts: I64, ends: I64) -> F64:
    """Pairs of all queries before each cut: whole documents, and the part of the one that is cut."""
    sizes = (ends - starts).astype(np.float64)
    whole = np.concatenate([[0.0], np.cumsum(sizes * (sizes + 1) / 2)])
    document = np.searchsorted(ends, cuts, side="left")
    inside = cuts - np.concatenate([starts, ends[-1:]])[document]
    part = inside.astype(np.float64)
    return np.asarray(whole[document] + part * (part + 1) / 2)
