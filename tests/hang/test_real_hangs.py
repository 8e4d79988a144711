"""Real hangs of the reference trainer, small: four ranks on Gloo. All kinds on all axes: tests.hang.real_hangs."""

from itertools import combinations

import pytest

from tests.evidence.real_channels import channels_of
from tests.hang.real_hangs import KINDS, run
from tests.marks import quick_first
from tests.ranks.patience import patience
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps
from tracekit.plain_pickle import loads_plain

SMALL = {"step": 1}


@pytest.mark.parametrize(
    ("kind", "axis", "rank", "mesh"),
    quick_first(
        1,
        [
            ("host_stall", "tp", 3, "tp=2,pp=2"),
            ("wrong_size", "pp", 0, "pp=2,dp=2"),
            ("wrong_size", "pp", 3, "pp=2,dp=2"),
            ("host_stall", "pp", 2, "pp=2,dp=2"),
        ],
    ),
)
def test_the_planted_rank_is_named(ranks, tmp_path, kind, axis, rank, mesh):
    outcome = run(ranks, tmp_path / "run", kind, axis, rank, mesh=mesh, timeout_s=patience(2), **SMALL)
    assert outcome.named == [rank], outcome.reason
    assert set(outcome.kinds) <= KINDS[kind]
    dumps = sorted((tmp_path / "run" / "fr").iterdir())
    check_channels(channels_of(tmp_path / "run", kind, axis, rank))
    victims = [path for path in dumps if path.name != f"rank_{rank}"]
    for gone in [*combinations(victims, 1), *combinations(victims, 2)]:
        finding = analyse(load_dumps([str(path) for path in dumps if path not in gone]))
        assert {c.rank for c in finding.culprits} <= {rank}, ([path.name for path in gone], finding.reason)


def check_channels(found):
    """No subset of log, stacks, dumps and RAS names an innocent; a host that stalled is named by its log alone."""
    assert found.outcomes()["wrong"] == 0
    if found.kind == "host_stall":
        assert found.named(("log",)) == "right"
        # the launcher asks twice; a busy machine may answer once before the end
        assert "in strike" in (found.places["stacks"] / f"rank_{found.rank}.txt").read_text()
        assert "node_cpu_seconds_total" in next(found.places["counters"].iterdir()).read_text()


def test_collectives_the_trainer_never_awaits_are_recorded_done(ranks, tmp_path):
    run(ranks, tmp_path / "run", "wrong_size", "pp", 1, mesh="pp=2,dp=2", timeout_s=patience(2), **SMALL)
    calls = {
        "barrier": 0,
        "all_reduce": 0,
    }  # the launcher's barrier, and FSDP2's reduce-scatter as Gloo calls it
    for path in sorted((tmp_path / "run" / "fr").iterdir()):
        entries = [e for e in loads_plain(path.read_bytes())["entries"] if not e["is_p2p"]]
        for entry in entries[:-1]:  # the last may be that in which the job stopped
            assert entry["retired"], (path.name, entry["profiling_name"], entry["collective_seq_id"])
            name = entry["profiling_name"].removeprefix("gloo:")
            calls[name] = calls.get(name, 0) + 1
    assert calls["barrier"] == 4
    assert calls["all_reduce"] >= 8
