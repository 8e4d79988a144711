"""Units: tables hold integer nanoseconds, reports hold milliseconds."""

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
NS_PER_HOUR = 3_600 * NS_PER_S
NS_PER_DAY = 24 * NS_PER_HOUR


def ms(ns: float) -> float:
    """Return nanoseconds as milliseconds, for reports."""
    return ns / NS_PER_MS
