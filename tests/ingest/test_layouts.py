"""Folders as frameworks lay them out: windows of one job are one job, and what lies beside traces is told.

Names follow torch's handler, torchtitan, torchtune, Ray Train, Composer, Lightning, Megatron and accelerate.
"""

import copy
import gzip
import json
import tarfile

import pytest

import tracekit
from tests.generator import generate
from tracekit.case.opened import placed
from tracekit.errors import InputError
from tracekit.ingest import load

MINUTE_US, STARTED_NS = 60e6, 1_690_000_000_000_000_000


def stamp(rank, window):
    return STARTED_NS + window * 60_000_000_000 + rank


WINDOWS = {
    "torchtitan": lambda r, w: f"profile_traces/iteration_{10 * w + 10}/rank{r}_trace.json",
    "torchtune": lambda r, w: f"iteration_{5 * w + 5}/rank{r}.{stamp(r, w)}.pt.trace.json.gz",
    "ray": lambda r, w: f"pytorch_profiler_worker_traces/worker_{r}_epoch_{w + 1}.pt.trace.json",
    "composer": lambda r, w: f"torch_traces/ep0-ba{w + 8}-rank{r}.json",
    "hosts": lambda r, w: f"host {r // 2}/step_{w}/trace of rank {r}.json",
    "rank folders": lambda r, w: f"rank{r}/global_step_{w}/trace.json",
    "handler": lambda r, w: f"node{r // 2}_{70 + r}.{stamp(r, w)}.pt.trace.json",
}
ONCE = {
    "megatron": lambda r: f"torch_profile/rank-{r}.json.gz",
    "accelerate": lambda r: f"profile_{r}.json",
    "vllm": lambda r: f"dp0_pp0_tp{r}_ep0_rank{r}.{stamp(r, 0)}.pt.trace.json.gz",
    "verl": lambda r: f"prof_start_3_end_5_rank_{r}.json",
}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """(documents by rank of a job with a slow rank, that rank)."""
    folder = tmp_path_factory.mktemp("job")
    case = generate(101, kind="slow_compute", world=4, steps=4, missing=set(), truncated={}, split=False)
    case.write(folder)
    found = {}
    for path in folder.iterdir():
        data = path.read_bytes()
        document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        found[document["distributedInfo"]["rank"]] = document
    return found, case.truth.suspects


def moved(document, us=0.0, steps=0):
    """The document `us` later, its steps numbered from `steps` further on."""
    made = copy.deepcopy(document)
    for event in made["traceEvents"]:
        if event.get("ph") != "M":
            event["ts"] += us
        if event["name"].startswith("ProfilerStep#"):
            event["name"] = f"ProfilerStep#{int(event['name'].partition('#')[2]) + steps}"
    return made


def put(path, document):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)


def laid(folder, documents, name, windows=3, us=MINUTE_US, steps=0):
    for window in range(windows):
        for rank, document in documents.items():
            put(folder / name(rank, window), moved(document, us * window, steps * window))
    return folder


def row(finding, kind):
    return next((q.detail for q in finding.quality if q.kind == kind), None)


@pytest.mark.parametrize("layout", WINDOWS)
@pytest.mark.quick(1)
def test_the_last_window_is_looked_at(tmp_path, job, layout):
    documents, slow = job
    finding = tracekit.slowrank(load(laid(tmp_path, documents, WINDOWS[layout])))
    assert finding.verdict == "slow_rank"
    assert finding.suspects[0].rank in slow
    assert len(finding.steps.analysed) == 4
    told = row(finding, "last_window")
    assert "is analysed" in told
    assert "trend follows all" in told


def test_a_window_of_one_rank_is_passed_over(tmp_path, job):
    """A rank that recorded once more than the others leaves nothing to compare it with."""
    name = WINDOWS["handler"]
    folder = laid(tmp_path, job[0], name, windows=2)
    put(folder / name(3, 2), moved(job[0][3], 2 * MINUTE_US))
    finding = tracekit.slowrank(load(folder))
    assert finding.suspects[0].rank in job[1]
    assert len(finding.ranks.missing) == 0
    assert "trend follows all" in row(finding, "last_window")


@pytest.mark.parametrize("layout", ONCE)
def test_names_of_frameworks_tell_ranks(tmp_path, job, layout):
    documents, _ = job
    run = load(laid(tmp_path, documents, lambda r, _: ONCE[layout](r), windows=1))
    assert [r.rank for r in run.ranks] == [0, 1, 2, 3]


@pytest.mark.slow
def test_every_command_reads_windows(tmp_path, job):
    documents, _ = job
    folder = laid(tmp_path / "titan", documents, WINDOWS["torchtitan"])
    run = load(folder)
    assert len(tracekit.trend(run).points) == 3
    assert len(run.breakdown().steps.analysed) == 4
    assert run.whatif(["rank=3"])
    assert placed(run)[2].mesh.sizes["tp"] == 2
    first = load(folder / "profile_traces/iteration_10")
    assert tracekit.diff(first, run).verdict == "unchanged"
    kept = load(folder, out=tmp_path / "kept")
    assert tracekit.slowrank(kept) == tracekit.slowrank(run)
    assert tracekit.trend(kept) == tracekit.trend(run)


@pytest.mark.slow
def test_steps_choose_an_earlier_window(tmp_path, job):
    run = load(laid(tmp_path, job[0], WINDOWS["torchtitan"], steps=10))
    first = min(run.breakdown(steps=[(None, None)]).steps.analysed)
    chosen = tracekit.slowrank(run, steps=[(first, first + 10)])
    assert min(tracekit.slowrank(run).steps.analysed) == first + 20
    assert set(chosen.steps.analysed) == set(range(first, first + 4))


