"""`numerics bisect`: validate, search, render."""

from pathlib import Path

import click

from numerics.bisection.commands import ROLES, Commands
from numerics.bisection.search import Prove, rounds_needed
from numerics.bisection.search import bisect as search
from numerics.report.bisect import bisect_document, bisect_text
from numerics.report.json import dumps
from numerics.thresholds.reading import MOST_STEPS

from .. import exit_codes
from ..output import FOLDER, JSON, emit


@click.command()
@click.option("--parallel", required=True, metavar="CMD", help="Command that trains the run in question.")
@click.option("--baseline", required=True, metavar="CMD", help="Command that trains what it ought to equal.")
@click.option(
    "--steps", required=True, type=click.IntRange(1, MOST_STEPS), help="Steps that both commands make."
)
@click.option(
    "--out",
    type=FOLDER,
    default=Path("bisect"),
    show_default=True,
    metavar="DIR",
    help="Folder of the captures; started again with the same commands, finished runs in it are kept.",
)
@click.option(
    "--model",
    metavar="FILE.py:FUNCTION",
    help="Judge each step by the local proof, for pairs that differ by order from the first step on.",
)
@JSON
@click.option("--verbose", is_flag=True, help="All rounds, tensors and blind spots.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def bisect(
    parallel: str,
    baseline: str,
    steps: int,
    out: Path,
    model: str | None,
    json_to: str | None,
    verbose: bool,
    quiet: bool,
) -> int:
    """Find the first step, then the tensor, in which two runs diverge, in O(log steps) runs.

    Each round runs both commands in full and records a few of their steps. Their trainers call numerics.watch,
    or write to {out} at {level}.

    \b
    numerics bisect --parallel "torchrun --nproc-per-node 4 train.py" --baseline "python train.py" --steps 1000
    numerics bisect --parallel "reftrain run --mesh tp=2 --steps 40 --capture {level} --out {out}"
        --baseline "reftrain run --steps 40 --capture {level} --out {out}" --steps 40

    Exit codes: those of compare for the step found; 0 where no step diverges.
    """
    proof = None if model is None else _proof(model)
    talk = None if quiet else (lambda line: click.echo(f"numerics: {line}", err=True))
    commands = Commands(dict(zip(ROLES, (parallel, baseline), strict=True)), out, talk)
    commands.begin(steps)
    if talk is not None:
        talk(f"at most {rounds_needed(steps)} rounds of two runs")
    finding = search(steps, commands.record, proof)
    emit(bisect_text(finding, verbose=verbose), lambda: dumps(bisect_document(finding)), json_to)
    return exit_codes.OK if finding.first_step is None else exit_codes.of_comparison(finding.compare.verdict)


def _proof(model: str) -> Prove:
    from numerics.local.model_source import build
    from numerics.local.proof import prove

    built = build(model)
    return lambda run: prove(run, built.model, built.optimizer, loss=built.loss, schedule=built.schedule)
