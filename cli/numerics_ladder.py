"""`numerics ladder`: validate, climb, render."""

from collections.abc import Sequence
from pathlib import Path

import click
from tracekit_cli import exit_codes
from tracekit_cli.output import emit

from numerics.ladder import ladder as climb
from numerics.report.json import dumps
from numerics.report.ladder import ladder_document, ladder_text

_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command(short_help="Drift or bug by the pair in BF16, FP32 and FP64: slope or plateau.")
@click.option(
    "--pair",
    "pairs",
    type=(_FOLDER, _FOLDER),
    multiple=True,
    required=True,
    metavar="RUN BASELINE",
    help="A run and its baseline, both of one policy; repeat for each policy.",
)
@click.option(
    "--json", "json_to", metavar="FILE|-", help="Write the answer as JSON; - is stdout, in place of text."
)
@click.option("--verbose", is_flag=True, help="All tensors.")
def ladder(pairs: Sequence[tuple[Path, Path]], json_to: str | None, verbose: bool) -> int:
    """Say whether two runs differ by rounding or by a bug, from the pair repeated in finer formats.

    Rounding falls with the format, a bug does not. Every folder holds a capture; the policy is read from the run.

    \b
    numerics ladder --pair a_bf16 b_bf16 --pair a_fp32 b_fp32 --pair a_fp64 b_fp64

    Exit codes: 0 identical, drift; 1 bug; 3 unreadable; 4 undecided.
    """
    finding = climb(pairs)
    emit(ladder_text(finding, verbose=verbose), lambda: dumps(ladder_document(finding)), json_to)
    return {"bug": exit_codes.FAILED_ON, "undecided": exit_codes.UNDECIDED}.get(
        finding.verdict, exit_codes.OK
    )