def test_short_windows_are_taken_together(tmp_path, job):
    documents, _ = job
    for rank, document in documents.items():
        marks = [e for e in document["traceEvents"] if e["name"].startswith("ProfilerStep")]
        for window, mark in enumerate(
            sorted((m for m in marks if m["cat"] == "user_annotation"), key=lambda m: m["ts"])
        ):
            inside = [
                e for e in document["traceEvents"] if mark["ts"] <= e.get("ts", 0) < mark["ts"] + mark["dur"]
            ]
            put(
                tmp_path / f"iteration_{window}" / f"rank{rank}_trace.json",
                document | {"traceEvents": inside},
            )
    finding = tracekit.slowrank(load(tmp_path))
    assert len(finding.steps.analysed) >= 2
    assert row(finding, "last_window").startswith(
        "iteration_1, iteration_2, iteration_3 is analysed; iteration_0"
    )


@pytest.mark.slow
def test_windows_that_count_from_zero_follow_their_names(tmp_path, job):
    documents, slow = job
    folder = laid(tmp_path, documents, WINDOWS["torchtitan"], us=7.0)
    finding = tracekit.slowrank(load(folder))
    assert finding.suspects[0].rank in slow
    assert row(finding, "windows_laid_out")
    assert len(tracekit.trend(load(folder)).points) == 3


def test_validation_is_no_window_of_training(tmp_path, job):
    documents, _ = job

    def name(rank, window):
        loop = ("fit", "training") if window == 0 else ("validate", "validation")
        return f"{loop[0]}-{rank % 2}-[Strategy]DDP.{loop[1]}_step.{stamp(rank, window)}.pt.trace.json"

    run = load(laid(tmp_path, documents, name, windows=2))
    assert all("fit-" in r.path for r in run.ranks)
    assert len(run.rejected) == 4
    assert "its folder holds training as well" in run.rejected[0].reason


@pytest.mark.parametrize(
    "name",
    [
        lambda r, w: f"{('monday', 'tuesday')[w]}/rank{r}.json",
        lambda r, w: f"run_{w}/iteration_10/rank{r}_trace.json",
        lambda r, w: f"iteration_10/rank{r}.{stamp(r, w)}.pt.trace.json",
        lambda r, w: f"node_{100 * w + r}.{stamp(r, w)}.pt.trace.json",
    ],
    ids=["days", "runs", "one folder", "other processes"],
)
@pytest.mark.quick(1)
def test_two_jobs_are_still_refused(tmp_path, job, name):
    with pytest.raises(InputError, match=r"recordings of 2 jobs, .*choose one with --job 1"):
        load(laid(tmp_path, job[0], name, windows=2))


def test_jobs_mixed_in_one_layout_are_refused(tmp_path, job):
    documents, _ = job
    for window in range(2):
        for rank, document in documents.items():
            made = moved(document, window * MINUTE_US)
            made["distributedInfo"]["world_size"] = 4 * (window + 1)
            put(tmp_path / WINDOWS["torchtitan"](rank, window), made)
    with pytest.raises(InputError, match=r"world size 4.*world size 8"):
        load(tmp_path)


def test_a_packed_copy_is_read_once(tmp_path, job):
    documents, _ = job
    for rank, document in documents.items():
        put(tmp_path / f"rank{rank}.json", document)
        put(tmp_path / f"rank{rank}.json.gz", document)
    run = load(tmp_path)
    assert [q.kind for q in run.quality] == ["duplicate_file"] * 4
    assert not run.rejected


def test_other_files_links_and_spaces_are_no_obstacle(tmp_path, job):
    documents, _ = job
    real = laid(tmp_path / "real data", documents, lambda r, _: f"rank {r}.json", windows=1)
    for name in ("events.out.tfevents.1", "train.log", "model.pt", "trace.html"):
        (real / name).write_bytes(b"x")
    (tmp_path / "links").mkdir()
    for rank in documents:
        (tmp_path / "links" / f"rank{rank}.json").symlink_to(real / f"rank {rank}.json")
    (tmp_path / "links" / "up").symlink_to(tmp_path / "links")
    assert [r.rank for r in load(tmp_path / "links").ranks] == [0, 1, 2, 3]
    run = load(real)
    assert [(q.kind, q.count) for q in run.quality] == [("foreign_files", 4)]


def test_reports_of_nsys_are_told(tmp_path):
    """Beside other files as well, which are no traces."""
    (tmp_path / "report1.nsys-rep").write_bytes(b"nsys")
    (tmp_path / "package.json").write_text("{}")
    with pytest.raises(
        InputError, match=r"report1.nsys-rep: it is a report of nsys.*nsys export --type sqlite"
    ):
        load(tmp_path)


def test_archives_are_told(tmp_path, job):
    put(tmp_path / "in" / "rank0.json", job[0][0])
    (tmp_path / "a").mkdir()
    with tarfile.open(tmp_path / "a" / "traces.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "in", "in")
    with pytest.raises(InputError, match=r"traces.tar.gz: it is an archive; unpack it"):
        load(tmp_path / "a")
    with pytest.raises(InputError, match="it is a tar archive; unpack it first"):
        load(tmp_path / "a" / "traces.tar.gz")


def test_execution_traces_beside_are_left_alone(tmp_path, job):
    laid(tmp_path, job[0], lambda r, _: f"torch_profile/rank-{r}.json.gz", windows=1)
    for rank in range(4):
        put(
            tmp_path / "chakra" / f"rank-{rank}.json.gz",
            {"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 1}]},
        )
    run = load(tmp_path)
    assert not run.rejected
    assert all("torch_profile" in r.path for r in run.ranks)
