"""`numerics ladder`: validate, climb, render."""

from collections.abc import Sequence
from pathlib import Path

import click

from numerics.precision.beside import climb_and_keep, ladder_folder
from numerics.precision.ladder import LadderFinding
from numerics.precision.ladder import ladder as judge
from numerics.report.json import dumps
from numerics.report.ladder import ladder_document, ladder_text
from numerics.report.ladder_html import ladder_html
from tracekit.text import plain

from .. import exit_codes, options
from ..output import FOLDER, JSON, emit


@click.command()
@click.option(
    "--parallel", type=FOLDER, metavar="RUN", help="The run in question, to be repeated in finer formats."
)
@click.option("--baseline", type=FOLDER, metavar="RUN", help="The run it ought to equal but for rounding.")
@click.option("--out", type=FOLDER, metavar="DIR", help="Where repeated runs go; RUN/ladder if left out.")
@click.option(
    "--pair",
    "pairs",
    type=(FOLDER, FOLDER),
    multiple=True,
    metavar="RUN BASELINE",
    help="Instead of --parallel and --baseline: a pair that exists, both of one policy; repeat for each policy.",
)
@JSON
@options.html()
@click.option("--verbose", is_flag=True, help="All tensors.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def ladder(
    parallel: Path | None,
    baseline: Path | None,
    out: Path | None,
    pairs: Sequence[tuple[Path, Path]],
    json_to: str | None,
    html_to: str | None,
    verbose: bool,
    quiet: bool,
) -> int:
    """Say whether two runs differ by rounding or by a bug, from the pair repeated in finer formats.

    Rounding falls with the format, a bug does not. Every folder holds a capture; the policy is read from the run.
    The trainer repeats the runs (reftrain can); for other trainers, give the pairs.

    \b
    numerics ladder --parallel run_a --baseline run_b
    numerics ladder --parallel run_a --baseline run_b --html ladder.html
    numerics ladder --pair a_bf16 b_bf16 --pair a_fp32 b_fp32 --pair a_fp64 b_fp64

    Exit codes: 0 identical, drift; 1 bug; 3 unreadable; 4 undecided.
    """
    finding = _climbed(parallel, baseline, out, pairs, quiet=quiet)
    text = ladder_text(finding, verbose=verbose)
    runs: list[Path | None] = [run for pair in pairs for run in pair]
    runs = runs or [parallel, baseline]
    page = (lambda: ladder_html(finding, options.page_foot(runs)), html_to)
    emit(text, lambda: dumps(ladder_document(finding)), json_to, page)
    return exit_codes.of_comparison(finding.verdict)


def _climbed(
    parallel: Path | None,
    baseline: Path | None,
    out: Path | None,
    pairs: Sequence[tuple[Path, Path]],
    *,
    quiet: bool,
) -> LadderFinding:
    if pairs:
        if parallel or baseline or out:
            raise click.UsageError("--pair gives all runs; leave --parallel, --baseline and --out out")
        return judge(pairs)
    if parallel is None or baseline is None:
        raise click.UsageError("give --parallel and --baseline, or at least two --pair")
    talk = None if quiet else (lambda line: click.echo(plain(f"numerics: {line}"), err=True))
    return climb_and_keep(parallel, baseline, out or ladder_folder(parallel), talk)
