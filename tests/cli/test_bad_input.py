"""What cannot be read is one clear sentence, the rest is still answered, and no name reaches the terminal raw."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from click import BadParameter
from tracekit_cli.numerics import numerics

from tests.generator import generate

HTML = b"<!DOCTYPE html><html><body>404</body></html>"
BAD = {
    "empty": (b"", "it is empty"),
    "html": (HTML, "an HTML or XML page"),
    "text": (b"step 1 loss 3.2\n", "it is not JSON"),
    "no events": (b'{"traceEvents": []}', "it is empty: the profiler recorded nothing"),
    "gzip cut in its header": (gzip.compress(b"{}" * 99)[:7], "before any event"),
}
ANY_ESCAPE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture
def copy(slow, tmp_path):
    """The slow job's files in a folder of their own, and the truth."""
    return shutil.copytree(slow[0], tmp_path / "copy"), slow[1]


def one_sentence(done, code=3):
    assert (done.code, done.out) == (code, "")
    assert done.err.count("\n") == 1
    assert done.err.startswith("tracekit: ")


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("command", ["slowrank", "whatif", "breakdown", "floor", "ingest"])
@pytest.mark.quick(5)
def test_a_bad_file_alone(tracekit, tmp_path, case, command):
    data, reason = BAD[case]
    path = tmp_path / "rank0.json"
    path.write_bytes(data)
    done = tracekit(command, path, *(["--out", tmp_path / "run"] if command == "ingest" else []))
    one_sentence(done)
    assert str(path) in done.err
    assert reason in done.err
    assert [p.name for p in tmp_path.iterdir()] == ["rank0.json"]  # nothing half-written


@pytest.mark.parametrize("case", BAD)
@pytest.mark.quick(1)
def test_a_bad_file_is_named_and_the_rest_answered(tracekit, copy, case):
    folder, truth = copy
    data, reason = BAD[case]
    (folder / "rank9.json").write_bytes(data)
    text, document = tracekit("slowrank", folder), json.loads(tracekit("slowrank", folder, "--json", "-").out)
    assert text.code == 0
    assert re.search(rf"rejected +{re.escape(str(folder / 'rank9.json'))}: .*{re.escape(reason)}", text.out)
    assert [r["path"] for r in document["ranks"]["rejected"]] == [str(folder / "rank9.json")]
    assert document["suspects"][0]["rank"] in truth.suspects


def test_an_ingest_says_on_stderr_what_it_left_out(tracekit, copy, tmp_path):
    folder, _ = copy
    (folder / "rank9.json").write_bytes(HTML)
    done = tracekit("ingest", folder, "--out", tmp_path / "run")
    assert done.code == 0
    assert done.err.startswith(f"rejected {folder / 'rank9.json'}: ")
    assert "4 ranks" in done.out


def test_a_truncated_trace_is_read_to_its_cut(tracekit, tmp_path):
    case = generate(
        101, kind="slow_compute", world=4, steps=6, missing=set(), truncated={}, gz=True, cpu_first=False
    )
    case.write(tmp_path / "t")
    innocent = min(set(range(4)) - case.truth.suspects)
    path = sorted((tmp_path / "t").iterdir())[innocent]
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.9)])
    done = tracekit("slowrank", tmp_path / "t", "--json", "-")
    document = json.loads(done.out)
    assert done.code == 0
    (row,) = [q for q in document["quality"] if q["kind"] == "truncated_file"]
    assert row["path"] == str(path)
    assert row["kept_events"] > 0
    assert document["ranks"]["read"] == 4
    assert document["suspects"][0]["rank"] in case.truth.suspects


def test_a_missing_path(tracekit, tmp_path):
    done = tracekit("slowrank", tmp_path / "nowhere")
    one_sentence(done)
    assert f"{tmp_path / 'nowhere'}: no such file or folder; check the path" in done.err


def test_a_pattern_that_matches_nothing(tracekit, tmp_path):
    done = tracekit("slowrank", f"{tmp_path}/*.json")
    one_sentence(done)
    assert "no file matches" in done.err


