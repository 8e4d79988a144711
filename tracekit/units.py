"""Units: tables hold integer nanoseconds, reports hold milliseconds; and the arrays that hold either."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

I8: TypeAlias = npt.NDArray[np.int8]
I32: TypeAlias = npt.NDArray[np.int32]
I64: TypeAlias = npt.NDArray[np.int64]
F64: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
MS_PER_S = NS_PER_S // NS_PER_MS
NS_PER_HOUR = 3_600 * NS_PER_S
NS_PER_DAY = 24 * NS_PER_HOUR


def ms(ns: float) -> float:
    """Return nanoseconds as milliseconds, for reports."""
    return ns / NS_PER_MS
