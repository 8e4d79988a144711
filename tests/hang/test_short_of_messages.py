"""A rank that goes on with fewer messages than its stage is named, also in the first step of a job."""

import pickle

import pytest

from tests.hang.test_comparable import entry
from tracekit.analysis.hang.analyse import analyse
from tracekit.analysis.hang.rules.skipped_message import _spoken
from tracekit.dumps.load import load_dumps

REPLICAS = 3
PIPELINE, ENDS = "PIPELINE_MODEL_PARALLEL_GROUP", "EMBEDDING_GROUP"


def row(number, replica, replicas, seq, name, done):
    """A send or receive of a replica's pipeline, or the call of its two ends."""
    if name == "barrier":
        return entry(number, "0", seq, done, number) | {"pg_id": 99, "process_group": ("all", "default_pg")}
    if name == "all_reduce":
        return entry(number, str(replica + replicas), seq, done, number) | {
            "process_group": (str(replica + replicas), ENDS)
        }
    return entry(number, str(replica), 0, done, number) | {
        "process_group": (str(replica), PIPELINE),
        "p2p_seq_id": seq,
        "profiling_name": f"nccl:{name}",
        "is_p2p": True,
    }


def judged(folder, programs):
    """The finding on pipelines of two ranks; programs by rank: (name, number, whether it is done)."""
    replicas = len(programs) // 2
    for rank, calls in enumerate(programs):
        replica = rank % replicas
        groups = {
            str(number): {"name": str(number), "desc": desc, "ranks": str([replica, replica + replicas])}
            for number, desc in ((replica, PIPELINE), (replica + replicas, ENDS))
        }
        groups["all"] = {"name": "all", "desc": "default_pg", "ranks": str([*range(2 * replicas)])}
        rows = [row(at, replica, replicas, seq, name, done) for at, (name, seq, done) in enumerate(calls)]
        dump = {"version": "2.4", "pg_config": groups, "entries": rows}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return analyse(load_dumps([str(folder)]))


def finding(folder, counts, called=None):
    """The finding on pipelines of two ranks that send so many messages and then make a call; counts by rank.

    called: numbers of these calls, by replica.
    """
    programs = []
    for rank, count in enumerate(counts):
        stage, replica = divmod(rank, REPLICAS)
        other = counts[(1 - stage) * REPLICAS + replica]
        calls = [("recv 1<-0" if stage else "send 0->1", at + 1, at < other) for at in range(count)]
        if count <= other:
            calls.append(("all_reduce", (called or {}).get(replica, 1), count == other))
        programs.append(calls)
    return judged(folder, programs)


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_a_micro_batch_less_names_the_rank(tmp_path, odd):
    counts = [3] * REPLICAS + [3 - (replica == odd) for replica in range(REPLICAS)]
    found = finding(tmp_path, counts)
    assert {c.rank: c.kind for c in found.culprits} == {REPLICAS + odd: "host_stalled"}
    assert (found.culprits[0].collective.op, found.culprits[0].collective.seq) == ("recv 1<-0", 3)


def test_a_message_too_many_names_nobody(tmp_path):
    """The rank that waits may as well have sent one that nobody asked for."""
    found = finding(tmp_path, [3, 3, 4, 3, 3, 3])
    assert (found.verdict, found.culprits) == ("inconclusive", ())


def test_a_stage_that_does_not_agree_names_nobody(tmp_path):
    found = finding(tmp_path, [3, 4, 3, 3, 4, 2])
    assert (found.verdict, found.culprits) == ("inconclusive", ())


def test_replicas_that_count_apart_name_nobody(tmp_path):
    found = finding(tmp_path, [3, 3, 3, 3, 3, 2], called={0: 900, 1: 900, 2: 7})
    assert (found.verdict, found.culprits) == ("inconclusive", ())


@pytest.mark.parametrize(("odd", "named"), [({0, 1}, {6, 7}), ({3}, {9}), ({0, 1, 2}, {6, 7, 8})])
def test_several_replicas_leave_one_message_out(tmp_path, odd, named):
    """Six pipelines; the last stage of the odd ones leaves its second receive out."""
    first, last = ("send 0->1", 1, True), ("recv 1<-0", 1, True)
    send, meet = ("send 0->1", 2), ("recv 1<-0", 2)
    usual = [
        [first, (*send, True), ("recv 0<-1", 3, True), ("all_reduce", 1, True)],
        [last, (*meet, True), ("send 1->0", 3, True), ("all_reduce", 1, True)],
    ]
    short = [[first, (*send, False)], [last, ("send 1->0", 2, False), ("all_reduce", 1, False)]]
    found = judged(tmp_path, [(short if r in odd else usual)[stage] for stage in range(2) for r in range(6)])
    assert {c.rank for c in found.culprits} == named
    assert {c.kind for c in found.culprits} <= {"host_stalled"}


def test_a_host_that_runs_ahead_is_named_too(tmp_path):
    """Its oldest open call comes before the message that it leaves out; that of another group tells."""
    usual = [
        [(name, 1, True), ("all_reduce", 1, True), (name, 2, True), (name, 3, True), ("barrier", 1, False)]
        for name in ("send 0->1", "recv 1<-0")
    ]
    waits = [
        ("send 0->1", 1, True),
        ("all_reduce", 1, False),
        ("send 0->1", 2, False),
        ("send 0->1", 3, False),
    ]
    odd = [("recv 1<-0", 1, True), ("all_reduce", 1, False), ("recv 1<-0", 2, False), ("barrier", 1, False)]
    found = judged(tmp_path, [usual[0], usual[0], waits, usual[1], usual[1], odd])
    assert {c.rank: c.kind for c in found.culprits} == {5: "host_stalled"}
    assert found.culprits[0].collective.seq == 3


def test_names_of_a_batch_read_as_words():
    assert _spoken("nccl:send 2->1; nccl:recv 2<-1; nccl:coalesced") == "send 2->1 and recv 2<-1"
