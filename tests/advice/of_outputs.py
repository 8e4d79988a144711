"""Answers that cannot be put where they were wanted, here or behind URLs, and what the refusals advise."""

from types import SimpleNamespace

import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from tracekit_cli.numerics_commands.compare import compare as compare_command
from tracekit_cli.tracekit_commands.mesh import mesh as mesh_command

from tests.advice.cases import command, traces
from tests.advice.of_numerics import rungs
from tests.advice.register import calls, case
from tracekit.files.far import check_target
from tracekit.ingest import far_run, load


class Buckets(MemoryFileSystem):
    """A store of objects whose only bucket is `there`."""

    protocol = "s3"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("s3://")

    def exists(self, path: str, **_: object) -> bool:
        return path.partition("/")[0] == "there"


@case("{}: reading takes about {} GB there for a while")
def _(folder, patch):
    given, full = traces(folder, 2), folder / "full"
    full.mkdir()
    room = {str(full): 0}
    patch.setattr(
        "tracekit.ingest.output_folder.shutil.disk_usage",
        lambda path: SimpleNamespace(free=room.get(str(path.parent), 1 << 40)),
    )
    return lambda: load([given], out=full / "run"), lambda: load([given], out=folder / "run")


@case("it is empty; name a file")
def _(folder, _patch):
    given = traces(folder, 2)
    return command(mesh_command, f"{given} --json=", f"{given} --json={folder}/mesh.json")


@case("--pair gives the finer runs; leave --ladder out")
def _(folder, _patch):
    (run, baseline), *finer = rungs(folder, "bf16", "fp32", "fp64")
    given = f"--parallel {run} --baseline {baseline} --no-replay --pair {finer[0][0]} {finer[0][1]}"
    return command(compare_command, f"{given} --ladder", given)


calls("it names no file", check_target, "memory://out/", "memory://out/a.json")


@case("{}: cannot be written ({} does not exist); create it, or name another")
def _(_folder, patch):
    patch.setitem(_registry, "s3", Buckets)
    return lambda: check_target("s3://absent/a.json"), lambda: check_target("s3://there/a.json")


@case("the run there changed while it was read")
def _(folder, patch):
    load([str(traces(folder, 2))], out=f"memory://{folder.name}/run")
    memory = fsspec.filesystem("memory")

    def without_manifest() -> object:
        with patch.context() as for_now:
            for_now.setattr(far_run, "_names", lambda *_: [])
            (folder / "a").mkdir()
            return far_run.fetch_run(f"memory://{folder.name}/run", folder / "a")

    assert memory.exists(f"/{folder.name}/run/manifest.json")
    return without_manifest, lambda: far_run.fetch_run(f"memory://{folder.name}/run", folder / "b")


@case("which tracekit did not write; name another place")
def _(folder, _patch):
    given = [str(traces(folder, 2))]
    fsspec.filesystem("memory").pipe_file(f"/{folder.name}/mine", b"mine")
    return (lambda: load(given, out=f"memory://{folder.name}/mine")), (
        lambda: load(given, out=f"memory://{folder.name}/other")
    )
