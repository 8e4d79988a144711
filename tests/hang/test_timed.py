"""Dumps with timing as input of `tracekit slowrank`: the same job's traces and dumps name the same rank."""

import json
import pickle

import pytest
from click.testing import CliRunner
from tracekit_cli.tracekit_commands.slowrank import slowrank

from tests.generator import generate
from tests.hang.simulate import make
from tests.hang.timed import dumps_of, mark, write
from tests.marks import quick_first
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.errors import InputError
from tracekit.findings import Quality
from tracekit.ingest import load

PLAIN = {"seq": True, "pg_config": True, "truncated": {}, "split": False, "ragged": False, "missing": set()}


@pytest.fixture(scope="module")
def slowed(tmp_path_factory):
    """A job with one slow rank: (its truth, its traces)."""
    folder = tmp_path_factory.mktemp("timed")
    case = generate(4, kind="slow_compute", **PLAIN)
    case.write(folder / "traces")
    return case.truth, load([str(folder / "traces")])


@pytest.fixture(scope="module")
def recorded(slowed):
    """A job with one slow rank: (its truth, dumps with exact times)."""
    truth, run = slowed
    return truth, dumps_of(run, poll_ns=0)


def answer(dumps, folder, **options):
    return analyse(load([str(write(dumps, folder))], **options))


def kinds(finding):
    return {q.kind for q in finding.quality}


