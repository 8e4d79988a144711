"""Databases that nsys exported: `slowrank` answers as from Kineto traces of the same job, or names what is missing."""

import gzip
import sqlite3
from pathlib import Path

import pytest

from reftrain.config.trace_forms import FORMS as TRACE_FORMS
from tests.evidence.nsys_files import FORMS, documents, tiny, write_nsys
from tests.simulate.case import setup_of, written
from tracekit import load, slowrank
from tracekit.analysis.triage.triage import triage
from tracekit.errors import InputError

SLOW = 5
MESH = {"tp": 2, "pp": 2, "dp": 2}


def job(folder: Path, *faults: str):
    """The Kineto traces of a small simulated job: their folder, and what they hold by rank."""
    setup, config = setup_of(
        MESH, *faults, steps=3, micro_batches=2, merge=False, tables={"model": {"layers": 2}}
    )
    written(folder, setup, config, detail="kernels", form=TRACE_FORMS["2.13"])
    return folder / "trace", documents(folder / "trace")


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A job in which rank 5 computes longer."""
    return job(tmp_path_factory.mktemp("slow"), f"slow_compute:rank={SLOW},factor=1.6")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return job(tmp_path_factory.mktemp("healthy"))


@pytest.fixture(scope="module")
def kineto(slow):
    """The run of the Kineto traces."""
    return load([str(slow[0])])


@pytest.fixture(scope="module")
def from_kineto(kineto):
    return slowrank(kineto)


@pytest.fixture(scope="module")
def run(slow, tmp_path_factory):
    """The run of the databases, whose names and order show no rank."""
    return load([str(write_nsys(slow[1], tmp_path_factory.mktemp("n"), name="report{}.sqlite", shuffle=3))])


def kinds(finding):
    return {row.kind for row in finding.quality}


def read(folder):
    return slowrank(load([str(folder)]))


def check_price(finding, truth):
    """The same rank and cause, at a price whose interval holds the other one."""
    (named,), (known,) = finding.suspects, truth.suspects
    assert finding.verdict == truth.verdict == "slow_rank"
    assert (named.rank, named.cause, named.host) == (SLOW, known.cause, known.host)
    assert named.lost_ms_low <= known.lost_ms_per_step <= named.lost_ms_high


def test_the_same_rank_at_the_same_price(run, from_kineto):
    finding = slowrank(run)
    check_price(finding, from_kineto)
    assert kinds(finding) - kinds(from_kineto) == {"nsys_input"}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_form_names_the_rank(slow, from_kineto, tmp_path, form):
    finding = read(write_nsys(slow[1], tmp_path / "n", form))
    check_price(finding, from_kineto)
    assert ("nsys_no_calls" in kinds(finding)) == (form == "2022")
    assert ("nsys_unnamed_groups" in kinds(finding)) == (form == "2023 no blobs")
    assert ("no_step_marks" in kinds(finding)) == (form == "2024 no steps")


def test_events_are_those_of_kineto(run, kineto):
    """Kernels, calls, groups and peers."""
    assert {g.ranks for g in run.groups} == {g.ranks for g in kineto.groups}
    for rank in (0, 3):
        mine, theirs = (r.events(rank).to_pylist() for r in (run, kineto))
        for cat in ("kernel", "cuda_runtime"):
            times = [[(e["ts"], e["name"]) for e in rows if e["cat"] == cat] for rows in (mine, theirs)]
            assert [name for _, name in times[0]] == [name for _, name in times[1]]
            assert max(abs(a[0] - b[0]) for a, b in zip(*times, strict=True)) <= 1000
        calls = [e for e in mine if e["name"] == "record_param_comms"]
        peers = [{e["dst_rank"] for e in rows} - {None, rank} for rows in (calls, theirs)]
        assert peers[0] == peers[1]
        joined = {e["external_id"] for e in mine if e["cat"] == "kernel"} - {None}
        assert joined == {e["external_id"] for e in calls}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["2025", "2025 captured range", "2022"])
@pytest.mark.parametrize("gone", range(8))
def test_a_missing_rank_blames_no_innocent(slow, tmp_path, form, gone):
    made = {rank: document for rank, document in slow[1].items() if rank != gone}
    finding = read(write_nsys(made, tmp_path / "n", form))
    assert {suspect.rank for suspect in finding.suspects} <= {SLOW} - {gone}
    if form == "2025" or gone != max(slow[1]):
        assert finding.ranks.missing == (gone,)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_healthy_job_stays_healthy(healthy, tmp_path, form):
    assert (
        read(write_nsys(healthy[1], tmp_path / "n", form)).verdict
        == slowrank(load([str(healthy[0])])).verdict
    )


@pytest.mark.slow
def test_several_processes_in_a_file(slow, tmp_path):
    finding = triage(str(write_nsys(slow[1], tmp_path / "n", name="node{}.sqlite", shared=4))).first
    assert finding.question == "slowrank"
    assert [suspect.rank for suspect in finding.answer.suspects] == [SLOW]
    assert finding.evidence[0].kind == "nsys"


def test_an_unknown_order_is_refused(slow, tmp_path):
    folder = write_nsys({0: slow[1][0]}, tmp_path / "n", "2025 captured range", name="report{}.sqlite")
    with pytest.raises(InputError, match=r"nothing shows which rank.*rank%q\{RANK\}"):
        load([str(folder)])


def test_names_against_places_are_refused(slow, tmp_path):
    swapped = write_nsys({0: slow[1][1], 1: slow[1][0]}, tmp_path / "s", name="rank{}.sqlite")
    with pytest.raises(
        InputError, match="its name or environment says rank 0, and its communicator of 8 says 1"
    ):
        load([str(swapped)])


def test_views_and_triggers_never_run(tmp_path):
    """A view in place of a table counts as no table."""
    folder = tiny(
        tmp_path / "n",
        extra="DROP TABLE NVTX_EVENTS; CREATE VIEW NVTX_EVENTS AS SELECT randomblob(1000000000) AS text;",
    )
    run = load([str(folder)])
    assert run.events(0).num_rows == 3


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("rank0.sqlite", b"SQLite format 3\0" + b"\0" * 4000, "it is damaged"),
        ("rank0.nsys-rep", b"anything at all", "nsys export --type sqlite"),
    ],
)
def test_useless_files_get_a_sentence(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=reason):
        load([str(tmp_path / name)])


def test_a_compressed_database_is_refused_as_such(tmp_path):
    path = tiny(tmp_path / "n") / "rank0.sqlite"
    path.with_suffix(".sqlite.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    with pytest.raises(InputError, match="compressed database"):
        load([str(path.parent)])
    assert [found.kind for found in triage(str(path.parent)).found] == ["nsys"]


def test_other_databases_are_refused(tmp_path):
    base = sqlite3.connect(tmp_path / "rank0.sqlite")
    base.execute("CREATE TABLE people (name TEXT)")
    base.commit()
    base.close()
    with pytest.raises(InputError, match="not one that nsys exported"):
        load([str(tmp_path)])
    with pytest.raises(InputError, match="no CUDA kernels"):
        load([str(tiny(tmp_path / "n", kernels=0))])
