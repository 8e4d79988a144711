"""`python -m tests.reports`: remakes each report's input, asks as its author would, and prints the table.

python -m tests.reports                       all of them (some minutes)
python -m tests.reports --only nccl-1111      those whose name holds this, with the whole answer
python -m tests.reports --kind stuck          one kind
python -m tests.reports --page docs/public_reports.md      the table of that page again
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.reports import (
    around_updates,
    between_ranks,
    by_structure,
    computed,
    cut_documents,
    drawn,
    endings,
    experts,
    flat,
    given,
    handed_over,
    in_both,
    in_stages,
    in_tensor,
    in_turn,
    kept,
    launched,
    lengths,
    logs,
    messages,
    moments,
    normalised,
    over_time,
    overheads,
    parted,
    phases,
    pieces,
    places,
    printed,
    quoted,
    restored,
    routed,
    sharded,
    slow,
    stuck,
    traced,
    uneven,
    vocabulary,
    wide_copies,
    wrong,
)
from tests.reports.asked import ask
from tests.reports.page import rewrite, row, summary
from tests.reports.report import Report

REPORTS: list[Report] = [
    *slow.REPORTS,
    *uneven.REPORTS,
    *places.REPORTS,
    *moments.REPORTS,
    *in_turn.REPORTS,
    *by_structure.REPORTS,
    *overheads.REPORTS,
    *given.REPORTS,
    *over_time.REPORTS,
    *handed_over.REPORTS,
    *phases.REPORTS,
    *stuck.REPORTS,
    *messages.REPORTS,
    *parted.REPORTS,
    *logs.REPORTS,
    *printed.REPORTS,
    *endings.REPORTS,
    *launched.REPORTS,
    *traced.REPORTS,
    *quoted.REPORTS,
    *wrong.REPORTS,
    *between_ranks.REPORTS,
    *around_updates.REPORTS,
    *wide_copies.REPORTS,
    *normalised.REPORTS,
    *pieces.REPORTS,
    *vocabulary.REPORTS,
    *sharded.REPORTS,
    *experts.REPORTS,
    *routed.REPORTS,
    *in_both.REPORTS,
    *flat.REPORTS,
    *lengths.REPORTS,
    *computed.REPORTS,
    *in_tensor.REPORTS,
    *drawn.REPORTS,
    *in_stages.REPORTS,
    *cut_documents.REPORTS,
    *restored.REPORTS,
    *kept.REPORTS,
]


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.reports", description=__doc__, formatter_class=form
    )
    parser.add_argument("--only", help="a part of the name, such as nccl-1111")
    parser.add_argument("--kind", choices=["slow", "stuck", "wrong"])
    parser.add_argument("--page", type=Path, help="write the table into this page")
    parser.add_argument("--keep", type=Path, help="leave the inputs in this folder")
    parser.add_argument("--jobs", type=int, default=2, help="reports at once")
    return parser.parse_args(arguments)


def main() -> int:
    """Make the inputs of the chosen reports, ask for all, and print their rows."""
    chosen = options()
    reports = [
        report
        for report in REPORTS
        if (not chosen.only or chosen.only in report.name) and chosen.kind in {None, report.kind}
    ]
    with tempfile.TemporaryDirectory(prefix="reports-") as made, ThreadPoolExecutor(chosen.jobs) as pool:
        folder = chosen.keep or Path(made)
        asked = []
        for report in reports:
            report.make(folder / report.name)  # in this thread, since some fork
            asked.append(pool.submit(ask, report.command, folder / report.name))
        told = []
        for report, future in zip(reports, asked, strict=True):
            answer = future.result()
            told.append((report, answer, report.judge(answer)))
            print(row(*told[-1]), flush=True)
            if chosen.only:
                print(answer.text)
    print(summary(told))
    if chosen.page:
        rewrite(chosen.page, told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
