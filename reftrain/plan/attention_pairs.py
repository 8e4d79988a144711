"""(Query, key) pairs that attend when documents do not attend to each other, by context rank.

Sequences are packed from documents of exponential length, as `reftrain.data` packs them. Context rank i holds chunks
i and 2·cp-1-i, and its attention costs the pairs of its own queries. In every layer the ranks of a context group meet
at the gather of keys and values, so that each waits for the one with the most pairs. Source: "Scaling Llama 3
Training" (ISCA'25), sections 4 and 7.3.2.
"""

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def pairs_of_ranks(ends: F64, seq_len: int, cp: int) -> F64:
    """Return the (query, key) pairs of each context rank, (cp,), of a sequence with documents that end at `ends`.

    `ends` is ascending; the last is `seq_len`. A token attends to itself and its document's earlier tokens.
    """
    starts = np.concatenate([[0.0], ends[:-1]])
    lengths = ends - starts
    before = np.concatenate([[0.0], np.cumsum(lengths * (lengths + 1) / 2)])
    edges = np.linspace(0.0, seq_len, 2 * cp + 1)
    document = np.minimum(np.searchsorted(ends, edges, side="right"), len(ends) - 1)
    into = edges - starts[document]
    chunks = np.diff(before[document] + into * (into + 1) / 2)
    folded: F64 = chunks[:cp] + chunks[::-1][:cp]
    return folded


def document_ends(rng: np.random.Generator, mean: float, seq_len: int) -> F64:
    """Return the ends of the documents packed into one sequence: lengths 1 + exponential, the last one cut."""
    ends: list[F64] = []
    total = 0.0
    while total < seq_len:
        some = total + np.cumsum(1 + np.floor(rng.exponential(1.0, size=64) * mean))
        ends.append(some)
        total = float(some[-1])
    joined = np.concatenate(ends)
    kept = joined[: int(np.searchsorted(joined, seq_len)) + 1].copy()
    kept[-1] = seq_len
    return kept


def sample_pairs(mean: float, seq_len: int, cp: int, count: int, seed: int = 0) -> F64:
    """Return the pairs of each context rank of `count` sequences, (count, cp).

    Sequence i has a random stream of its own, so that samples of two means differ by the means alone.
    """
    rows = [
        pairs_of_ranks(document_ends(np.random.default_rng((seed, i)), mean, seq_len), seq_len, cp)
        for i in range(count)
    ]
    return np.stack(rows)


def slowest_pairs(mean: float, seq_len: int, cp: int, count: int = 64) -> float:
    """Return cp times the mean pairs of the slowest rank of a context group: the pairs that the planner counts."""
    return float(sample_pairs(mean, seq_len, cp, count).max(axis=1).mean() * cp)
