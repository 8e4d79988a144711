"""A pause of one rank of plain DDP is named with its cause, wherever its process sleeps."""

import json
from functools import partial

import pytest

from tests.record.alone import run_ranks
from tests.record.plain_ddp import SLEPT_S, SLOW, train
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.ingest import load


@pytest.mark.parametrize("kind", ["backward", "hook", "forward", "loader"])
@pytest.mark.quick(1)
def test_a_sleep_is_a_pause_of_the_host(ranks, tmp_path, kind):
    done = run_ranks(ranks, partial(train, kind), 3, tmp_path)
    assert all(one.returncode == 0 for one in done), done
    names = [
        e.get("name") for e in json.loads((tmp_path / "trace" / "rank0.json").read_text())["traceEvents"]
    ]
    assert names.count("gloo:all_reduce") >= 12
    assert "record_param_comms" not in names
    found = analyse(load([str(tmp_path / "trace")]))
    assert found.coverage.matched == 1
    assert found.verdict in {"slow_rank", "inconclusive"}, (
        found.reason
    )  # open where the machine pauses others as long
    first, *others = [*found.suspects, *found.candidates]
    assert (first.rank, first.cause, others) == (SLOW, "host_stall", [])
    assert first.lost_ms_high > 0.4 * SLEPT_S * 1000
