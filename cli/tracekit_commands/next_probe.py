"""The command `tracekit next`: a script that tests the suspects' devices, hosts and links without the job."""

import json
from contextlib import suppress
from importlib.resources import files

import click

from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.opened import placed
from tracekit.errors import MeshUnknownError
from tracekit.findings import SlowRankFinding
from tracekit.mesh import Mesh
from tracekit.placement import HostList
from tracekit.thresholds.report import PROBED_GROUPS, PROBED_RANKS

from .. import options
from ..source import Source, source

_PLAN = 'PLAN: dict[str, Any] = {"suspects": [], "groups": {}, "why": ""}'
_HOW = """# Written by `tracekit next`. Start it as the job is started, on the same hosts, while the job does not run:
#   torchrun --nnodes … --nproc-per-node … --rdzv-backend c10d --rdzv-endpoint HOST:PORT probe.py
#   srun … python probe.py                      (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set)
# It takes about a minute, needs PyTorch alone, writes no file, and rank 0 prints what it finds.
"""


@click.command("next")
@options.cut()
@options.hosts()
@source()
def next_probe(source: Source, cut: options.Cut, hosts: HostList | None) -> int:
    """Print a script that separates a slow device, host and link, for the ranks that slowrank suspects.

    Each rank multiplies matrices, copies, launches and reads the clock alone; then the suspects' groups of the
    mesh, and those of their peers, reduce one tensor, and neighbours in them send one each way. TRACES are as for
    `tracekit slowrank`.

    \b
    tracekit next traces/ > probe.py
    torchrun --nproc-per-node 8 probe.py
    """
    with source.analysed() as (run, progress):
        finding = analyse(run, cut.mesh, cut.order, cut.steps, progress, hosts=hosts)
        mesh = None
        with suppress(MeshUnknownError):
            mesh = placed(run, cut.mesh, cut.order)[2].mesh
    click.echo(script_of(finding, mesh), nl=False)
    return 0


def script_of(finding: SlowRankFinding, mesh: Mesh | None) -> str:
    """Return the script with the plan of `finding` in it; without a mesh it compares ranks alone."""
    body = (files("reftrain") / "probe.py").read_text(encoding="utf-8")
    plan = json.dumps(plan_of(finding, mesh), ensure_ascii=True)
    return _HOW + body.replace(_PLAN, f"PLAN: dict[str, Any] = json.loads({plan!r})")


def plan_of(finding: SlowRankFinding, mesh: Mesh | None) -> dict[str, object]:
    """Return the ranks to compare, the groups to reduce by axis, and the sentence of the finding."""
    named = [s.rank for s in (*finding.suspects, *finding.candidates)][:PROBED_RANKS]
    groups = {} if mesh is None else {axis: _groups(mesh, axis, named) for axis in _axes(mesh)}
    return {"suspects": sorted(named), "groups": groups, "why": finding.headline()}


def _axes(mesh: Mesh) -> list[str]:
    return [axis for axis in mesh.order if mesh.sizes[axis] > 1]


def _groups(mesh: Mesh, axis: str, named: list[int]) -> list[list[int]]:
    """The groups along an axis: those of the suspects first, then others to compare them with."""
    lines = sorted({mesh.line(rank, (axis,)) for rank in mesh.coordinates})
    lines.sort(key=lambda line: not set(named) & set(line))
    return [list(line) for line in sorted(lines[:PROBED_GROUPS])]
