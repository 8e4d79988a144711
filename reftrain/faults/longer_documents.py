"""Makes documents longer than usual in some sequences: the fault behind `doc_imbalance`.

Only the data changes. Documents that follow one another are joined (their `eos` becomes an ordinary token) until
the pairs of tokens that attend are `factor` times as many. Ranks that compute on these sequences have more work
if the cost of attention follows the mask.
"""

from collections.abc import Callable

import numpy as np

from reftrain.data.sequences import Source, Tokens
from reftrain.errors import ConfigError


class LongerDocuments:
    """A source with longer documents in the struck sequences.

    `struck(number)` returns the place in a sequence (a share of its length) before which its documents grow, or None
    for a sequence that is not struck. `factor` multiplies the pairs that attend, as far as the sequence allows.
    """

    def __init__(
        self, source: Source, factor: float, struck: Callable[[int], float | None], *, masked: bool
    ) -> None:
        if not masked:
            raise ConfigError(
                "fault",
                "doc_imbalance needs documents that do not attend to each other",
                "set numerics.document_mask = true",
            )
        self.eos, self.pad = source.eos, source.pad
        self._source, self._factor, self._struck = source, factor, struck

    def sequence(self, number: int) -> Tokens:
        """Tokens of one sequence, (seq_len + 1,)."""
        tokens = self._source.sequence(number)
        before = self._struck(number)
        return tokens if before is None else join_documents(tokens, self.eos, before, self._factor)


def attending_pairs(ends: Tokens, length: int) -> int:
    """Pairs of a query and a key it sees, in documents that end at these places (included) of a sequence."""
    sizes = np.diff(np.concatenate([[-1], ends, [length - 1]]))
    return int((sizes * (sizes + 1) // 2).sum())


def join_documents(tokens: Tokens, eos: int, before: float, factor: float) -> Tokens:
    """Join documents backwards from `before` (a share of the length) until `factor` times as many pairs attend.

    The last queries of a long document see most; where its beginning is reached, what follows `before` is joined.
    """
    length = len(tokens)
    ends = np.flatnonzero(tokens == eos)
    wanted = factor * attending_pairs(ends, length)
    order = [*np.flatnonzero(ends < before * length)[::-1], *np.flatnonzero(ends >= before * length)]
    out = tokens.copy()
    for joined in range(1, len(order) + 1):
        place = int(ends[order[joined - 1]])
        out[place] = out[place - 1] if place and out[place - 1] != eos else 0
        if attending_pairs(np.sort(ends[order[joined:]]), length) >= wanted:
            break
    return out
