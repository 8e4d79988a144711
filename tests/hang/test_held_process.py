"""One rank of a pipeline on Gloo is held from outside: messages and stacks of its peers accuse no other rank."""

import pickle

import pytest

from tests.hang.test_comparable import entry, pg_config
from tracekit.analysis.hang.analyse import analyse
from tracekit.analysis.hang.call_origins import _of_one_depth
from tracekit.dumps.load import load_dumps

HELD = 2
GROUPS = {"0": range(4), "1": (0, 2), "2": (1, 3), "3": (0, 1), "4": (2, 3)}
SECOND = 1_000_000_000
SETUP = ["0", "0", "0"]
FIRST = ["send +", "send +", "recv +", "send +", "recv +", "send -", "recv +", "recv -"]
HELD_AT = ["send +", "send -", "recv +", "send -", "recv -"]
SECOND_STAGE = ["recv +", "recv +", "send -", "recv +", "send -", "recv +", "send -"]
BEHIND_HELD = ["recv +", "recv +", "send -", "recv +", "send -", "recv -", "send -"]
"""Messages of two stages, two replicas and four micro-batches: + are noted as done. Of sends Gloo's recorder notes the
end when the step is over. Rank 0 waits for 1, which sums gradients with 3, which receives from 2, which is held."""


def rows(rank):
    """The calls of a rank as (group, name, number, done)."""
    stage, pair = rank % 2, str(3 + rank // 2)
    own = {0: FIRST, 1: SECOND_STAGE, 2: HELD_AT, 3: BEHIND_HELD}[rank]
    calls = [("0", "gloo:barrier", n, True) for n, _ in enumerate(SETUP, 1)]
    calls += [(str(1 + stage), "gloo:all_gather", n, True) for n in range(1, 4)]
    for number, text in enumerate(own, 1):
        verb, _, done = text.partition(" ")
        ends = f"{stage}{'->' if verb == 'send' else '<-'}{1 - stage}"
        calls.append((pair, f"gloo:{verb} {ends}", number, done == "+"))
    return [*calls, ("2", "gloo:all_reduce", 4, False)] if rank == 1 else calls


def dumps(folder, ranks, lived):
    """Write the dumps of `ranks`, with recorders that lived on for so many seconds; return the finding."""
    for rank in ranks:
        entries = []
        for at, (group, name, number, done) in enumerate(rows(rank)):
            message = "recv" in name or "send" in name
            row = entry(at, group, 0 if message else number, done, at) | {"profiling_name": name}
            row |= {"p2p_seq_id": number if message else 0, "is_p2p": message}
            row["time_created_ns"] += at * SECOND // 100
            entries.append(row)
        dump = {"version": "2.10", "pg_config": pg_config(rank, GROUPS), "entries": entries}
        dump["heartbeat_ns"] = entries[-1]["time_created_ns"] + int(lived[rank] * SECOND)
        (folder / f"rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return analyse(load_dumps([str(folder)]))


def named(finding):
    return {culprit.rank: culprit.kind for culprit in finding.culprits}


@pytest.mark.parametrize("lived", [(7.5, 7.2, 0.3, 16), (7.5, 7.2, 0.3, 92)])
def test_the_held_rank_is_named_by_its_heartbeat(tmp_path, lived):
    assert named(dumps(tmp_path, range(4), lived)) == {HELD: "host_stalled"}


def test_the_held_rank_is_named_without_its_dump(tmp_path):
    assert named(dumps(tmp_path, (0, 1, 3), (8, 8, 0, 8))) == {HELD: "missing_dump"}


def test_shorter_stacks_are_no_other_place():
    """What a ring keeps of a process that died holds fewer frames than a dump."""
    whole, other = ("barrier", "save", "main"), ("barrier", "load", "main")
    logs = {1: {7: (None, whole), 8: (None, other)}, 2: {7: (None, whole[:2]), 8: (None, other[:2])}}
    cut = _of_one_depth(logs)
    assert cut[1] == cut[2] == logs[2]
    assert _of_one_depth({1: {7: (None, whole)}, 2: {7: (None, other)}})[1][7][1] == whole
