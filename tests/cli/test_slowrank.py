"""`tracekit slowrank` as a user and as a script call it: codes, streams, options, the same bytes every time."""

import json
import re
import subprocess
import sys

import pytest
from tracekit_cli.tracekit_commands import slowrank as command


def test_the_answer_names_the_planted_rank_on_stdout(tracekit, slow):
    folder, truth = slow
    done = tracekit("slowrank", folder)
    (culprit,) = truth.suspects
    assert done.code == 0
    assert done.out.startswith(f"SLOW RANK  rank {culprit} ")
    assert done.err == ""


def test_a_healthy_job_is_healthy(tracekit, healthy):
    done = tracekit("slowrank", healthy[0])
    assert (done.code, done.out.split()[0]) == (0, "HEALTHY")


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        ("slow_rank", 1),
        ("any", 1),
        ("slow_link,slow_rank", 1),
        (" slow_rank ,", 1),
        ("slow_link,imbalance", 0),
    ],
)
@pytest.mark.quick(2)
def test_fail_on_a_slow_job(tracekit, slow, kinds, code):
    assert tracekit("slowrank", slow[0], "--fail-on", kinds).code == code


@pytest.mark.parametrize(("kinds", "code"), [("any", 0), ("slow_rank", 0), ("healthy", 1)])
def test_fail_on_a_healthy_job(tracekit, healthy, kinds, code):
    assert tracekit("slowrank", healthy[0], "--fail-on", kinds).code == code


@pytest.mark.parametrize(("kinds", "code"), [(None, 0), ("any", 4), ("slow_rank", 4), ("inconclusive", 1)])
def test_one_rank_alone_is_inconclusive(tracekit, slow, kinds, code):
    file = min(slow[0].iterdir())
    done = tracekit("slowrank", file, *(["--fail-on", kinds] if kinds else []))
    assert (done.code, done.out.split()[0]) == (code, "INCONCLUSIVE")
    assert "add the other ranks' traces" in done.out


def test_json_on_stdout_is_json_alone(tracekit, slow):
    done = tracekit("slowrank", slow[0], "--json", "-")
    assert done.code == 0
    assert json.loads(done.out)["schema"] == "tracekit.slowrank/1"
    assert done.err == ""


@pytest.mark.slow
def test_json_to_a_file_leaves_the_text_on_stdout(tracekit, slow, tmp_path):
    target = tmp_path / "answer.json"
    done = tracekit("slowrank", slow[0], "--json", target)
    assert done.out.startswith("SLOW RANK")
    assert target.read_text() == tracekit("slowrank", slow[0], "--json", "-").out
    assert [p.name for p in tmp_path.iterdir()] == ["answer.json"]


def test_json_to_a_missing_folder_is_refused(tracekit, slow, tmp_path):
    target = tmp_path / "none" / "answer.json"
    done = tracekit("slowrank", slow[0], "--json", target)
    assert done.code == 3
    assert f"{target}: cannot be written" in done.err


def test_two_runs_give_the_same_bytes(tracekit, slow):
    runs = [tracekit("slowrank", slow[0], "--json", "-", "--jobs", jobs).out for jobs in (1, 1, 2)]
    assert runs[0] == runs[1] == runs[2]
    assert tracekit("slowrank", slow[0], "--verbose").out == tracekit("slowrank", slow[0], "--verbose").out


@pytest.mark.slow
def test_an_ingested_run_and_raw_files_give_equal_bytes(tracekit, slow, tmp_path):
    ingested = tracekit("ingest", slow[0], "--out", tmp_path / "run")
    assert ingested.code == 0
    assert re.search(r"4 ranks, \d+ events, \d+ process groups", ingested.out)
    raw, kept = (tracekit("slowrank", f, "--json", "-") for f in (slow[0], tmp_path / "run"))
    assert kept.out == raw.out
    text_raw, text_kept = (tracekit("slowrank", f, "--verbose") for f in (slow[0], tmp_path / "run"))
    assert text_kept.out == text_raw.out