def test_the_slow_rank_is_named_without_a_cause(recorded, tmp_path):
    truth, dumps = recorded
    finding = answer(dumps, tmp_path)
    assert (finding.verdict, finding.cause) == ("slow_rank", "unknown")
    assert {s.rank for s in finding.suspects} == truth.suspects
    assert finding.suspects[0].cause == "unknown"
    assert [e.what.split(" a step")[0] for e in finding.suspects[0].evidence] == ["own time"]
    assert "flight_recorder_input" in kinds(finding)
    assert finding.what_if.slowdown == pytest.approx(truth.slowdown, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("poll_ms", [20, 100])
def test_ends_within_a_poll_set_no_rank_apart(slowed, poll_ms, tmp_path):
    """A poll may be longer than a step; exact durations still show which rank waits least."""
    truth, run = slowed
    finding = answer(dumps_of(run, poll_ns=poll_ms * 1_000_000), tmp_path)
    assert finding.verdict in {"slow_rank", "inconclusive"}
    assert (*finding.suspects, *finding.candidates)[0].rank in truth.suspects
    assert {s.rank for s in finding.suspects} <= truth.suspects


@pytest.mark.slow
@pytest.mark.parametrize("kind", quick_first(1, ["slow_link", "healthy", "long_stage", "intermittent"]))
def test_kinds_that_exact_times_tell(kind):
    truth, outcome, said, finding = mark(101, kind, poll_ns=0)
    assert outcome == "right", said
    assert truth.verdict == finding.verdict


@pytest.mark.slow
@pytest.mark.parametrize("seed", quick_first(1, [102, 105]))
@pytest.mark.parametrize("kind", quick_first(1, ["healthy", "slow_compute", "slow_link", "long_stage"]))
def test_polled_times_blame_no_innocent(kind, seed):
    _, outcome, said, finding = mark(seed, kind, poll_ns=5_000_000)
    assert outcome in {"right", "inconclusive", "refused"}, said
    assert finding is None or "placed_calls" in kinds(finding)


@pytest.mark.slow
def test_start_and_end_do_without_a_duration(recorded, tmp_path):
    truth, dumps = recorded
    for dump in dumps.values():
        for entry in dump["entries"]:
            entry_duration = entry.pop("duration_ms", None)
            assert entry_duration is not None
    finding = answer(dumps, tmp_path)
    assert finding.suspects[0].rank in truth.suspects
    for dump in dumps.values():
        for entry in dump["entries"]:
            entry["duration_ms"] = (
                entry["time_discovered_completed_ns"] - entry["time_discovered_started_ns"]
            ) / 1e6


@pytest.mark.slow
def test_json_form_single_dump_and_a_kept_run(recorded, tmp_path):
    truth, dumps = recorded
    folder = tmp_path / "json"
    folder.mkdir()
    for rank, dump in dumps.items():
        (folder / f"{rank}.json").write_text(json.dumps(dump))
    finding = analyse(load([str(folder)], out=tmp_path / "run"))
    assert {s.rank for s in finding.suspects} == truth.suspects
    again = analyse(load([str(tmp_path / "run")]))
    assert again.verdict == finding.verdict
    assert again.suspects == finding.suspects
    paths = [str(p) for p in sorted(folder.iterdir())]
    assert analyse(load(paths)).suspects == finding.suspects


def test_same_bytes_whatever_the_number_of_jobs(recorded, tmp_path):
    _, dumps = recorded
    folder = write(dumps, tmp_path / "fr")
    runs = [load([str(folder)], out=tmp_path / f"run{jobs}", jobs=jobs) for jobs in (1, 3)]
    for record in runs[0].ranks:
        files = [(run.folder / record.table).read_bytes() for run in runs]
        assert files[0] == files[1]
    assert runs[0].quality == runs[1].quality


def test_dumps_without_timing_say_what_to_record(tmp_path):
    make(0, "host_stall").write(tmp_path / "untimed")
    for dump in (tmp_path / "untimed").iterdir():
        content = pickle.loads(dump.read_bytes())
        for entry in content["entries"]:
            entry["time_discovered_started_ns"] = None
        dump.write_bytes(pickle.dumps(content))
    with pytest.raises(InputError, match="TORCH_NCCL_ENABLE_TIMING"):
        load([str(tmp_path / "untimed")])


@pytest.mark.slow
def test_a_rank_without_timing_is_rejected_and_missing(recorded, tmp_path):
    truth, dumps = recorded
    victim = next(r for r in dumps if r not in truth.suspects)
    bare = [{**e, "duration_ms": None, "time_discovered_started_ns": None} for e in dumps[victim]["entries"]]
    finding = answer({**dumps, victim: {**dumps[victim], "entries": bare}}, tmp_path)
    assert finding.ranks.missing == (victim,)
    assert [r.rank for r in finding.ranks.rejected] == [victim]
    assert finding.verdict == "inconclusive" or {s.rank for s in finding.suspects} <= truth.suspects


@pytest.mark.slow
def test_stuck_and_slow_in_one_tool(recorded, tmp_path):
    _, dumps = recorded
    for dump in dumps.values():
        last = {**dump["entries"][-1], "state": "scheduled", "retired": False, "duration_ms": None}
        last |= {"time_discovered_started_ns": None, "time_discovered_completed_ns": None}
        last["record_id"] += 1
        last["collective_seq_id"] += 1
        dump["entries"].append(last)
    finding = answer(dumps, tmp_path)
    for dump in dumps.values():
        dump["entries"].pop()
    (row,) = [q for q in finding.quality if q.kind == "outstanding_calls"]
    assert row == Quality("outstanding_calls", None, len(dumps), row.detail)
    assert "tracekit hang" in row.detail


@pytest.mark.slow
def test_the_command_says_what_it_read(recorded, tmp_path):
    truth, dumps = recorded
    folder = write(dumps, tmp_path / "fr")
    result = CliRunner().invoke(slowrank, [str(folder), "--json", "-", "--quiet"], standalone_mode=False)
    document = json.loads(result.stdout)
    assert document["suspects"][0]["rank"] in truth.suspects
    assert "flight_recorder_input" in {q["kind"] for q in document["quality"]}


@pytest.mark.slow
def test_groups_of_the_same_members_count_apart(recorded, tmp_path):
    """A second group of the same ranks, whose calls carry the same numbers, does not change the answer."""
    truth, dumps = recorded
    doubled = {}
    for rank, dump in dumps.items():
        config, entries = dict(dump["pg_config"]), []
        for number, given in enumerate(dump["entries"]):
            entry, name = given, given["process_group"][0]
            if not entry["is_p2p"] and entry["collective_seq_id"] % 2:
                entry = {**entry, "process_group": (f"{name}9", "twin"), "pg_id": entry["pg_id"] + 100}
                config[f"{name}9"] = {**dump["pg_config"][name], "name": f"{name}9", "desc": "twin"}
            seq = entry["collective_seq_id"] // 2
            entries.append({**entry, "collective_seq_id": seq, "record_id": number})
        doubled[rank] = {**dump, "pg_config": config, "entries": entries}
    finding = answer(doubled, tmp_path)
    assert {s.rank for s in finding.suspects} == truth.suspects
    assert not [q for q in finding.quality if q.kind in {"mismatched_operations", "unmatched_operations"}]
