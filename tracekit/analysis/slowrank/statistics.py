"""Every threshold of the slow-rank analysis, with its reason, and the robust statistics behind them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

MIN_LOST_SHARE = 0.02
"""Below 2 % of the step nobody is named (contract): diurnal clock variation alone moves steps by 1–2 %."""

Z_LIMIT = 4.5
"""Standard errors a rank's excess must clear: one false alarm in about 300 000 normal trials, so that a thousand
ranks still give less than one in a hundred; the noise is heavier-tailed than normal, hence no smaller."""

ONE_STEP_P = 0.05
"""With a single step a rank is named if coming last so often has at most this probability (all ranks tested)."""

NOISE_FLOOR = 5e-4
"""Share of the step below which own times are never trusted to differ (timestamps, launch jitter)."""

SUSPECT_SHARE = 0.2
"""A further suspect must cost at least this share of the worst one's loss."""

STEP_SHARE = 0.3
"""A step counts as slow on a suspect when its excess exceeds this share of its worst step's."""

IMBALANCE_LIMIT = 1.4
"""Overdispersion of the work between ranks (variance of blocks over the sum of their parts' variances, 1 where
delays are independent from kernel to kernel) from which work is unevenly dealt rather than noisy."""

DATA_VARIATION = 0.03
"""Least coefficient of variation of attention time between peers that makes an imbalance follow the data."""

LINK_RATIO = 1.25
"""A link is slow when its transfers take this much longer than those of its peers for the same message."""

LINK_RATIO_OF_TWO = 1.6
"""The same where there is one peer only, whose own spread is unknown."""

LINK_REPEATS = 3
"""Steps from which messages are compared with those at the same place of other steps: a median needs three."""

ROLE_SHARE = 0.1
"""Share of the step up to which host work of all ranks with tensor index 0 is the job's design, not a fault."""

STAGE_MIN_PEERS = 2
"""Pipeline stages that are compared with each other: at least this many."""


@dataclass(frozen=True)
class Excess:
    """Own time beyond the median of comparable ranks, ns; rows are ranks, columns steps."""

    value: F64
    mean: F64  # per rank, over the columns; NaN where the rank has no peer
    sigma: float  # robust standard deviation of one entry around its rank's own level
    z: F64  # per rank: significance of the mean, in standard errors
    limit: float = Z_LIMIT  # from which z counts


def median_of_others(values: F64, groups: list[npt.NDArray[np.int64]]) -> F64:
    """For each row the median of the other rows of its group, column by column; NaN where it has no peer."""
    result = np.full(values.shape, np.nan)
    for rows in groups:
        if len(rows) < 2:
            continue
        block = values[rows]
        for i, row in enumerate(rows):
            others = np.delete(block, i, axis=0)
            known = np.isfinite(others).any(axis=0)
            if known.any():
                result[row, known] = np.nanmedian(others[:, known], axis=0)
    return result


def spread(values: F64) -> float:
    """Robust standard deviation (1.4826 × median absolute deviation) of all finite entries; 0 where there is none."""
    flat = values[np.isfinite(values)]
    return float(1.4826 * np.median(np.abs(flat - np.median(flat)))) if len(flat) else 0.0


def excess(values: F64, groups: list[npt.NDArray[np.int64]], floor: float) -> Excess:
    """Excess of every row over its peers, and its significance against the noise pooled over all rows.

    The noise is each entry's deviation from its own row's median, so that persistent differences between rows do
    not count as noise; `floor` (ns) keeps a noiseless trace from making trifles significant.
    """
    difference = values - median_of_others(values, groups)
    columns = np.isfinite(difference).sum(axis=1)
    mean = np.array([np.nanmean(d) if n else np.nan for d, n in zip(difference, columns, strict=True)])
    many = int(np.median(columns[columns > 0])) if (columns > 0).any() else 0
    if many >= 2:
        level = np.array([np.nanmedian(d) if n else np.nan for d, n in zip(difference, columns, strict=True)])
        sigma = spread(difference - level[:, None]) * float(np.sqrt(many / (many - 1)))
    else:
        sigma = spread(difference)
    sigma = max(sigma, floor)
    return Excess(difference, mean, sigma, mean / (max(sigma, 1.0) / np.sqrt(np.maximum(columns, 1))))


def confidence(z: float, tests: int) -> float:
    """Probability that an excess of `z` standard errors is no chance find among `tests` ranks (normal, Bonferroni)."""
    from scipy.stats import norm

    return float(np.clip(1.0 - tests * norm.sf(z), 0.0, 0.999))
