"""The command `tracekit diff`: validate, analyse, render."""

from typing import get_args

import click

from tracekit.analysis.diff.analyse import compared
from tracekit.analysis.diff.side import side_of
from tracekit.findings.diff import DiffVerdict
from tracekit.page.shell import date_text
from tracekit.report.diff import diff_document, diff_text
from tracekit.report.html.diff import diff_html
from tracekit.report.markdown import fenced_markdown
from tracekit.report.slowrank_json import dumps

from .. import exit_codes, options
from ..source import Pair, pair


@click.command()
@options.cut()
@options.failing(get_args(DiffVerdict))
@options.html()
@options.answer()
@pair()
def diff(
    pair: Pair, cut: options.Cut, fail_on: frozenset[str], html_to: str | None, answer: options.Answer
) -> int:
    """Show what takes longer in the second run than in the first: the step, its parts, ranks and kernels.

    BEFORE and AFTER are a file, a folder, a glob or an fsspec URL each, as for `tracekit slowrank`. The runs may
    differ in clocks, step numbers and number of steps. Ranks are compared only if the meshes are equal. Each
    difference is tested for significance.

    \b
    tracekit diff traces/monday traces/tuesday
    tracekit diff baseline/ new/ --fail-on slower --json -
    tracekit diff both/ both/ --job 1,2 --html changes.html
    """
    sides, dates = [], []
    for source in pair.sources:
        with source.analysed() as (run, progress):
            sides.append(side_of(run, cut.mesh, cut.order, cut.steps, progress))
            dates.append((date_text(run.last_ns()) or "unknown") if html_to else "")
    finding = compared(*sides)
    text = diff_text(finding, verbose=answer.verbose)
    answer.emit(
        text,
        lambda: dumps(diff_document(finding)),
        lambda: fenced_markdown(text),
        (
            lambda: diff_html(finding, options.page_foot((pair.before, pair.after), " and ".join(dates))),
            html_to,
        ),
    )
    return exit_codes.of_verdict(finding.verdict, fail_on)
