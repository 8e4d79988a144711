"""A rank that makes other calls than its peers between two calls of a group is named."""

import pickle

import pytest

from tests.hang.test_comparable import entry, pg_config
from tracekit.analysis.hang.analyse import analyse
from tracekit.analysis.hang.rules.left_program import Step, Stretch, _partings
from tracekit.dumps.load import load_dumps

GROUPS = {"1": range(4), "2": (0, 1), "3": (2, 3)}


def job(odd, stretch, repeats=4):
    """Calls of four ranks that make one call of their pair between those of all; `odd` makes `stretch` at last."""
    rows = []
    for rank in range(4):
        pair = str(rank // 2 + 2)
        calls = [(group, 0) for _ in range(repeats) for group in ("1", pair)]
        calls += [("1", 0), *((g if g == "1" else pair, 0) for g in (stretch if rank == odd else ["2", "1"]))]
        counts = dict.fromkeys(GROUPS, 0)
        for at, (group, _) in enumerate(calls):
            counts[group] += 1
            calls[at] = (group, counts[group])
        rows.append(calls)
    return rows


def found(folder, rows, done=8, gaps=()):
    """The finding on these calls, of which each rank has done the first ones."""
    for rank, calls in enumerate(rows):
        entries = [entry(at, *call, at < done, at) for at, call in enumerate(calls) if (rank, at) not in gaps]
        dump = {"version": "2.4", "pg_config": pg_config(rank, GROUPS), "entries": entries}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return analyse(load_dumps([str(folder)]))


@pytest.mark.parametrize(("odd", "stretch"), [(3, ["2", "2", "1"]), (0, ["2", "2", "1"])])
def test_a_call_too_many_names_the_rank(tmp_path, odd, stretch):
    finding = found(tmp_path, job(odd, stretch))
    assert {c.rank: c.kind for c in finding.culprits} == {odd: "host_stalled"}
    assert any("left the program of its peers" in note for note in finding.notes)


def test_ranks_that_agree_are_not_named(tmp_path):
    finding = found(tmp_path, job(-1, []))
    assert (finding.verdict, finding.culprits) == ("inconclusive", ())


def shown(*names):
    """Stretches after the calls 1, 2, … of a group: of each the calls of one rank."""
    return {
        seq: Stretch(tuple(Step(seq * 100 + at, -1, at, name) for at, name in enumerate(calls)), whole=True)
        for seq, calls in enumerate(names, 1)
    }


@pytest.mark.parametrize(
    ("odd", "named"),
    [
        (["a", "a", "a", "ab"], {3}),
        (["ab", "ab", "ab", "ab"], set()),  # another program all the time
        (["a", "ab", "a", "a"], set()),  # too early to know whether they run one program
        (["a", "a", "a", "a"], set()),
        (["a", "a", "ab", "ab"], set()),  # a role of its own, as it recurs
        (["a", "a", "ab", "ac"], {3}),
    ],
)
def test_members_part_after_they_went_together(odd, named):
    usual = {rank: shown("a", "a", "a", "a") for rank in range(3)}
    assert set(_partings(0, {**usual, 3: shown(*odd)})) == named
    assert not _partings(0, {2: usual[2], 3: shown(*odd)})  # of two nothing tells which
    assert not _partings(
        0, {**usual, 3: shown(*odd)}, absent=1
    )  # a stage of its own, whose other rank left no dump


@pytest.mark.parametrize(("gap", "named"), [(1, {3}), (7, set())])
def test_only_calls_after_a_gap_count(tmp_path, gap, named):
    finding = found(tmp_path, job(3, ["2", "2", "1"]), gaps={(rank, gap) for rank in range(4)})
    assert {c.rank for c in finding.culprits} == named