@pytest.mark.slow
def test_files_globs_folders_and_urls_name_the_same_input(tracekit, slow):
    folder = slow[0]
    expected = json.loads(tracekit("slowrank", folder, "--json", "-").out)
    for form in ([*sorted(folder.iterdir())], [f"{folder}/*"], [folder, folder], [f"file://{folder}"]):
        done = tracekit("slowrank", *form, "--json", "-")
        assert done.code == 0
        assert json.loads(done.out)["suspects"] == expected["suspects"]


def test_steps_choose_what_is_looked_at(tracekit, slow):
    every = json.loads(tracekit("slowrank", slow[0], "--json", "-").out)["steps"]["analysed"]
    assert len(every) >= 3
    low, high = every[1], every[-1]
    for text, expected in (
        (f"{low}:{high}", [n for n in every if low <= n < high]),
        (f"{low}", [low]),
        (f":{high}", [n for n in every if n < high]),
        (f"{low}:", [n for n in every if n >= low]),
        (f"{every[0]},{high}", [every[0], high]),
    ):
        answer = json.loads(tracekit("slowrank", slow[0], "--steps", text, "--json", "-").out)
        assert answer["steps"]["analysed"] == expected, text


def test_steps_that_nobody_recorded(tracekit, slow):
    done = tracekit("slowrank", slow[0], "--steps", "9000:9001")
    assert done.code == 3
    assert "no step was recorded whole" in done.err
    assert "--steps" in done.err


def told(truth, **other):
    return ",".join(f"{d}={other.get(d, truth.sizes[d])}" for d in truth.order)


def test_the_mesh_may_be_told(tracekit, slow):
    folder, truth = slow
    inferred = json.loads(tracekit("slowrank", folder, "--json", "-").out)
    answer = json.loads(tracekit("slowrank", folder, "--mesh", told(truth), "--json", "-").out)
    assert answer["mesh"] == {"order": list(truth.order), "sizes": dict(truth.sizes), "source": "flag"}
    assert inferred["mesh"]["source"] == "process_groups"
    assert answer["suspects"] == inferred["suspects"]


def test_order_overrides_the_order_of_the_mesh(tracekit, slow):
    folder, truth = slow
    backwards = ",".join(f"{d}={truth.sizes[d]}" for d in reversed(truth.order))
    done = tracekit("slowrank", folder, "--mesh", backwards, "--order", ",".join(truth.order), "--json", "-")
    assert json.loads(done.out)["mesh"]["order"] == list(truth.order)


def test_a_mesh_of_another_size_is_a_usage_error(tracekit, slow):
    done = tracekit("slowrank", slow[0], "--mesh", "tp=2,dp=8")
    assert done.code == 2
    assert "--mesh tp=2,dp=8,cp=1,pp=1 has 16 ranks, but the job has 4 ranks" in done.err


def test_a_mesh_contradicted_by_groups_is_a_usage_error(tracekit, slow):
    folder, truth = slow
    assert [truth.sizes[d] for d in truth.order].count(2) == 2
    outer, inner = (d for d in reversed(truth.order) if truth.sizes[d] == 2)
    done = tracekit("slowrank", folder, "--mesh", f"{inner}=1,{outer}=4")
    assert done.code == 2
    assert "--mesh contradicts the traces" in done.err
    assert "correct the sizes or the order" in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--mesh", "xp=2"], "unknown axis 'xp'"),
        (["--mesh", "tp=0"], "an integer from 1 to 1048576"),
        (["--order", "tp,tp"], "given twice"),
        (["--steps", "8:3"], "empty range of steps"),
        (["--steps", "a:b"], "not a range of steps"),
        (["--steps", ""], "empty range of steps"),
        (["--fail-on", "slowrank"], "'slowrank' is not a verdict; choose from healthy, slow_rank"),
        (["--jobs", "0"], "--jobs"),
        (["--html", "-"], "name a file"),
        (["--no-such", "x"], "No such option"),
    ],
)
def test_wrong_options_are_usage_errors(tracekit, slow, arguments, says):
    done = tracekit("slowrank", slow[0], *arguments)
    assert done.code == 2
    assert says in done.err
    assert done.out == ""