def test_a_folder_without_traces(tracekit, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    done = tracekit("slowrank", tmp_path)
    one_sentence(done)
    assert f"{tmp_path}: holds no traces (1 other files)" in done.err


@pytest.mark.parametrize("form", ["html", "perfetto", "markdown", "prometheus", "json"])
def test_an_empty_name_is_no_file(tracekit, slow, form):
    done = tracekit("slowrank", slow[0], f"--{form}", "")
    assert (done.code, done.out) == (2, "")
    assert f"'--{form}': it is empty; name a file" in done.err


@pytest.mark.parametrize("arguments", [["--parallel", ""], ["--parallel", "run", "--baseline", ""]])
def test_an_empty_name_is_not_this_folder(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadParameter, match="it is empty; name a path"):
        numerics.main(["compare", *arguments], standalone_mode=False)


def test_an_empty_name_holds_no_run(tracekit, slow):
    done = tracekit("ingest", slow[0], "--out", "")
    assert (done.code, "'--out': it is empty; name a path" in done.err) == (2, True)


def test_an_empty_folder(tracekit, tmp_path):
    done = tracekit("slowrank", tmp_path)
    one_sentence(done)
    assert "holds no traces" in done.err


def test_a_url_that_nobody_serves(tracekit):
    done = tracekit("slowrank", "memory://nowhere/rank0.json")
    one_sentence(done)
    assert "check the URL" in done.err


def test_a_file_without_permission(tracekit, copy):
    folder, truth = copy
    path = folder / "rank9.json"
    path.write_bytes(b"{}")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    one_sentence(tracekit("slowrank", path))
    document = json.loads(tracekit("slowrank", folder, "--json", "-").out)
    assert "ermission" in document["ranks"]["rejected"][0]["reason"]
    assert document["suspects"][0]["rank"] in truth.suspects


def test_an_unreadable_file_is_named_and_the_rest_answered(tracekit, copy):
    """A link to itself stops every user, root as well."""
    folder, truth = copy
    (folder / "rank9.json").symlink_to("rank9.json")
    document = json.loads(tracekit("slowrank", folder, "--json", "-").out)
    assert [r["path"] for r in document["ranks"]["rejected"]] == [str(folder / "rank9.json")]
    assert document["suspects"][0]["rank"] in truth.suspects
    one_sentence(tracekit("slowrank", folder / "rank9.json"))


def test_a_rank_without_a_file_is_missing_and_told(tracekit, copy):
    folder, truth = copy
    innocent = min(set(range(4)) - truth.suspects)
    sorted(folder.iterdir())[innocent].unlink()
    document = json.loads(tracekit("slowrank", folder, "--json", "-").out)
    assert document["ranks"]["expected"] == 4
    assert document["ranks"]["read"] == 3
    assert document["ranks"]["missing"] == [innocent]
    assert f"3 of 4 read; missing {innocent}" in tracekit("slowrank", folder).out


def test_one_rank_twice_is_told_and_not_dropped(tracekit, copy):
    folder, _ = copy
    path = min(folder.iterdir())
    (folder / f"copy-{path.name}").write_bytes(path.read_bytes())
    document = json.loads(tracekit("slowrank", folder, "--json", "-").out)
    told = [*document["ranks"]["rejected"], *document["quality"]]
    assert any(f"copy-{path.name}" in json.dumps(row) for row in told)


def test_ingest_does_not_overwrite_a_foreign_folder(tracekit, slow, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not lose")
    done = tracekit("ingest", slow[0], "--out", tmp_path / "mine")
    one_sentence(done)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "do not lose"


def test_a_damaged_run_folder_is_told(tracekit, slow, tmp_path):
    assert tracekit("ingest", slow[0], "--out", tmp_path / "run").code == 0
    next((tmp_path / "run").rglob("*rank-*.parquet")).write_bytes(b"PAR1 no more")
    done = tracekit("slowrank", tmp_path / "run")
    one_sentence(done)
    assert "ingest the traces again" in done.err


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A job whose host, kernels, groups and file names carry what a terminal would obey."""
    folder = tmp_path_factory.mktemp("hostile") / "t"
    options = {"missing": set(), "truncated": {}, "gz": False, "style": "megatron", "pg_config": True}
    case = generate(101, kind="slow_compute", world=4, steps=4, host_name=True, **options)
    escape = "\\u001b[31m\\u0007\\u009b2J\\u202e"
    for path in case.write(folder):
        text = path.read_text()
        text = text.replace("TENSOR_MODEL_PARALLEL", f"TENSOR_MODEL{escape}_PARALLEL")
        text = text.replace(".cluster", f"{escape}.cluster")
        path.write_text(re.sub(r'"name": "(?=\w*(gemm|nccl))', lambda _: f'"name": "{escape}', text))
    (folder / "bad\x1b[31m\x07.json").write_bytes(b"hello")
    return folder


def test_control_characters_in_a_trace_never_reach_the_terminal(tracekit, hostile):
    for arguments in ([], ["--verbose"]):
        done = tracekit("slowrank", hostile, *arguments)
        assert done.code == 0
        assert "on node" in done.out  # the host is named
        assert not ANY_ESCAPE.search(done.out + done.err)
        assert "\u202e" not in done.out


def terminal(arguments, **environment):
    """What a pseudo-terminal shows of the program's stdout and stderr together, as bytes."""
    import pty

    master, slave = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    script = [sys.executable, "-c", "from tracekit_cli.tracekit import main; main()", *map(str, arguments)]
    child = subprocess.Popen(
        script, stdin=slave, stdout=slave, stderr=slave, env=env | {"TERM": "xterm-256color"} | environment
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            block = os.read(master, 65536)
        except OSError:  # the child closed its side
            break
        if not block:
            break
        seen += block
    os.close(master)
    assert child.wait(timeout=60) == 0
    return seen


@pytest.mark.slow
def test_no_color_holds_on_a_terminal(slow):
    shown = terminal(["slowrank", slow[0]], NO_COLOR="1")
    assert b"SLOW RANK" in shown
    assert not re.search(rb"\x1b\[[0-9;]*(3|4|9|10)\d[0-9;]*m", shown)


def test_quiet_sends_a_terminal_nothing_but_the_answer(slow):
    assert b"\x1b" not in terminal(["slowrank", slow[0], "--quiet"])


@pytest.mark.slow
def test_lines_fit_the_terminal_and_no_file(slow, tracekit):
    shown = terminal(["slowrank", slow[0], "--quiet"], COLUMNS="80").decode().splitlines()
    assert max(map(len, shown)) <= 80
    whole = tracekit("slowrank", slow[0]).out
    assert " ".join(" ".join(shown).split()) == " ".join(whole.split())
    assert any(len(line) > 80 for line in whole.splitlines())
    narrow = terminal(["slowrank", slow[0], "--quiet"], COLUMNS="30").decode().splitlines()
    assert narrow == whole.splitlines()


def test_a_refusal_lists_the_rejected_files(tracekit, copy, tmp_path):
    folder, _ = copy
    for name in ("x.json", "y.json"):
        (tmp_path / name).write_bytes(HTML)
    done = tracekit("slowrank", tmp_path / "x.json", tmp_path / "y.json")
    assert done.code == 3
    assert re.findall(r"^rejected .*/([xy].json): it is an HTML", done.err, re.MULTILINE) == [
        "x.json",
        "y.json",
    ]
    done = tracekit("slowrank", folder, tmp_path / "x.json", "--steps", "900:901")
    assert done.code == 3
    assert re.findall(r"^rejected .*/(\w+.json): ", done.err, re.MULTILINE) == ["x.json"]


def test_one_rank_alone_is_said_first(tracekit, copy):
    folder, _ = copy
    done = tracekit("slowrank", min(folder.iterdir()))
    assert re.search(r"why +only rank \d+ was read", done.out)


def test_no_input_is_a_usage_error(tracekit):
    assert tracekit("slowrank", "").code == 2
    assert tracekit("hang", "").code == 2


def test_a_folder_of_other_json_is_named_itself(tmp_path, tracekit):
    (tmp_path / "dashboard.json").write_text('{"title": "no trace"}')
    done = tracekit("slowrank", tmp_path)
    assert done.code == 3
    assert f"{tmp_path}: holds no traces ({tmp_path}/dashboard.json: " in done.err
    assert done.err.endswith("; give their folder\n")
