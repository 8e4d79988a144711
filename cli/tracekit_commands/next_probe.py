"""The command `tracekit next`: a script that tests the suspects' devices, hosts and links without the job."""

import json
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files

import click

from tracekit.analysis.slowrank.analyse import analyse
from tracekit.case.opened import placed, with_hosts
from tracekit.errors import MeshUnknownError
from tracekit.findings import SlowRankFinding
from tracekit.mesh import Mesh
from tracekit.placement import HOST_NAME
from tracekit.thresholds.report import HOSTS_STARTED, PROBED_GROUPS, PROBED_RANKS

from .. import options
from ..source import Source, source

_PLAN = 'PLAN: dict[str, Any] = {"suspects": [], "groups": {}, "hosts": {}, "why": ""}'
_HOW = """# Written by `tracekit next`. Start it as the job is started, on the same hosts, while the job does not run:
#   torchrun --nnodes … --nproc-per-node … --node-rank … --master-addr HOST --master-port 29500 probe.py
#   srun … python probe.py                      (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set)
# It takes about a minute, needs PyTorch alone, writes no file, and rank 0 prints what it finds.
"""
_ON_HOSTS = "# The job ran on {}. With torchrun, each rank on its host again:\n"
_ON_HOST = (
    "#   {host}:  torchrun --nnodes {nodes} --nproc-per-node {each} --node-rank {number} --master-addr {first}"
    " --master-port 29500 probe.py\n"
)


@click.command("next")
@options.cut()
@options.machines()
@source()
def next_probe(source: Source, cut: options.Cut, machines: options.Machines) -> int:
    """Print a script that separates a slow device, host and link, for the ranks that slowrank suspects.

    Each rank multiplies matrices, copies, launches and reads the clock alone; then the suspects' groups of the
    mesh, and those of their peers, reduce one tensor, and neighbours in them send one each way. TRACES are as for
    `tracekit slowrank`.

    \b
    tracekit next traces/ > probe.py
    torchrun --nproc-per-node 8 probe.py
    """
    with source.analysed() as (read, progress):
        run = with_hosts(read, machines.hosts)
        finding = analyse(run, cut.mesh, cut.order, cut.steps, progress, hardware=machines.hardware)
        mesh = None
        with suppress(MeshUnknownError):
            mesh = placed(run, cut.mesh, cut.order)[2].mesh
        known = {r.rank: r.host for r in run.ranks if r.host} | {r: p.host for r, p in run.places.items()}
    click.echo(script_of(finding, mesh, known), nl=False)
    return 0


def script_of(finding: SlowRankFinding, mesh: Mesh | None, hosts: Mapping[int, str] = {}) -> str:
    """Return the script with the plan of `finding` in it; without a mesh it compares ranks alone.

    hosts: where the job ran each rank, as far as that is known; the head names them where all ranks' are.
    """
    body = (files("reftrain") / "probe.py").read_text(encoding="utf-8")
    named = {rank: host for rank, host in hosts.items() if HOST_NAME.fullmatch(host)}
    plan = json.dumps(plan_of(finding, mesh, named), ensure_ascii=True)
    started = _started(named, len(mesh.coordinates) if mesh else 0)
    return _HOW + started + body.replace(_PLAN, f"PLAN: dict[str, Any] = json.loads({plan!r})")


def _started(hosts: Mapping[int, str], world: int) -> str:
    """Return how torchrun starts the ranks of each host; empty unless all hosts are known, with equal runs of ranks."""
    names = list(dict.fromkeys(hosts[rank] for rank in sorted(hosts)))
    each = world // len(names) if names else 0
    if len(hosts) != world or each * len(names) != world:
        return ""
    if any(hosts[rank] != names[rank // each] for rank in range(world)):
        return ""
    lines = [
        _ON_HOST.format(host=host, nodes=len(names), each=each, number=number, first=names[0])
        for number, host in enumerate(names)
    ]
    more = (
        [f"#   and so on, up to --node-rank {len(names) - 1} on {names[-1]}\n"]
        if len(names) > HOSTS_STARTED
        else []
    )
    where = (
        f"{names[0]} alone"
        if len(names) == 1
        else f"{len(names)} hosts, {each} rank{'s'[: each > 1]} on each"
    )
    return "".join([_ON_HOSTS.format(where), *lines[:HOSTS_STARTED], *more])


def plan_of(finding: SlowRankFinding, mesh: Mesh | None, hosts: Mapping[int, str] = {}) -> dict[str, object]:
    """Return the ranks to compare, the groups to reduce by axis, hosts of suspects, and the sentence of the finding."""
    named = sorted([s.rank for s in (*finding.suspects, *finding.candidates)][:PROBED_RANKS])
    groups = {} if mesh is None else {axis: _groups(mesh, axis, named) for axis in _axes(mesh)}
    mine = {str(rank): hosts[rank] for rank in named if rank in hosts}
    return {"suspects": named, "groups": groups, "hosts": mine, "why": finding.headline()}


def _axes(mesh: Mesh) -> list[str]:
    return [axis for axis in mesh.order if mesh.sizes[axis] > 1]


def _groups(mesh: Mesh, axis: str, named: list[int]) -> list[list[int]]:
    """The groups along an axis: those of the suspects first, then others to compare them with."""
    lines = sorted({mesh.line(rank, (axis,)) for rank in mesh.coordinates})
    lines.sort(key=lambda line: not set(named) & set(line))
    return [list(line) for line in sorted(lines[:PROBED_GROUPS])]
