"""Simulated traces in the form of every torch version: what stands in them, and what `slowrank` makes of each."""

import gzip
import json

import pytest

from reftrain.config.trace_forms import DEVICE_FORMS, FORMS
from tests.marks import quick_if
from tests.simulate.case import setup_of, written
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.ingest import load

MESH = {"tp": 2, "pp": 4, "dp": 2}
FULL = {"tp": 2, "cp": 1, "pp": 4, "dp": 2}
SLOW = 5
QUICK = ("2.2", "2.5-batched", "2.15")
NAMED = (
    "2.4",
    "2.5",
    "2.5-batched",
    "2.6-batched",
    "2.9-batched",
    "2.12",
    "2.13",
    "2.13-batched",
    "2.15",
    "2.15-batched",
)
"""Forms that tell the peer of every message."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of traces of one simulated job with a slow rank, by form, each written when it is asked for."""
    setup, config = setup_of(
        MESH, f"slow_compute:rank={SLOW},factor=1.4", steps=4, merge=False, tables={"model": {"layers": 8}}
    )
    base, made = tmp_path_factory.mktemp("forms"), {}

    def folder(form):
        if form not in made:
            written(base / form, setup, config, detail="kernels", form=FORMS[form])
            made[form] = base / form / "trace"
        return made[form]

    return folder


def rows(folder, rank=SLOW):
    trace = json.loads(gzip.decompress((folder / f"rank{rank}.json.gz").read_bytes()))
    return trace, [e for e in trace["traceEvents"] if e["ph"] == "X"]


@pytest.mark.parametrize("form", quick_if(QUICK.__contains__, DEVICE_FORMS))
@pytest.mark.quick(1)
def test_rows_hold_what_the_version_writes(folders, form):
    trace, events = rows(folders(form))
    made, host = FORMS[form], [e for e in events if e["name"] == "record_param_comms"]
    kernels = [e for e in events if e["cat"] == "kernel" and "SendRecv" in e["name"]]
    titles = {e["name"] for e in events if e["name"].startswith("nccl:")}
    assert kernels
    assert ("pg_config" in trace["distributedInfo"]) == made.lists_groups
    keys = {k for e in (*host, *kernels) for k in e["args"]}
    assert ("Rank" in keys, "Seq" in keys, "Process Group Ranks" in keys) == (
        "Rank" in made.keys, "Seq" in made.keys, "Process Group Ranks" in made.keys,
    )  # fmt: skip
    assert any("Group size" in k["args"] for k in kernels) == (
        bool(made.keys) and (made.nccl2 or not made.batched)
    )
    assert bool(titles) == made.titles
    single = made.titles and made.records_messages and not made.batched
    assert any(t.startswith(("nccl:send ", "nccl:recv ")) for t in titles) == single
    assert ("nccl:_all_gather_base" in titles) == made.titles
    assert ("nccl:coalesced" in titles) == (made.batched and not made.nccl2)
    assert all("ncclKernel" in k["name"] for k in kernels) == made.old_kernels


def test_a_batch_is_told_by_its_launch_alone(folders):
    _, events = rows(folders("2.5-batched"))
    launches = {e["args"]["correlation"]: e for e in events if e["cat"] == "cuda_runtime"}
    batches = [e for e in events if e["name"] == "nccl:coalesced"]
    for kernel in [e for e in events if e["cat"] == "kernel" and "SendRecv" in e["name"]]:
        launch, link = launches[kernel["args"]["correlation"]], kernel["args"]["correlation"]
        assert kernel["args"]["External id"] == link  # of another event
        assert any(b["ts"] <= launch["ts"] <= b["ts"] + b["dur"] for b in batches)


def test_the_newest_backend_numbers_all_calls_together(folders):
    _, events = rows(folders("2.15"))
    mine = [
        e["args"]
        for e in events
        if e["name"] == "record_param_comms" and e["args"]["Process Group Description"] == "mesh_pp"
    ]
    numbers = [a["Seq"] for a in mine]
    assert sorted(numbers) == list(range(1, len(mine) + 1))
    assert {a["Collective name"] for a in mine} >= {"send", "recv"}
    assert max(a["Comms Id"] for a in mine) >= 1 << 63


@pytest.mark.parametrize("form", quick_if(QUICK.__contains__, NAMED))
@pytest.mark.quick(1)
def test_every_form_that_names_peers_gives_the_rank(folders, form):
    found = analyse(load([str(folders(form))]))
    assert (found.verdict, [s.rank for s in found.suspects]) == ("slow_rank", [SLOW])
    assert found.coverage.matched == 1


@pytest.mark.parametrize("form", quick_if(QUICK.__contains__, sorted(set(DEVICE_FORMS) - set(NAMED))))
@pytest.mark.slow
def test_poorer_forms_give_the_rank_or_leave_it_open(folders, form):
    found = analyse(load([str(folders(form))]), FULL, ["tp", "cp", "pp", "dp"])
    assert found.verdict in ("slow_rank", "inconclusive")
    assert {s.rank for s in (*found.suspects, *found.candidates)} == {SLOW}
