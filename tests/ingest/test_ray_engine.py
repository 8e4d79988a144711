"""A Ray cluster of two workers reads as one machine does, also when a worker dies and when files are far away."""

import json
import shutil
import socket
import sys
from pathlib import Path

import pytest
from tracekit_cli.tracekit import main

from tests.house.source import ROOT
from tests.ingest.sample import put
from tracekit import installation
from tracekit.errors import InputError, MissingExtraError, OutputError, TracekitError, UsageError
from tracekit.ingest import load, ray_engine

SAMPLE = ROOT / "sample_traces" / "slow_compute"


@pytest.fixture(scope="module")
def bucket():
    """URL of an empty bucket on an S3-compatible server, which this process and its children are told of."""
    server = pytest.importorskip("moto.server", reason="moto is not installed: make test-cluster installs it")
    pytest.importorskip("s3fs", reason="s3fs is not installed: make test-cluster installs it")
    import boto3

    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        boto3.client("s3").create_bucket(Bucket="traces")
        yield "s3://traces"
    running.stop()


@pytest.fixture
def cluster(bucket):
    """A head that does no tasks, and two workers with one processor each."""
    pytest.importorskip("ray", reason="Ray is not installed: make test-cluster installs it")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    made.workers = [made.add_node(num_cpus=1) for _ in range(2)]
    yield made
    made.shutdown()


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_that_loses_a_worker_gives_same_bytes(cluster, bucket, tmp_path):
    import fsspec

    shutil.copytree(SAMPLE / "trace", tmp_path / "given")
    put(tmp_path / "given" / "bad.json", b"<html>")
    fsspec.filesystem("s3").put(f"{tmp_path / 'given'}/", f"{bucket}/given/", recursive=True)
    told = []

    def kill(event):
        told.append(event.done_files)
        if 2 * event.done_files >= event.total_files and len(cluster.workers) > 1:
            cluster.remove_node(cluster.workers.pop(), allow_graceful=False)

    with ray_engine.on_ray(cluster.address) as engine:
        load(f"{bucket}/given/", out=tmp_path / "afar", engine=engine, progress=kill)
    load(f"{bucket}/given/", out=tmp_path / "here")
    assert len(cluster.workers) == 1
    assert told[-1] == 17
    assert files(tmp_path / "afar") == files(tmp_path / "here")
    assert "bad.json" in (tmp_path / "afar" / "manifest.json").read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_slowrank_on_a_cluster_answers_the_same(cluster, monkeypatch, capsys):
    answers = []
    for more in ([], ["--engine", "ray", "--address", cluster.address, "--jobs", "2"]):
        monkeypatch.setattr(
            sys, "argv", ["tracekit", "slowrank", str(SAMPLE), "--quiet", "--json", "-", *more]
        )
        with pytest.raises(SystemExit) as left:
            main()
        answers.append((left.value.code, capsys.readouterr().out))
    assert answers[0] == answers[1]
    assert json.loads(answers[0][1])["verdict"] == "slow_rank"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_runs_are_kept_in_a_bucket_and_grow_there(bucket, tmp_path):
    import fsspec

    paths = sorted(map(str, (SAMPLE / "trace").iterdir()))
    for count in (3, 5):
        load(paths[:count], out=f"{bucket}/kept/run", append=True)
        load(paths[:count], out=tmp_path / "run", append=True)
    fsspec.filesystem("s3").get(f"{bucket}/kept/run/", f"{tmp_path / 'back'}/", recursive=True)
    assert files(tmp_path / "back") == files(tmp_path / "run")
    assert len(load(f"{bucket}/kept/run").ranks) == 5
    with pytest.raises(OutputError, match="nobucket does not exist"):
        load(paths[:1], out="s3://nobucket/run")


@pytest.fixture
def installed(monkeypatch):
    """Ray counts as installed, and a server has a moment to answer."""
    monkeypatch.setattr(installation, "find_spec", lambda _name: True)
    monkeypatch.setattr(ray_engine, "CONNECT_SECONDS", 0.1)


def refused(address):
    with pytest.raises(TracekitError) as caught, ray_engine.on_ray(address):
        pass
    return caught.value


def test_a_missing_package_is_named_by_its_extra(monkeypatch):
    monkeypatch.setattr(installation, "find_spec", lambda _name: None)
    error = refused("127.0.0.1:6379")
    assert (type(error), "tracekit4d[ray]" in str(error)) == (MissingExtraError, True)


@pytest.mark.parametrize("before", ["", "ray://"])
def test_a_server_of_another_kind_is_refused_soon(installed, before):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{before}127.0.0.1:{server.getsockname()[1]}"
        error = refused(address)
    assert (type(error), address in str(error)) == (InputError, True)
    assert address in str(refused(address))  # by now nobody listens


@pytest.mark.parametrize("address", ["", "here", "host:", ":6379", "host:x"])
def test_what_is_no_address_is_refused(installed, address):
    error = refused(address)
    assert (type(error), repr(address) in str(error)) == (UsageError, True)
