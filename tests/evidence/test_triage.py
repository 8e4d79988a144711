"""`tracekit triage`: one command for whatever is left, as the special commands answer."""

import io
import json
import shutil
import tarfile
import zipfile
from pathlib import Path
from random import Random

import pytest

from tests.evidence.judged import record
from tests.evidence.test_channels import SAMPLE
from tests.evidence.watchdog import Spelling
from tests.hang.fuzz import in_bytes
from tests.marks import quick_first
from tracekit.analysis.hang.analyse import analyse
from tracekit.analysis.triage.triage import triage
from tracekit.dumps.load import load_dumps
from tracekit.errors import InputError
from tracekit.evidence.archives import unpack
from tracekit.files.source import Source

SAMPLES = SAMPLE.parents[1]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """Every channel of a real hang in one folder, half of the dumps, and files of no use."""
    folder = tmp_path_factory.mktemp("incident")
    shutil.copytree(SAMPLE, folder / "fr")
    record(folder, folder / "fr", Spelling("2.8"), (6,))
    for path in sorted((folder / "fr").iterdir())[::2]:
        path.unlink()
    (folder / "notes.md").write_text("who was on call\n")
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    return folder


def culprits(finding):
    return [c.rank for c in finding.first.answer.culprits]


DIED = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\nexitcode  : -9 (pid: 9)\n"
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("guide.md", f"# What a death looks like\n\nTorch prints:\n\n```\n{DIED}```\n"),
        ("readme", f"## Errors\n\n| line | meaning |\n|---|---|\n| `{DIED.splitlines()[0]}` | memory |\n"),
        ("train.py", f"import torch\n\nSEEN = '''{DIED}'''\n"),
        ("launch.sh", f"#!/bin/bash\necho '{DIED}'\n"),
        ("saved.html", f"<!DOCTYPE html><html><pre>{DIED}</pre></html>\n"),
    ],
)
def test_what_quotes_a_log_is_read_only_by_name(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert triage(str(tmp_path)).found == ()
    assert [file.kind for file in triage(str(tmp_path / name)).found] == ["job_log"]


@pytest.mark.parametrize("text", [f"# conda environments\n\n|---|---|\n{DIED}", f"```\n{DIED}```\n", DIED])
def test_a_log_is_read_in_any_dress(tmp_path, text):
    (tmp_path / "notes.md").write_text(text)
    assert [file.kind for file in triage(str(tmp_path)).found] == ["job_log"]


def test_a_mixture_is_sorted_by_content(mixture):
    finding = triage(str(mixture))
    assert {file.kind for file in finding.found} == {
        "dump",
        "watchdog_log",
        "nccl_ras",
        "py_spy",
        "faulthandler",
    }
    assert {Path(path).name for path in finding.unknown} == {"notes.md", "picture.png"}
    assert culprits(finding) == [6]
    says = {t.kind: t.says for t in finding.first.evidence}
    assert says["watchdog_log"] == "supports"
    assert "contradicts" not in says.values()


def test_names_of_files_tell_nothing(mixture, tmp_path):
    for number, path in enumerate(sorted(p for p in mixture.rglob("*") if p.is_file())):
        kept = path.name if path.name.startswith("rank_") else f"{number}.bin"
        shutil.copy(path, tmp_path / f"{number:03}_{kept}")
    assert culprits(triage(str(tmp_path))) == [6]


@pytest.mark.parametrize("form", ["tgz", "zip", "tar"])
def test_an_archive_is_as_good_as_its_folder(mixture, tmp_path, form):
    target = tmp_path / f"incident.{form}"
    if form == "zip":
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(mixture.rglob("*")):
                archive.write(path, path.relative_to(mixture))
    else:
        with tarfile.open(target, "w:gz" if form == "tgz" else "w") as archive:
            archive.add(mixture, "incident")
    finding = triage(str(target))
    assert culprits(finding) == [6]
    assert all(file.path.startswith(str(target)) for file in finding.found)


def test_archives_lead_nowhere(tmp_path):
    outside = tmp_path / "outside"
    target = tmp_path / "in" / "evil.tar"
    target.parent.mkdir()
    with tarfile.open(target, "w") as archive:
        for name, kind in (
            ("../outside", tarfile.REGTYPE),
            (str(outside), tarfile.REGTYPE),
            ("link", tarfile.SYMTYPE),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, 3 if kind == tarfile.REGTYPE else 0, "/etc/passwd"
            archive.addfile(info, io.BytesIO(b"abc"))
    finding = triage(str(target))
    assert not outside.exists()
    assert len(finding.skipped) == 3
    assert finding.first.answer is None


def test_an_archive_that_grows_too_much_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr("tracekit.evidence.archives.LEAST_UNPACKED", 1000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.log", b"0" * 10_000_000)
    finding = triage(str(tmp_path / "bomb.zip"))
    assert "cut here" in finding.skipped[0].reason


@pytest.mark.parametrize("form", ["tgz", "zip"])
def test_a_damaged_archive_is_no_fault(tmp_path, form):
    buffer, rng = io.BytesIO(), Random(5)
    if form == "zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.log", b"[rank0]: step 5\n" * 90)
            archive.writestr("b.log", b"x" * 90)
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            info = tarfile.TarInfo("a.log")
            info.size = 900
            archive.addfile(info, io.BytesIO(b"y" * 900))
    for number in range(300):
        path = tmp_path / f"{number}.{form}"
        path.write_bytes(in_bytes(buffer.getvalue(), rng))
        (tmp_path / str(number)).mkdir()
        unpack(Source(str(path), str(path), path.stat().st_size), tmp_path / str(number))


def test_nothing_found_says_what_to_collect(tmp_path):
    (tmp_path / "notes.txt").write_text("all fine\n")
    finding = triage(str(tmp_path))
    assert finding.first.verdict == "inconclusive"
    assert finding.unknown
    assert finding.first.collect


def test_no_such_path_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file or folder"):
        triage(str(tmp_path / "absent"))


def test_a_hang_is_answered_as_hang_does(tracekit):
    own = json.loads(tracekit("hang", SAMPLE, "--json", "-").out)
    assert json.loads(tracekit("triage", SAMPLE, "--json", "-").out)["answer"] == own
    assert analyse(load_dumps([str(SAMPLE)])).verdict == own["verdict"]


@pytest.mark.slow
def test_all_samples_are_answered_as_by_their_commands(tracekit):
    document = json.loads(tracekit("triage", SAMPLES, "--json", "-").out)
    named = [job for job in document["answers"] if job["job"] is not None]
    assert len(named) == len(list(SAMPLES.glob("*/run.json"))) > 7
    for job in named:
        if job["question"] == "none":  # of one process, with nothing to compare
            assert job["answer"] is None
            continue
        own = json.loads(tracekit(job["question"], job["job"], "--json", "-").out)
        assert job["answer"] == own, job["job"]


@pytest.mark.parametrize(
    ("fail_on", "code"), quick_first(2, [("hang", 1), ("slow_rank", 0), ("any", 1), ("mismatch,none", 0)])
)
def test_exit_codes_follow_the_verdict(tracekit, mixture, fail_on, code):
    assert tracekit("triage", mixture / "log", "--fail-on", fail_on).code == code


def test_other_forms_of_the_answer(tracekit, mixture, tmp_path):
    page, list_ = tmp_path / "a.html", tmp_path / "a.md"
    told = tracekit("triage", mixture / "log", "--html", page, "--markdown", list_)
    assert told.code == 0
    assert "rank 6" in page.read_text()
    assert list_.read_text().startswith("**hang: rank 6")


def test_hang_reads_a_log_beside_dumps(tracekit, mixture):
    told = tracekit("hang", mixture, "--json", "-")
    assert [c["rank"] for c in json.loads(told.out)["culprits"]] == [6]
    alone = tracekit("hang", mixture / "log" / "job.out", "--json", "-")
    assert [c["rank"] for c in json.loads(alone.out)["culprits"]] == [6]


def test_an_ingested_run_is_one_however_named(tmp_path):
    from tests.slowrank.jobs import grid, job
    from tracekit.manifest import save_manifest

    (run := tmp_path / "job" / "run").mkdir(parents=True)
    save_manifest(job(run, grid(dp=4), slow={3: 1.3}), kept=True)
    named, within, matched = (triage([str(given)]) for given in (run, run.parent, tmp_path / "job" / "r*"))
    assert [file.kind for file in named.found] == ["run"]
    assert named == within == matched
    assert [s.rank for s in named.first.answer.suspects] == [3]
