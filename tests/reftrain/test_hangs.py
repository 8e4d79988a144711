"""Planted hangs on real ranks: what the dumps of all ranks say about the one that is meant."""

import pickle
from collections import Counter

import pytest

from reftrain.config.file import load
from reftrain.errors import ConfigError
from reftrain.faults.registry import read_faults
from tests.marks import quick_first
from tests.ranks.patience import patience

RANKS = 4
STEP = 1
TINY = [
    "--mesh",
    "tp=2,pp=2",
    "--set",
    "model.layers=2",
    "--set",
    "data.batch_size=4",
    "--set",
    "data.seq_len=32",
]


@pytest.fixture
def hang(ranks, tmp_path):
    """Dumps of four ranks (two tensor, two pipeline) and what the command said."""

    def run(fault, *arguments):
        limit = f"evidence.timeout_s={patience(2)}"
        job = ranks.reftrain(
            "run",
            *TINY,
            "--quiet",
            "--steps",
            3,
            "--out",
            tmp_path,
            "--fault",
            fault,
            "--set",
            limit,
            *arguments,
        )
        done = job.wait(patience(100))
        assert done.returncode == 3, done.stderr
        left = sorted(path.name for path in (tmp_path / "fr").iterdir())
        assert left == [f"rank_{rank}" for rank in range(RANKS)], "whole dumps and nothing else"
        return [pickle.loads((tmp_path / "fr" / name).read_bytes())["entries"] for name in left], done.stderr

    return run


def calls(entries, group, *, p2p=False):
    return [e for e in entries if e["process_group"][1] == group and e["is_p2p"] == p2p]


def pending(entries):
    return [(e["process_group"][1], e["profiling_name"]) for e in entries if not e["retired"]]


@pytest.mark.slow
def test_a_stalled_rank_is_one_call_behind_there(hang):
    dumps, said = hang(f"host_stall:rank=3,steps={STEP},axis=tp")
    mine, peer = (calls(dumps[rank], "mesh_tp") for rank in (3, 2))
    assert len(peer) == len(mine) + 1
    assert peer[-1]["collective_seq_id"] == mine[-1]["collective_seq_id"] + 1
    assert not peer[-1]["retired"]
    assert all(e["retired"] for e in mine)
    assert "waited in vain for another rank" in said


@pytest.mark.parametrize("kind", quick_first(1, ["crash", "hold_gil"]))
def test_what_a_rank_did_last_survives_it(hang, kind):
    """The dump a second is older than the last calls; the mapped ring is not."""
    dumps, said = hang(f"{kind}:rank=1,steps={STEP},axis=tp,op=reduce_scatter")
    mine, peer = (calls(dumps[rank], "mesh_tp") for rank in (1, 0))
    assert peer[-1]["collective_seq_id"] == mine[-1]["collective_seq_id"] + 1
    assert not peer[-1]["retired"]
    assert mine[-1]["retired"]
    where = [
        frame["filename"] for frame in mine[-1]["frames"]
    ]  # the ring's few, or all of a dump that is as new
    assert [name for name in where if name.startswith("reftrain/")], where
    if kind == "crash":
        assert "reftrain: rank 1 (process " in said
        assert "was killed by SIGKILL; ended the other 3 ranks" in said


@pytest.mark.slow
def test_a_skipped_message_is_missing_at_one_end(hang):
    dumps, _ = hang(f"skip_collective:rank=2,steps={STEP},axis=pp,op=recv")
    ends = Counter()
    for rank, other in ((0, 2), (1, 3)):
        sent = [e for e in calls(dumps[rank], "mesh_pp", p2p=True) if "send" in e["profiling_name"]]
        got = [e for e in calls(dumps[other], "mesh_pp", p2p=True) if "recv" in e["profiling_name"]]
        ends[rank, other] = len(sent) - len(got)
    assert ends == {(0, 2): 1, (1, 3): 0}
    assert ("mesh_pp", "gloo:send 0->1") in pending(dumps[0])


def test_the_next_collective_meets_a_skipped_one(hang):
    dumps, _ = hang(f"skip_collective:rank=3,steps={STEP},axis=tp,op=all_reduce")
    mine, peer = (
        [(e["collective_seq_id"], e["input_sizes"]) for e in calls(dumps[rank], "mesh_tp")] for rank in (3, 2)
    )
    assert mine[:-1] == peer[:-1]
    assert mine[-1] == (peer[-1][0], [[2, 32]]), "the sums of the cross-entropy"
    assert peer[-1][1] == [[32]], "its maxima, which rank 3 left out"
    assert not any(calls(dumps[rank], "mesh_tp")[-1]["retired"] for rank in (2, 3))


@pytest.mark.parametrize(
    ("axis", "op"), quick_first(1, [("dp", "reduce_scatter"), ("tp", "all_gather"), ("pp", "send")])
)
def test_a_wrong_size_stands_in_its_ranks_dump(hang, axis, op):
    layout = ["--mesh", "pp=2,dp=2", "--set", "mesh.zero=2"] if axis == "dp" else []
    dumps, _ = hang(f"wrong_size:rank=1,steps={STEP},axis={axis},op={op}", *layout)
    p2p = op == "send"
    sizes = Counter(
        e["input_sizes"][0][0]
        for e in calls(dumps[1], "mesh_dp" if axis == "dp" else f"mesh_{axis}", p2p=p2p)
        if e["input_sizes"] and len(e["input_sizes"][0]) == 1
    )
    others = Counter(
        e["input_sizes"][0][0]
        for rank in (0, 2, 3)
        for e in calls(dumps[rank], "mesh_dp" if axis == "dp" else f"mesh_{axis}", p2p=p2p)
        if e["input_sizes"] and len(e["input_sizes"][0]) == 1
    )
    odd = set(sizes) - set(others)
    assert len(odd) == 1, (sizes, others)
    assert sizes[odd.pop()] == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("crash:rank=1,axis=xp", "fault.axis: 'xp' is unknown; choose among tp, cp, pp, dp, ep"),
        ("crash:rank=1,axis=ep", "fault.axis: no rank communicates on ep: it has one rank"),
        ("crash:rank=1,op=gather", "fault.op: 'gather' is unknown; choose among all_reduce"),
        ("crash:rank=1,axis=cp", "fault.axis: no rank communicates on cp: it has one rank"),
        (
            "slow_link:rank=1,axis=tp",
            "fault.axis: slow_link has no such field; it takes rank, delay_ms, steps",
        ),
    ],
)
def test_an_axis_must_exist(fault, message):
    config = load(None, {"mesh": {"tp": 2}, "evidence": {"faults": [fault]}})
    with pytest.raises(ConfigError) as caught:
        read_faults(config)
    assert str(caught.value).startswith(message)
