"""Differences that no rounding makes: in one element of many alone, or on one data-parallel rank alone."""

from collections.abc import Sequence
from dataclasses import replace

from numerics.local.draws.chance import no_accident
from numerics.local.judgement import Standing
from numerics.local.local_check import LocalCheck


def without_lone_ranks(checks: Sequence[LocalCheck]) -> list[LocalCheck]:
    """Return the checks; those within their bound on one data-parallel rank alone, by more than chance, are beyond it.

    Ranks are compared where they hold the same tensor in the same size: they ran the same kernels on it.
    """
    ranks: dict[tuple[str, int], set[int]] = {}
    for one in checks:
        if one.place is not None:
            ranks.setdefault((one.check.tensor, one.check.judged.elements), set()).add(one.place[0])
    every = set().union(*ranks.values()) if ranks else set()
    alike = [
        n
        for n, one in enumerate(checks)
        if one.place is not None
        and len(every) > 1
        and ranks[one.check.tensor, one.check.judged.elements] == every
        and one.check.judged.standing in {Standing.EQUAL, Standing.WITHIN}
    ]
    off = [n for n in alike if checks[n].check.judged.standing == Standing.WITHIN]
    odd = {_rank(checks[n]) for n in off}
    own = sum(_rank(checks[n]) in odd for n in alike)
    if len(odd) != 1 or not no_accident(own, len(alike), len(off)):
        return list(checks)
    words = f"only data-parallel rank {odd.pop()} differs, in {len(off)} tensors: its peers are equal in every bit"
    return [_beyond(one, words) if n in set(off) else one for n, one in enumerate(checks)]


def _rank(one: LocalCheck) -> int:
    return -1 if one.place is None else one.place[0]


def _beyond(one: LocalCheck, words: str) -> LocalCheck:
    judged = replace(one.check.judged, standing=Standing.BEYOND, lone=words)
    return replace(one, check=replace(one.check, judged=judged))
