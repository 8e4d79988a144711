"""Each report is judged as the table of docs/public_reports.md says; a few in each test run, all in `make test-all`."""

import pytest

from tests.marks import quick_if
from tests.reports.__main__ import REPORTS
from tests.reports.asked import ask
from tests.reports.page import DOCS, judged


@pytest.mark.parametrize("report", quick_if(lambda report: report.quick, REPORTS), ids=lambda r: r.name)
@pytest.mark.quick(1)
def test_reports_are_judged_as_the_page_says(report, tmp_path):
    report.make(tmp_path)
    answer = ask(report.command, tmp_path)
    assert report.judge(answer) == judged(DOCS)[report.source], answer.text


def test_every_report_stands_in_the_table():
    assert set(judged(DOCS)) == {report.source for report in REPORTS}


def test_names_of_reports_differ():
    assert len({report.name for report in REPORTS}) == len(REPORTS) >= 40
