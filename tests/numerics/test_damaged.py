"""Damaged, incomplete and foreign captures: one sentence, exit code 3, never a verdict about bugs."""

import dataclasses
import json
import shutil
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tracekit_cli.numerics import main, numerics

from numerics.comparison.compare import compare
from numerics.record.recorder import CaptureError, Recorder
from numerics.store import open_capture
from tests.numerics.synthetic import Plan, write
from tracekit.errors import InputError

pytestmark = pytest.mark.damaged
PLAN = Plan(tp=2, dp=2)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    return write(tmp_path_factory.mktemp("run") / "a", dataclasses.replace(PLAN, level="tensors"))


@pytest.fixture
def run(whole_run, tmp_path):
    shutil.copytree(whole_run, tmp_path / "a")
    return tmp_path / "a"


def refused(run, words):
    with pytest.raises(InputError) as error:
        open_capture(run)
    assert words in str(error.value)
    assert ";" in str(error.value)  # a remedy


def test_no_folder_and_no_capture(tmp_path):
    refused(tmp_path / "nowhere", "no such folder")
    refused(tmp_path, "no capture")


def test_a_run_that_broke_off_is_named(run):
    (run / "capture" / "rank00002.parquet").rename(run / "capture" / "rank00002.parquet.partial")
    refused(run, "cut short: rank 2 never finished")


def test_a_recorder_that_is_never_closed_leaves_its_mark(tmp_path):
    recorder = Recorder(tmp_path, 0, 1)
    recorder.record("x", torch.ones(3), step=0, phase="forward", kind="activation")
    refused(tmp_path, "cut short: rank 0")
    recorder.close()
    assert open_capture(tmp_path).table.num_rows == 1
    with pytest.raises(CaptureError, match="closed"):
        recorder.record("x", torch.ones(3), step=0, phase="forward", kind="activation")
    with pytest.raises(CaptureError, match="already"):
        Recorder(tmp_path, 0, 1)


def test_missing_and_surplus_ranks(run):
    (run / "capture" / "rank00001.parquet").unlink()
    refused(run, "rank 1 of 4 left no capture")
    shutil.copy(run / "capture" / "rank00000.parquet", run / "capture" / "rank00001.parquet")
    refused(run, "holds rows of rank 0")
    (run / "capture" / "rank00001.parquet").rename(run / "capture" / "rank00009.parquet")
    refused(run, "rank 9 cannot belong to a run of 4 ranks")


def test_truncated_and_foreign_files(run):
    path = run / "capture" / "rank00003.parquet"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    refused(run, "unreadable")
    path.write_text("not Parquet")
    refused(run, "unreadable")
    pq.write_table(pa.table({"a": [1]}), path)
    refused(run, "foreign file")


def test_a_file_of_another_run(run, tmp_path):
    other = write(tmp_path / "b", Plan(tp=2, dp=2, config={"model": {"layers": 3}}))
    shutil.copy(other / "capture" / "rank00002.parquet", run / "capture" / "rank00002.parquet")
    refused(run, "belongs to another run")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "unreadable"),
        ("[]", "unreadable"),
        ('{"schema": "numerics.capture/9"}', "capture again"),
        ("", "unreadable"),
    ],
)
def test_a_damaged_stamp(run, text, words):
    (run / "capture" / "stamp.json").write_text(text)
    refused(run, words)


def test_a_stamp_without_sense(run):
    path = run / "capture" / "stamp.json"
    stamp = json.loads(path.read_text())
    for size in (-1, "4", None, 1 << 40, True):
        path.write_text(json.dumps({**stamp, "world_size": size}))
        refused(run, "world size")


def test_an_empty_capture(tmp_path):
    Recorder(tmp_path, 0, 1).close()
    refused(tmp_path, "holds no tensor")


def test_damaged_rows_are_refused(run):
    path = run / "capture" / "rank00000.parquet"
    table = pq.read_table(path)
    for column, value in (("boxes", "0+x"), ("boxes", "0+1"), ("global_shape", "-3")):
        values = pa.array([value] * len(table)).dictionary_encode()
        at = table.schema.get_field_index(column)
        bad = table.set_column(at, column, values)
        pq.write_table(bad.replace_schema_metadata(table.schema.metadata), path)
        with pytest.raises(InputError, match="damaged"):
            compare(run, run)


def test_values_written_anew_are_read_anew(tmp_path):
    found = []
    for value in (1.0, 2.0):
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        with Recorder(tmp_path / "a", 0, 1, level="tensors") as recorder:
            recorder.record("loss", torch.tensor([value]), step=0, phase="forward", kind="scalar")
        capture = open_capture(tmp_path / "a")
        found.append(float(capture.read_values(0, capture.table.column("values")[0].as_py())[0]))
    assert found == [1.0, 2.0]


def test_values_cut_short_are_refused(run, tmp_path):
    def change(key, coords, given):
        return given * 1.5 if "0/param/layers.0" in key else given

    other = write(tmp_path / "b", dataclasses.replace(PLAN, level="tensors", change=change))
    for path in (run / "capture").glob("values_*"):
        path.write_bytes(path.read_bytes()[:-4000])
    with pytest.raises(InputError, match="cut short"):
        compare(run, other)