def test_no_input_is_a_usage_error(tracekit):
    done = tracekit("slowrank")
    assert (done.code, done.out) == (2, "")
    assert "TRACES" in done.err


def test_verbose_tells_more(tracekit, slow):
    plain, verbose = tracekit("slowrank", slow[0]).out, tracekit("slowrank", slow[0], "--verbose").out
    assert len(verbose.splitlines()) > len(plain.splitlines())
    assert "clock residual" in verbose
    assert "clock residual" not in plain


def test_quiet_keeps_progress_back_and_nothing_else(tracekit, slow, monkeypatch):
    monkeypatch.setattr("tracekit_cli.progress._SILENT_S", 0.0)
    loud, quiet = tracekit("slowrank", slow[0]), tracekit("slowrank", slow[0], "--quiet")
    assert "reading: " in loud.err
    assert quiet.err == ""
    assert quiet.out == loud.out


@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        (ZeroDivisionError("oops"), 70, "a fault of ours, please report it: ZeroDivisionError: oops"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_faults_and_interrupts_have_codes_of_their_own(tracekit, slow, monkeypatch, fault, code, says):
    def fail(*_arguments, **_options):
        raise fault

    monkeypatch.setattr(command, "analyse", fail)
    done = tracekit("slowrank", slow[0])
    assert (done.code, done.out) == (code, "")
    assert says in done.err


def test_a_fault_shows_where_when_asked(monkeypatch, slow, capfd):
    from tracekit_cli.tracekit import main

    def fail(*_arguments, **_options):
        raise ZeroDivisionError("oops")

    monkeypatch.setenv("TRACEKIT_DEBUG", "1")
    monkeypatch.setattr(command, "analyse", fail)
    monkeypatch.setattr(sys, "argv", ["tracekit", "slowrank", str(slow[0])])
    with pytest.raises(ZeroDivisionError):
        main()


@pytest.mark.slow
def test_the_installed_program_answers_in_plain_text_without_terminal(slow):
    script = [
        sys.executable,
        "-c",
        "from tracekit_cli.tracekit import main; main()",
        "slowrank",
        str(slow[0]),
        "--quiet",
    ]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("SLOW RANK")
    assert "\x1b" not in done.stdout


def test_hosts_name_the_suspects_host(tracekit, slow, tmp_path):
    folder, truth = slow
    (culprit,) = truth.suspects
    hosts = tmp_path / "hosts"
    hosts.write_text(f"rank,host\n{culprit},node7\n", encoding="utf-8")
    for name in ("slowrank", "triage"):
        done = tracekit(name, folder, "--hosts", hosts, "--verbose")
        assert done.code == 0
        assert f"rank {culprit} on node7 " in done.out
        assert "hosts_incomplete" in done.out
    hosts.write_text("rank,host\n0,a\n0,b\n", encoding="utf-8")
    for name in ("slowrank", "triage", "next"):
        refused = tracekit(name, folder, "--hosts", hosts)
        assert (refused.code, refused.out) == (3, "")
        assert refused.err.splitlines()[-1].endswith(
            "hosts:3: rank 0 is in line 2 already; write each rank once"
        )


def test_hardware_bounds_the_links(tracekit, slow, tmp_path):
    folder, truth = slow
    done = tracekit("slowrank", folder, "--hardware", "h100", "--json", "-")
    assert [s["rank"] for s in json.loads(done.out)["suspects"]] == list(truth.suspects)
    refused = tracekit("slowrank", folder, "--hardware", "h99")
    assert (refused.code, refused.out) == (2, "")
    assert "'h99' is not a known machine; choose a100, cpu, h100" in refused.err
    (tmp_path / "mine.toml").write_text("name = 3\nwrong = 1\n", encoding="utf-8")
    refused = tracekit("slowrank", folder, "--hardware", tmp_path / "mine.toml")
    assert (refused.code, refused.out) == (2, "")
    assert "mine.toml: unknown 'wrong'; choose among" in refused.err
