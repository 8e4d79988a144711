"""All-to-alls with sizes that do not fit: named where the peers' sizes repeat or reverse an earlier call."""

import pickle
import random

import pytest

from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps


def entry(seq, moved, *, done):
    passed, taken = moved
    return {
        "record_id": seq, "pg_id": 0, "process_group": ("0", "EXPERT_PARALLEL_GROUP"), "collective_seq_id": seq,
        "p2p_seq_id": 0, "op_id": seq, "profiling_name": "nccl:all_to_all", "frames": [],
        "time_created_ns": 10**18 + seq * 1_000_000, "input_sizes": [[passed, 8]], "output_sizes": [[taken, 8]],
        "input_dtypes": ["BFloat16"], "output_dtypes": ["BFloat16"], "state": "completed" if done else "scheduled",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": done,
        "timeout_ms": 600000, "is_p2p": False,
    }  # fmt: skip


def verdict(folder, calls):
    """Of a job that hangs in the last of `calls`, each one (passed, taken) a rank in rows of eight."""
    for rank in range(len(calls[0])):
        dump = {
            "version": "2.9",
            "pg_config": {
                "0": {"name": "0", "desc": "EXPERT_PARALLEL_GROUP", "ranks": str([*range(len(calls[0]))])}
            },
            "entries": [entry(n, c[rank], done=n < len(calls)) for n, c in enumerate(calls, 1)],
            "pg_status": {
                "0": {"last_enqueued_collective": len(calls), "last_completed_collective": len(calls) - 1}
            },
        }
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return analyse(load_dumps([str(folder)]))


def routed(ranks, rounds, seed=0):
    """Calls of a layer of experts: counts of one size, tokens to the experts, and back."""
    rng = random.Random(seed)
    calls = []
    for _ in range(rounds):
        sent = [[rng.randrange(1, 50) for _ in range(ranks)] for _ in range(ranks)]
        there = [(sum(sent[r]), sum(row[r] for row in sent)) for r in range(ranks)]
        calls += [[(4, 4)] * ranks, there, [(taken, passed) for passed, taken in there]]
    return calls


def wrong(call, rank):
    return [
        (3 * passed, 3 * taken) if r == rank else (passed, taken) for r, (passed, taken) in enumerate(call)
    ]


@pytest.mark.parametrize("last", [0, 2], ids=["counts of one size", "tokens sent back"])
def test_the_rank_that_breaks_the_pattern_is_named(tmp_path, last):
    calls = routed(4, 4)[: 10 + last]
    found = verdict(tmp_path, [*calls[:-1], wrong(calls[-1], 2)])
    assert [(c.rank, c.kind) for c in found.culprits] == [(2, "mismatched_call")]
    assert ("reverse", "repeat")[last == 0] in found.culprits[0].how


@pytest.mark.parametrize("last", range(3))
def test_sizes_that_fit_accuse_no_rank(tmp_path, last):
    assert verdict(tmp_path, routed(4, 4)[: 10 + last]).culprits == ()


def test_routed_tokens_have_no_pattern_to_break(tmp_path):
    calls = routed(4, 4)[:11]
    found = verdict(tmp_path, [*calls[:-1], wrong(calls[-1], 2)])
    assert found.verdict == "inconclusive"
    assert found.candidates == (0, 1, 2, 3)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_pair_and_two_odd_ranks_stay_open(tmp_path, ranks):
    calls = routed(ranks, 4)[:12]
    last = wrong(calls[-1], 0) if ranks == 2 else wrong(wrong(calls[-1], 0), 1)
    assert verdict(tmp_path, [*calls[:-1], last]).culprits == ()


def test_stale_sizes_of_one_rank_accuse_no_peer(tmp_path):
    """A rank with the sizes of a call before is alone with them: its peers' sizes are new, and none is odd."""
    calls = routed(3, 4)[:11]
    last = [calls[-4][0], *calls[-1][1:]]
    assert verdict(tmp_path, [*calls[:-1], last]).culprits == ()