@given(st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_flipped_byte_is_refused_or_without_effect(whole_run, tmp_path_factory, data):
    run = tmp_path_factory.mktemp("flip") / "a"
    shutil.copytree(whole_run, run)
    path = (
        run / "capture" / data.draw(st.sampled_from(["rank00000.parquet", "stamp.json", "rank00003.parquet"]))
    )
    raw = bytearray(path.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(raw))
    try:
        verdict = compare(run, whole_run).verdict
    except InputError:
        verdict = "refused"
    assert verdict in {"refused", "identical", "incomparable"}


def test_other_models_are_incomparable(tmp_path):
    a = write(tmp_path / "a", Plan())
    b = write(tmp_path / "b", Plan(config={"model": {"layers": 7}, "seed": 0}))
    finding = compare(a, b)
    assert finding.verdict == "incomparable"
    assert "model.layers is 2" in finding.reason
    c = tmp_path / "c"
    with Recorder(c, 0, 1) as to:
        to.record("other", torch.ones(2), step=0, phase="forward", kind="activation")
    assert "no tensor in common" in compare(a, c).reason
    d = tmp_path / "d"
    with Recorder(d, 0, 1) as to:
        to.record("layers.0.mlp.weight", torch.ones(2), step=-1, phase="init", kind="param")
    assert "layers.0.mlp.weight is 16x16" in compare(a, d).reason


def test_other_environments_are_incomparable_but_threads_are_not(run, whole_run):
    def stamped(field, value):
        for path in [run / "capture" / f"rank0000{r}.parquet" for r in range(4)]:
            table = pq.read_table(path)
            stamp = json.loads(table.schema.metadata[b"numerics.stamp"])
            stamp["environment"][field] = value
            pq.write_table(
                table.replace_schema_metadata({b"numerics.stamp": json.dumps(stamp).encode()}), path
            )

    stamped("threads", 77)
    finding = compare(run, whole_run)
    assert finding.verdict == "identical"
    assert "thread counts differ" in finding.notes[0]
    stamped("cpu_capability", "ELSE")
    finding = compare(run, whole_run)
    assert finding.verdict == "incomparable"
    assert "cpu_capability" in finding.reason


@pytest.mark.slow
def test_exit_codes_and_streams(tmp_path, run):
    other = write(tmp_path / "b", Plan())
    drifted = write(tmp_path / "c", Plan(order=1e-6))
    wrong = write(tmp_path / "d", Plan(config={"seed": 1}))

    def call(*arguments):
        return CliRunner().invoke(numerics, ["compare", *map(str, arguments)], standalone_mode=False)

    result = call("--parallel", run, "--baseline", other, "--json", "-")
    assert result.return_value == 0
    document = json.loads(result.stdout)
    assert (document["schema"], document["verdict"]) == ("numerics.compare/1", "identical")
    result = call("--parallel", drifted, "--baseline", other, "--no-replay")
    assert result.return_value == 4
    assert result.stdout.startswith("UNDECIDED")
    result = call("--parallel", wrong, "--baseline", other)
    assert result.return_value == 3
    assert "INCOMPARABLE" in result.stdout
    replay = write(tmp_path / "r", Plan())
    result = call("--parallel", drifted, "--baseline", other, "--replay", replay)
    assert result.return_value == 1


def test_bad_input_is_one_sentence_and_exit_3(monkeypatch, capfd, tmp_path):
    arguments = ["numerics", "compare", "--parallel", str(tmp_path), "--baseline", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as stop:
        main()
    said = capfd.readouterr()
    assert stop.value.code == 3
    assert said.out == ""
    assert said.err.startswith("numerics: ")
    assert said.err.count("\n") == 1


def test_the_page_escapes_what_stands_in_files(tmp_path):
    from numerics.report.html import compare_html

    hostile = "<script>alert(1)</script>\x1b[31m"
    for name, value in (("a", 1.0), ("b", 2.0)):
        with Recorder(tmp_path / name, 0, 1, config={"x": 1}) as to:
            to.record(
                hostile, torch.full((4,), value), step=0, phase="forward", kind="activation", module=hostile
            )
    finding = compare(tmp_path / "a", tmp_path / "b")
    page = compare_html(finding)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    from numerics.report.text import compare_text

    assert "\x1b" not in compare_text(finding)


def test_a_file_of_the_same_run_captured_again(run, tmp_path):
    other = write(tmp_path / "b", dataclasses.replace(PLAN, level="tensors"))
    path = run / "capture" / "rank00002.parquet"
    shutil.copy(other / "capture" / path.name, path)
    refused(run, f"{path}: belongs to another run")


@pytest.mark.parametrize("rank", [1, 2])
def test_values_of_another_run_or_rank(run, tmp_path, rank):
    other = write(tmp_path / "b", dataclasses.replace(PLAN, level="tensors")) if rank == 1 else run
    path = run / "capture" / "values_rank00001.safetensors"
    shutil.copy(other / "capture" / f"values_rank0000{rank}.safetensors", path)
    capture = open_capture(run)
    with pytest.raises(InputError, match=f"rank0*1.safetensors: holds values of rank {rank}"):
        capture.read_values(1, "any")


def test_rows_of_other_coordinates(run):
    path = run / "capture" / "rank00001.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index("tp")
    pq.write_table(table.set_column(place, table.field(place), pa.array([7] * len(table), pa.int32())), path)
    refused(run, "says it is tp rank 1 and holds rows of tp rank 7")


def test_captures_without_an_id_are_read(run):
    path = run / "capture" / "stamp.json"
    stamp = json.loads(path.read_text())
    del stamp["run"]
    path.write_text(json.dumps(stamp))
    assert open_capture(run).run == ""
