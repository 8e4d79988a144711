"""Compares the optimisers of a run and its baseline: class, settings and learning rates, by parameter."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numerics.columns import Columns
from numerics.local.forced_pass import Check
from numerics.local.judgement import Judged, Standing
from numerics.local.local_check import LocalCheck
from numerics.local.proof import LocalProof
from numerics.local.records.recorded import RecordedRun
from numerics.local.updates.optimizer_settings import Settings, read_settings, unlike

_Stepped = tuple[str, Mapping[str, Any]]
"""Class of an optimiser, and the group that it steps a parameter by."""


def with_other_settings(run: Columns, baseline: Columns | None, proof: LocalProof) -> LocalProof:
    """Return a proof with a check of the optimiser settings that differ from the baseline's."""
    found = _other_settings(run, baseline)
    return proof if found is None else replace(proof, checks=(*proof.checks, found))


def _other_settings(run: Columns, baseline: Columns | None) -> LocalCheck | None:
    """Return a check where the optimisers of two runs differ in settings; None otherwise, or if they are unknown."""
    if baseline is None or not run.capture.values or not baseline.capture.values:
        return None
    mine, other = RecordedRun(run), RecordedRun(baseline)
    for step in sorted(set(mine.steps) & set(other.steps)):
        own, theirs = (_by_parameter(read_settings(side, step)) for side in (mine, other))
        for name in [*own, *(name for name in theirs if name not in own)] if own and theirs else ():
            if all(name in side.names(step, "step", "param") for side in (mine, other)):
                words = _unlike(own.get(name), theirs.get(name))
                if words:
                    judged = Judged(Standing.BEYOND, relation=words)
                    return LocalCheck(step, None, Check(name, name.rpartition(".")[0], "step", judged))
    return None


def _unlike(mine: _Stepped | None, other: _Stepped | None) -> str:
    """Return in words how the optimisers of two runs treat one parameter unlike; else ""."""
    if mine is None or other is None:
        ends = ("leaves it out", "steps it")
        first, second = ends if mine is None else ends[::-1]
        return f"the run's optimiser {first}, and the baseline's {second}"
    kinds = [kind.rpartition(".")[2] for kind, _ in (mine, other)]
    # a wrapper, or another implementation, may step by the same formula under its own name
    if kinds[0] != kinds[1] and all(kind.startswith("torch.optim.") for kind, _ in (mine, other)):
        return f"the run steps it by {kinds[0]}, and the baseline by {kinds[1]}"
    words = unlike(mine[1], other[1], mine[1].keys() & other[1].keys())
    return f"it is stepped with {words[0]}, and in the baseline with {words[1]}" if words else ""


def _by_parameter(by_rank: dict[int, Settings]) -> dict[str, _Stepped]:
    """Return class and group of each parameter, of the first rank that steps it."""
    found: dict[str, _Stepped] = {}
    for one in by_rank.values():
        for name, group in one.by_parameter().items():
            found.setdefault(name, (one.kind, group))
    return found
