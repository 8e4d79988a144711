"""Counters and kernel logs beside a slow rank: they support or exclude its cause where host, GPU and time agree."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import get_args

import pytest

from tests.slowrank.jobs import grid, job
from tracekit import slowrank
from tracekit.analysis.triage.beside_traces import Recorded, counters_beside, kernel_lines, recorded
from tracekit.causes import CAUSES
from tracekit.evidence.counters import Kind, samples_of
from tracekit.evidence.log_file import LogFile
from tracekit.evidence.logs import read_log
from tracekit.files.source import Source
from tracekit.findings.shared import MeshFinding, RankCoverage, StepsFinding
from tracekit.findings.slowrank import Evidence, Mechanism, SlowRankFinding, Suspect, WhatIf
from tracekit.placement import same_host

BEGIN = 1_795_869_534_000
"""When the traces begin, ms since 1970."""
WHEN = Recorded(BEGIN, BEGIN + 4000, {5: "5"})
HOUR = 3_600_000


def answer(cause="gpu_compute", mechanism="clock", longer=1.4, on_gpu=True):
    """An answer that names rank 5 on node0, with a tenth of the step lost."""
    rows = (Evidence("GPU compute a step", 100.0 * longer, 100.0, "ms", "busy"),)
    found = () if mechanism is None else (Mechanism(mechanism, 1.0, ""),)
    suspect = Suspect(5, "node0", {}, 100.0, 0.999, (1, 2), cause, rows, mechanisms=found)
    mesh = MeshFinding(("tp", "cp", "pp", "dp"), {"tp": 8, "cp": 1, "pp": 1, "dp": 1}, "process_groups")
    return SlowRankFinding(
        RankCoverage(8, 8, (), ()), mesh, StepsFinding((1, 2), 1000.0), "slow_rank", cause, "", (), (suspect,),
        WhatIf(1000.0, 900.0, 1.11), on_gpu=on_gpu,
    )  # fmt: skip


def clocks(low, *, at=BEGIN, host="node0", gpu=5):
    """Clocks of eight GPUs every 15 s around `at`; one of them is `low`."""
    text = "".join(
        f'DCGM_FI_DEV_SM_CLOCK{{gpu="{n}",Hostname="{host}"}} {low if n == gpu else 1980} {at + 15_000 * k}\n'
        for k in range(-2, 3)
        for n in range(8)
    )
    return list(samples_of(text.encode().splitlines(), "file"))


def table(low, *, hours, minutes=5):
    """The table of nvidia-smi of that time on a machine whose clock is `hours` before UTC, a line every 5 s."""
    lines = ["timestamp, index, clocks.current.sm [MHz], temperature.gpu"]
    for k in range(-6 * minutes, 6 * minutes):
        at = datetime.fromtimestamp((BEGIN + hours * HOUR) / 1000 + 5 * k, UTC)
        lines += [f"{at:%Y/%m/%d %H:%M:%S}.000, {n}, {low if n == 5 else 1980} MHz, 60" for n in range(8)]
    return list(samples_of("\n".join(lines).encode().splitlines(), "node0"))


def says(samples, found=None, when=WHEN, lines=()):
    return [(row.says, row.detail) for row in counters_beside(samples, lines, found or answer(), when)]


@pytest.mark.parametrize(
    ("low", "mhz", "expected"),
    [("slow", 1400, "supports"), ("equal", 1980, "excludes"), ("near", 1900, "excludes")],
)
def test_a_clock_supports_or_excludes(low, mhz, expected):
    assert [word for word, _ in says(clocks(mhz))] == [expected], low


@pytest.mark.parametrize(
    "samples",
    [
        clocks(1400, at=BEGIN + HOUR),
        clocks(1400, at=BEGIN - 365 * 24 * HOUR),
        clocks(1400, host="node1"),
        [sample._replace(ms=0) for sample in clocks(1400)],
    ],
    ids=["an hour later", "a year before", "another host", "no time"],
)
def test_what_does_not_join_supports_nothing(samples):
    assert {word for word, _ in says(samples)} == {"silent"}


def test_another_gpu_of_the_host_supports_nothing():
    assert [word for word, _ in says(clocks(1400, gpu=3))] == ["excludes", "silent"]


def test_a_clock_excludes_nothing_beside_other_mechanisms():
    assert {word for word, _ in says(clocks(1980), answer(mechanism="one_kernel"))} == {"silent"}


def test_gpus_say_nothing_of_a_rank_on_cpu():
    when = Recorded(BEGIN, BEGIN + 4000, {5: ""})
    assert {word for word, _ in says(clocks(1400), answer(on_gpu=False), when)} == {"silent"}


@pytest.mark.parametrize("hours", [0, 2, -9])
def test_one_zone_alone_lets_local_times_fit(hours):
    assert [word for word, _ in says(table(1400, hours=hours))] == ["supports"]


def test_times_that_fit_several_zones_are_left_out():
    ((word, detail),) = says(table(1400, hours=13, minutes=600))
    assert word == "silent"
    assert "local times without a zone" in detail


@pytest.mark.parametrize(
    ("share", "cause", "expected"),
    [
        (0.5, "cpu_contention", "supports"),
        (0.01, "cpu_contention", "excludes"),
        (0.5, "network", "silent"),
        (0.5, "unknown", "supports"),
    ],
)
def test_pressure_beside_the_cost(share, cause, expected):
    text = "".join(
        f'node_pressure_cpu_waiting_seconds_total{{instance="node0:9100"}} {share * 15 * k} {BEGIN + 15_000 * k}\n'
        for k in range(4)
    )
    samples = list(samples_of(text.encode().splitlines(), "file"))
    assert [word for word, _ in says(samples, answer(cause, None))] == [expected]


def xid(folder, line):
    path = folder / "node0.dmesg"
    path.write_text(line + "\n")
    log = read_log(Source(str(path), str(path), path.stat().st_size))
    assert isinstance(log, LogFile)
    return kernel_lines([log])


@pytest.mark.parametrize(
    ("head", "number", "expected"),
    [
        ("[Sat Nov 28 10:38:54 2026]", 63, "supports"),
        ("2026-11-28T12:30:00,123456+00:00 node0 kernel:", 63, "supports"),
        ("2026-11-28T12:30:00+0000 node1 kernel:", 63, "silent"),
        ("[Sat Nov 28 10:38:54 2026]", 31, "silent"),
        ("[Sun Nov 29 10:38:54 2026]", 63, "silent"),
        ("[12345.678901]", 63, "silent"),
    ],
    ids=["two hours before", "ISO with host", "another host", "of a program", "a day later", "no date"],
)
def test_errors_of_kernels_before_the_traces(tmp_path, head, number, expected):
    lines = xid(tmp_path, f"{head} NVRM: Xid (PCI:0000:65:00): {number}, pid=1, something")
    assert [word for word, _ in says([], lines=lines)] == [expected]


def test_causes_list_kinds_that_counters_have():
    listed = {kind for entry in CAUSES.values() for kind in entry.counters}
    assert listed == set(get_args(Kind)) - {""}


def test_traces_without_a_calendar_join_nothing():
    ((word, detail),) = says(clocks(1400), when=Recorded(0, 4000, {5: "5"}))
    assert (word, "no time of a calendar" in detail) == ("silent", True)


def test_a_healthy_answer_gets_no_support(tmp_path):
    run = job(tmp_path, grid(dp=4))
    healthy = slowrank(run)
    assert healthy.verdict == "healthy"
    assert recorded(run, healthy) is None
    assert {word for word, _ in says(clocks(1400), healthy, None)} == {"silent"}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("node0:9100", "node0", True),
        ("Node0.cluster.local", "node0", True),
        ("node0.a", "node0.b", False),
        ("10.0.0.1:9400", "10.0.0.2", False),
        ("10.0.0.1", "10", False),
        (None, "node0", False),
    ],
)
def test_names_of_one_host(one, other, same):
    assert same_host(one, other) is same


def test_a_candidate_without_a_trace_was_recorded_nowhere(tmp_path):
    run = job(tmp_path, grid(dp=4), lost={3})
    found = replace(answer(), suspects=(), candidates=(Suspect(3, None, {}, 1.0, 0.0, (), "unknown", ()),))
    assert recorded(run, found) is None
