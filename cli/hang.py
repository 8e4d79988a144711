"""`tracekit hang`: validate, analyse, render."""

import os
from collections.abc import Callable
from typing import get_args

import click

from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps
from tracekit.errors import TracekitError, with_rejected
from tracekit.findings.hang import HangVerdict
from tracekit.ingest import ProgressEvent
from tracekit.report.hang import hang_document, hang_text
from tracekit.report.markdown import indented_markdown
from tracekit.report.slowrank_json import dumps

from . import exit_codes, options
from .output import about, emit
from .progress import reading


@click.command()
@click.argument("dumps_", metavar="DUMPS...", nargs=-1, required=True)
@click.option(
    "--mesh",
    callback=options.mesh,
    metavar="tp=8,cp=1,pp=16,dp=128",
    help="The mesh, inner to outer; inferred if left out.",
)
@click.option(
    "--order",
    callback=options.order,
    metavar="tp,cp,dp,pp",
    help="Axes inner to outer, where that is not as --mesh is written.",
)
@click.option(
    "--fail-on",
    callback=options.fail_on(get_args(HangVerdict)),
    metavar="VERDICTS",
    help="Exit 1 on these verdicts (joined by commas, or any), 4 if undecided.",
)
@options.job()
@options.output()  # fmt: skip
def hang(
    dumps_: tuple[str, ...],
    mesh: dict[str, int] | None,
    order: tuple[str, ...] | None,
    fail_on: frozenset[str],
    job: int | None,
    json_to: str | None,
    markdown_to: str | None,
    verbose: bool,
    jobs: int | None,
    quiet: bool,
) -> int:
    """Say who never came: the ranks that made the others wait, in which call, and if host or device stalled.

    DUMPS: flight-recorder dumps (pickle or JSON, versions 2.0 to 2.10, NCCL or Gloo) under any names,
    folders, globs or fsspec URLs. Ranks may be missing; files that cannot be used are listed with the
    reason. Pickles run no code here.

    \b
    tracekit hang dumps/
    tracekit hang dumps/ --verbose --json answer.json --fail-on hang,mismatch
    """
    with reading(quiet=quiet) as show:
        found = load_dumps(dumps_, jobs=jobs or len(os.sched_getaffinity(0)), progress=_shown(show), job=job)
    try:
        with about(dumps_):
            finding = analyse(found, mesh, order)
    except TracekitError as error:
        raise with_rejected(error, [(r.path, r.reason) for r in found.rejected]) from error.__cause__
    text = hang_text(finding, verbose=verbose)
    emit(
        text,
        lambda: dumps(hang_document(finding)),
        json_to,
        (lambda: indented_markdown(text), markdown_to),
    )
    return exit_codes.of_verdict(finding.verdict, fail_on)


def _shown(show: Callable[[ProgressEvent], None]) -> Callable[[int, int, int, int], None]:
    def progress(files: int, of: int, done: int, total: int) -> None:
        show(ProgressEvent(files, of, done, total, ""))

    return progress
