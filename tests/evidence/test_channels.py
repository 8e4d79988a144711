"""Any subset of the channels of one hang names the culprit or leaves the answer open."""

from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from tests.evidence.judged import CHANNELS, answer, ranks, record
from tests.evidence.watchdog import NAMED, VERSIONS, Spelling
from tests.hang import simulate
from tests.marks import quick_first
from tracekit.dumps.load import load_dumps

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "hang_host_stall" / "fr"
SUBSETS = [some for n in range(1, len(CHANNELS) + 1) for some in combinations(CHANNELS, n)]


def outside(case):
    """Ranks whose host stands outside any collective."""
    return (case.culprit,) if case.fault == "host_stall" else ()


@pytest.mark.parametrize("seed", quick_first(1, [*range(30), *range(100, 130)]))
def test_any_subset_names_no_innocent(tmp_path, seed):
    case = simulate.make(seed)
    dumps = case.write(tmp_path / "fr")
    places = record(tmp_path, dumps, Spelling(NAMED[seed % len(NAMED)]), outside(case))
    for channels in SUBSETS:
        finding = answer(places, channels)
        assert set(ranks(finding)) <= {case.culprit}, (channels, finding.reason)


def test_a_real_hang_is_told_by_its_log(tmp_path):
    places = record(tmp_path, SAMPLE, Spelling("2.8"), (6,))
    asked = [some for some in SUBSETS if len(some) < 3]
    named = {channels: ranks(answer(places, channels)) for channels in asked}
    assert named["dump",] == named["log",] == named["log", "ras"] == named["stacks",] == [6]
    assert all(named[channels] in ([], [6]) for channels in named)


@pytest.mark.parametrize("version", quick_first(1, reversed(VERSIONS)))
def test_a_log_alone_names_hosts_that_stalled(tmp_path, version):
    outcomes = Counter()
    for seed in range(8):
        case = simulate.make(seed + 500, "host_stall")
        folder = tmp_path / str(seed)
        places = record(folder, case.write(folder / "fr"), Spelling(version), (case.culprit,))
        named = ranks(answer(places, ("log",)))
        outcomes["right" if named == [case.culprit] else "wrong" if named else "open"] += 1
    assert outcomes["wrong"] == 0
    assert outcomes["right"] >= (7 if version in NAMED else 0)


def test_more_evidence_keeps_what_dumps_tell(tmp_path):
    case = simulate.make(0, "host_stall")
    places = record(tmp_path, case.write(tmp_path / "fr"), Spelling(), (case.culprit,))
    whole, only = answer(places, CHANNELS), answer(places, ("dump",))
    assert [(c.rank, c.kind, c.collective) for c in whole.culprits] == [
        (c.rank, c.kind, c.collective) for c in only.culprits
    ]


def test_half_of_the_dumps_and_the_log(tmp_path):
    case = simulate.make(1, "host_stall", "tp", {"tp": 2, "cp": 2, "pp": 2, "dp": 2})
    dumps = case.write(tmp_path / "fr")
    places = record(tmp_path, dumps, Spelling(), (case.culprit,))
    for path in sorted(dumps.iterdir())[::2]:
        path.unlink()
    assert len(load_dumps([str(dumps)]).dumps) == 8
    assert ranks(answer(places, ("dump", "log"))) in ([], [case.culprit])
