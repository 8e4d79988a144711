"""Whether a mechanism is named: it explains most of the excess, and nothing else explains as much."""

from collections.abc import Sequence
from dataclasses import replace

from tracekit.findings import Mechanism
from tracekit.thresholds.slowrank import MECHANISMS_LISTED, NAMED_SHARE, RIVAL_SHARE


def named(found: Sequence[Mechanism]) -> tuple[Mechanism, ...]:
    """Return the mechanisms that explain most; `sure` remains where one explains most of it and no other half of it."""
    rivals = [max((o.share for o in found if o is not m), default=0.0) for m in found]
    result = [
        replace(m, sure=m.sure and m.share >= NAMED_SHARE and rival < RIVAL_SHARE)
        for m, rival in zip(found, rivals, strict=True)
    ]
    return tuple(sorted(result, key=lambda m: -m.share)[:MECHANISMS_LISTED])
