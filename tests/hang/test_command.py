"""The command: text, JSON, exit codes."""

import json
from pathlib import Path
from typing import get_args

import fsspec
import pytest
from click.testing import CliRunner
from tracekit_cli.tracekit_commands.hang import hang

from tests.hang.simulate import make
from tracekit.errors import InputError, MeshError
from tracekit.findings.hang import CulpritKind
from tracekit.report.hang import NEXT

SIZES = {"tp": 2, "cp": 1, "pp": 2, "dp": 2}


@pytest.fixture
def folder(tmp_path):
    return str(make(0, "host_stall", "tp", SIZES).write(tmp_path / "dumps"))


def run(*args):
    return CliRunner().invoke(hang, list(args), standalone_mode=False, catch_exceptions=False)


def test_one_verdict_line_names_the_culprit(folder):
    result = run(folder)
    culprit = make(0, "host_stall", "tp", SIZES).culprit
    assert result.stdout.splitlines()[0].startswith(f"hang: rank {culprit}: host stalled")
    assert result.return_value == 0


def test_the_answer_says_what_to_look_at(folder):
    culprit = make(0, "host_stall", "tp", SIZES).culprit
    (line,) = [line for line in run(folder).stdout.splitlines() if line.startswith("next: ")]
    assert line.startswith(f"next: rank {culprit}: take a py-spy dump")


def test_each_way_of_failing_has_its_step():
    assert set(NEXT) == set(get_args(CulpritKind))


def test_json_on_stdout_is_the_document_alone(folder):
    document = json.loads(run(folder, "--json", "-", "--quiet").stdout)
    assert document["schema"] == "tracekit.hang/1"
    assert document["ranks"]["read"] == 8


def test_inputs_may_be_urls(folder):
    memory = fsspec.filesystem("memory")
    for path in Path(folder).iterdir():
        memory.pipe_file(f"/hung/job/{path.name}", path.read_bytes())
    here = json.loads(run(folder, "--json", "-", "--quiet").stdout)
    for urls in (["memory://hung/job"], ["memory://hung/job/nccl_trace_rank_*"], [f"file://{folder}"]):
        assert json.loads(run(*urls, "--json", "-", "--quiet").stdout) == here
    assert run("memory://hung", "--quiet").stdout.startswith("hang: rank")
    with pytest.raises(InputError, match="memory://hung/other: no such file"):
        run("memory://hung/other")


def test_a_refused_file_is_named_by_its_url(folder):
    url = f"file://{folder}/broken_9"
    Path(folder, "broken_9").write_bytes(b"\x80\x04cos\nsystem\n.")
    document = json.loads(run(f"file://{folder}", "--json", "-", "--quiet").stdout)
    assert [r["path"] for r in document["ranks"]["rejected"]] == [url]
    assert document["verdict"] == "hang"


@pytest.mark.parametrize(("kinds", "code"), [("hang", 1), ("any", 1), ("mismatch", 0)])
def test_fail_on(folder, kinds, code):
    assert run(folder, "--fail-on", kinds).return_value == code


def test_undecided_is_4_with_fail_on(tmp_path):
    case = make(3, "device_unstarted", "tp", {"tp": 2, "cp": 2, "pp": 2, "dp": 2}, timed=False)
    assert run(str(case.write(tmp_path)), "--fail-on", "hang").return_value == 4


def test_verbose_lists_groups_and_last_completed(folder):
    text = run(folder, "--verbose").stdout
    assert "groups with outstanding calls" in text
    assert "last completed collective" in text


def test_same_input_same_bytes_whatever_the_number_of_workers(folder):
    assert (
        run(folder, "--json", "-", "--jobs", "1").stdout == run(folder, "--json", "-", "--jobs", "3").stdout
    )


def test_an_ill_fitting_mesh_and_a_missing_input(folder, tmp_path):
    with pytest.raises(MeshError):
        run(folder, "--mesh", "tp=2,cp=1,pp=2,dp=8")
    for given in (["--mesh", "dp=2,cp=1,pp=2,tp=2"], ["--order", "dp,pp,cp,tp"]):
        with pytest.raises(MeshError, match=r"contradicts the dumps: .*the groups say --mesh tp=2,cp="):
            run(folder, *given)
    with pytest.raises(InputError, match="no such file"):
        run(str(tmp_path / "absent"))
