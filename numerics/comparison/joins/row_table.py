"""Joins a run and its matched replay row by row; both record the same ranks, parts, partial sums and collectives.

A collective that only one of the two records is kept apart: where the values behind it differ, it is the suspect
(skipped, or done twice); where they do not, it is harmless.
"""

from dataclasses import dataclass

import numpy as np

from numerics.columns import Columns
from numerics.comparison.joins.tensor_table import Status
from numerics.keys import Ints, Keys, join, keys_of, occurrence
from numerics.schema import COLLECTIVES


@dataclass(frozen=True)
class RowTable:
    """Rows of a run against its replay's.

    `match` is the replay's row for each row of the run, -1 where there is none; `status` compares the two. `missing`
    are rows of collectives that only the replay has, `extra` rows that only the run has, if both record collectives.
    """

    status: Ints
    match: Ints
    missing: Ints
    extra: Ints

    @property
    def compared(self) -> int:
        """Number of rows with a counterpart."""
        return int((self.match >= 0).sum())

    @property
    def different(self) -> Ints:
        """Return the rows with bits that differ from the replay's, signs of zeros apart."""
        return np.flatnonzero(self.status == Status.DIFFERENT)


def row_keys(run: Columns, *, with_rank: bool) -> Keys:
    """Return the identity of each row within its run, the same in a run and its replay."""
    columns = [run[c] for c in ("step", "phase", "kind", "tensor", "axis", "op", "label", "partial")]
    columns += [run["micro_batch"], run["boxes"], run["global_shape"]]
    columns += [run["rank"]] if with_rank else [run["dp"]]
    base = keys_of(*columns)
    return keys_of(base, occurrence(keys_of(base, run["rank"]), run["order"]))


def by_row(run: Columns, replay: Columns) -> RowTable:
    """Return how every row of a run compares with its replay's."""
    with_rank = set(np.unique(run["rank"])) == set(np.unique(replay["rank"]))
    mine, theirs = row_keys(run, with_rank=with_rank), row_keys(replay, with_rank=with_rank)
    if not with_rank:
        theirs_unique, first = np.unique(theirs, return_index=True)
        match = join(mine, theirs_unique)
        match = np.where(match >= 0, first[match], -1)
    else:
        match = join(mine, theirs)
    status = np.full(len(run), Status.UNMATCHED, np.int64)
    have = np.flatnonzero(match >= 0)
    other = match[have]
    same_type = run["dtype"][have] == replay["dtype"][other]
    equal = same_type & (run.digest[have] == replay.digest[other])
    equal_nz = same_type & (run.digest_nz[have] == replay.digest_nz[other])
    status[have] = np.where(equal, Status.EQUAL, np.where(equal_nz, Status.SIGNED_ZERO, Status.DIFFERENT))
    lacking = join(theirs, mine) < 0 if with_rank else ~np.isin(theirs, mine)
    return RowTable(
        status=status,
        match=match,
        missing=_unmatched_collectives(replay, lacking, run),
        extra=_unmatched_collectives(run, match < 0, replay),
    )


def _unmatched_collectives(run: Columns, lacking: np.ndarray, other: Columns) -> Ints:
    """Return the rows of collectives without a counterpart; none where the other run records no collectives."""
    if not other.named("kind", *COLLECTIVES).any():
        return np.zeros(0, np.int64)
    return np.flatnonzero(lacking & run.named("kind", *COLLECTIVES))
