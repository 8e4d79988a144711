"""`numerics compare`: validate, compare, render."""

from collections.abc import Sequence
from pathlib import Path

import click

from numerics.comparison.compare import Options
from numerics.comparison.compare import compare as compare_runs
from numerics.order.replayer import make_replay
from numerics.precision.beside import ladder_beside, refuse_to_climb
from numerics.report.html import compare_html
from numerics.report.json import compare_document, dumps
from numerics.report.text import compare_text
from tracekit.report.markdown import fenced_markdown
from tracekit.text import plain

from .. import exit_codes, options
from ..output import FOLDER, JSON, MARKDOWN, about, emit


@click.command()
@click.option("--parallel", required=True, type=FOLDER, metavar="RUN", help="Folder of the run in question.")
@click.option(
    "--baseline",
    type=FOLDER,
    metavar="RUN",
    help="Folder of the run it ought to equal; none checks the run alone.",
)
@click.option(
    "--replay",
    type=FOLDER,
    metavar="RUN",
    help="Matched replay of the run; RUN/replay, or made now, if left out.",
)
@click.option(
    "--model",
    metavar="FILE.py:FUNCTION",
    help="Prove any run piece by piece: the function builds the whole model, its optimiser, loss and scheduler.",
)
@click.option("--no-replay", is_flag=True, help="Make no replay, and decide with what is there.")
@click.option(
    "--ladder", is_flag=True, help="Show the precision ladder too; both runs are repeated if need be."
)
@click.option(
    "--pair",
    "pairs",
    type=(FOLDER, FOLDER),
    multiple=True,
    metavar="RUN BASELINE",
    help="Show the ladder with this pair in another format; repeat for each.",
)
@JSON
@MARKDOWN
@options.html()
@click.option("--verbose", is_flag=True, help="All tensors, invariants and blind spots.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def compare(
    parallel: Path,
    baseline: Path | None,
    replay: Path | None,
    model: str | None,
    no_replay: bool,
    ladder: bool,
    pairs: Sequence[tuple[Path, Path]],
    json_to: str | None,
    markdown_to: str | None,
    html_to: str | None,
    verbose: bool,
    quiet: bool,
) -> int:
    """Say whether a run differs from a baseline by the order of its sums alone, or by a bug, and prove it.

    Both folders hold a capture (reftrain run --capture digest, or numerics.Recorder in any trainer). Meshes may differ.
    The proof is the matched replay: one process that repeats the run's own order of sums.

    \b
    numerics compare --parallel run_a --baseline run_b
    numerics compare --parallel run_a --baseline run_b --html report.html --json -
    numerics compare --parallel run_a --baseline run_b --ladder --html report.html
    numerics compare --parallel run_a                  (the run against its own replay)

    Exit codes: 0 identical, drift, rounding, signed_zero, reporting_only; 1 bug, precision_policy; 3 incomparable
    or unreadable; 4 undecided.
    """
    _refuse_ladder(parallel, baseline, pairs, ladder=ladder)
    with about([parallel]):
        finding = compare_runs(parallel, baseline, _options(replay, model, no_replay=no_replay, quiet=quiet))
    talk = None if quiet else (lambda line: click.echo(plain(f"numerics: {line}"), err=True))
    beside = ladder_beside(finding, pairs, make=ladder, progress=talk)
    text = compare_text(finding, beside, verbose=verbose)
    others = (
        (lambda: fenced_markdown(text), markdown_to),
        (lambda: compare_html(finding, beside, options.page_foot([parallel, baseline])), html_to),
    )
    emit(text, lambda: dumps(compare_document(finding, beside)), json_to, *others)
    return exit_codes.of_comparison(finding.verdict)


def _refuse_ladder(
    parallel: Path, baseline: Path | None, pairs: Sequence[tuple[Path, Path]], *, ladder: bool
) -> None:
    """Raise UsageError or InputError, before any work, where a ladder is asked for that cannot be made."""
    if not ladder and not pairs:
        return
    if ladder and pairs:
        raise click.UsageError("--pair gives the finer runs; leave --ladder out")
    if baseline is None:
        raise click.UsageError("the ladder needs --baseline")
    if ladder:
        refuse_to_climb(parallel)


def _options(replay: Path | None, model: str | None, *, no_replay: bool, quiet: bool) -> Options:
    if model is not None:
        from numerics.local.model_source import build
        from numerics.local.proof import prove

        built = build(model)
        print_line = None if quiet else (lambda line: click.echo(plain(f"numerics: proves {line}"), err=True))
        return Options(
            prove=lambda run: prove(run, built.model, built.optimizer, print_line, built.loss, built.schedule)
        )
    if no_replay:
        return Options(replay=replay)

    def make(
        run: Path,
        out: Path | None = None,
        *,
        variants: Sequence[str] = (),
        steps: int | None = None,
        forced: bool = False,
    ) -> Path:
        what = f" with {', '.join(variants)}" if variants else " from recorded values" if forced else ""
        talk = (
            None if quiet else (lambda line: click.echo(plain(f"numerics: replayed {line}{what}"), err=True))
        )
        return make_replay(run, out, variants=variants, steps=steps, forced=forced, progress=talk)

    return Options(replay=replay, make_replay=make)
