"""Every bug of the catalogue changes a run first where it says, leaves alone what comes before, and goes away."""

import pytest

from reftrain.config.file import load
from reftrain.config.run import RunConfig
from reftrain.faults.bugs import catalogue
from tests.bugs.cases import CASES, Case
from tests.bugs.observe import Seen, differing, largest_change, observed
from tests.marks import quick_nth
from tests.ranks.pool import RankPool

BASE = {
    "model": {"layers": 2},
    "data": {"batch_size": 4, "seq_len": 48, "micro_batch_size": 2},
    "numerics": {"policy": "fp32"},
    "run": {"steps": 2},
}
SEQUENCES = {"dp": 12, "pp": 8}
"""Sequences a step where replicas share them, or stages are to be filled; elsewhere two micro-batches do."""
_clean: dict[str, list[list[Seen]]] = {}


def configuration(case: Case, fault: str | None) -> RunConfig:
    tables: dict[str, dict[str, object]] = {"evidence": {"faults": [fault] if fault else []}}
    axes = case.tables.get("mesh", {})
    sequences = next((count for axis, count in SEQUENCES.items() if axis in axes), None)
    for source in (BASE, {"data": {"batch_size": sequences} if sequences else {}}, case.tables):
        for table, values in source.items():
            tables.setdefault(table, {}).update(values)
    return load(None, tables)


def run(ranks: RankPool, config: RunConfig) -> list[list[Seen]]:
    return ranks.run(observed, config.mesh.world_size, config)


def clean(ranks: RankPool, case: Case) -> list[list[Seen]]:
    if repr(case.tables) not in _clean:
        _clean[repr(case.tables)] = run(ranks, configuration(case, None))
    return _clean[repr(case.tables)]


@pytest.mark.parametrize(
    "case", quick_nth(8, CASES), ids=lambda c: f"{c.fault} on {c.tables.get('mesh', {})}"
)
def test_shows_first_where_it_says(ranks, case):
    without, planted = clean(ranks, case), run(ranks, configuration(case, case.fault))
    different = differing(without, planted)
    assert different, "nothing differs"
    kind, step, _ = different[0]
    assert (kind, step) == (case.kind, case.step)
    here = [name for k, s, name in different if (k, s) == (kind, step)]
    if kind in {"forward", "recomputed", "input", "init"}:
        assert here[0] == case.name
    else:
        assert case.name in here
    for other_kind, other in case.same:
        assert (other_kind, case.step, other) not in [(k, s, n) for k, s, n in different]
    if kind == "grad":
        more_than_rounding = 1e-6 if case.fault.startswith(("P44", "P55")) else 1e-3
        assert largest_change(without, planted, "grad") > more_than_rounding


def test_a_bug_leaves_no_trace_in_the_process(ranks):
    """The pool's processes have had every bug planted by now: a clean run must be as clean as before."""
    case = Case("", {"mesh": {"tp": 2}}, "", "")
    run(ranks, configuration(case, "P56"))
    assert not differing(clean(ranks, case), run(ranks, configuration(case, None)))


def test_every_bug_has_a_case():
    assert {case.fault.partition(":")[0] for case in CASES} == set(catalogue())
