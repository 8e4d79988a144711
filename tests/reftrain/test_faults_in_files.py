"""Planted faults that stand in a configuration's file, and cannot be planted: the refusal names file and entry."""

import json

import pytest
from click.testing import CliRunner
from tracekit_cli.exit_codes import of_error
from tracekit_cli.reftrain import reftrain

from reftrain.errors import ConfigError

GOOD = "slow_compute:rank=0,factor=2"
REFUSED = {
    "slow_compte:rank=0": "fault: no such kind 'slow_compte'; did you mean slow_compute?",
    "slow_compute:rank=2": "fault.rank: '2' is not a rank of a world of 2; give one of 0…1",
    "slow_compute:rank=1,steps=9:": "fault.steps: slow_compute would begin in step 9 of a run with last step 3; "
    "begin earlier, or raise run.steps",
    "host_stall:rank=1,axis=tp": "fault.axis: no rank communicates on tp: it has one rank; "
    "choose another axis, or a mesh with tp of 2 or more",
    "P99": "fault: no bug 'P99'; near it are",
    "P02:layer=0": "fault: P02 (",
}


def refusal(folder, faults, *words):
    """What `reftrain run` refuses with, given a file that lists `faults`."""
    file = folder / "run.toml"
    file.write_text(f"[mesh]\ndp = 2\n[evidence]\nfaults = {json.dumps(faults, ensure_ascii=False)}\n")
    out = folder / "out"
    done = CliRunner().invoke(reftrain, ["run", str(file), "--out", str(out), "--quiet", *words])
    assert isinstance(done.exception, ConfigError)
    assert of_error(done.exception) == 2
    assert not out.exists()
    return file, str(done.exception)


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
@pytest.mark.parametrize("entry", REFUSED)
def test_refused_entry_is_told_with_its_file(entry, words, tmp_path):
    file, told = refusal(tmp_path, [GOOD, entry, "host_stall:rank=1,axis=dp"], *words)
    assert told.startswith(f"{file}: evidence.faults {entry!r}: {REFUSED[entry]}")
    assert "; " in told  # a remedy


def test_first_of_several_entries_is_told(tmp_path):
    _, told = refusal(tmp_path, [GOOD, "slow_compute:rank=7", "slow_compute:rank=8"])
    assert "evidence.faults 'slow_compute:rank=7': fault.rank: '7' is not a rank" in told


def test_entries_that_have_no_end_are_cut(tmp_path):
    _, told = refusal(tmp_path, ["slow_compute:rank=0,factor=" + "x" * 500])
    assert f"evidence.faults '{'slow_compute:rank=0,factor=' + 'x' * 53}': fault.factor" in told


@pytest.mark.parametrize(
    "words", [("--fault", "slow_compute:rank=7"), ("--set", 'evidence.faults=["slow_compute:rank=7"]')]
)
def test_file_is_not_blamed_for_a_flag(words, tmp_path):
    file, told = refusal(tmp_path, [GOOD], *words)
    assert told.startswith("fault.rank: '7' is not a rank of a world of 2; ")
    assert str(file) not in told
