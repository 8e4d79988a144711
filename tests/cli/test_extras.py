"""Commands without the packages of extras: help always, else a refusal with the line that installs them."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from tests.house.source import ROOT
from tests.numerics.synthetic import Plan, write
from tests.wheel.extras import MODULES, ends, helps, uses
from tracekit.errors import MissingExtraError
from tracekit.installation import missing_extra

SAMPLE = ROOT / "sample_traces" / "slow_compute"
OPTIONS = {"--html", "--prometheus", "--perfetto", "--engine"}
REFUSED = 3


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extras")
    for name, tp in (("a", 2), ("b", 1)):
        write(folder / name, Plan(tp=tp, micro_batches=1, steps=1, level="digest"))
    return uses(SAMPLE, folder, folder)


def test_help_and_completion_need_no_extra():
    asked = helps()
    found = ends(MODULES, asked)
    assert {" ".join(words): end[:2] for words, end in zip(asked, found, strict=True) if end[0]} == {}


def test_a_missing_extra_is_named_with_its_remedy(calls):
    needing = [(extra, words) for extra, words in calls if extra]
    found = ends(MODULES, [words for _, words in needing])
    for (extra, words), (code, err, _) in zip(needing, found, strict=True):
        assert (code, f"pip install 'tracekit4d[{extra}]'" in err) == (REFUSED, True), (words, err)


@pytest.mark.parametrize("missing", [(), pytest.param(MODULES, marks=pytest.mark.slow)])
def test_what_needs_no_torch_does_not_import_it(calls, missing):
    free = [words for extra, words in calls if extra is None]
    for words, (code, err, imported) in zip(free, ends(missing, free), strict=True):
        assert code == (REFUSED if "advise" in words else 0), (words, err)
        assert "torch" not in imported, words


def test_answers_never_import_pandas():
    """Arrow imports it, half a second and 40 MB, for a literal, a dataset or the array of several chunks."""
    call = "import sys, tracekit as t; t.load(sys.argv[1]).slowrank(); t.hang(t.load_dumps(sys.argv[2:]))"
    samples = [ROOT / "sample_traces" / "demo_slow_tp", ROOT / "sample_traces" / "hang_host_stall" / "fr"]
    command = [sys.executable, "-c", f"{call}; print(*sys.modules)", *samples]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "pyarrow" in done.stdout.split()
    assert "pandas" not in done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("missing", MODULES)
def test_each_extra_alone_is_missed_by_its_commands(calls, missing):
    mine = [words for extra, words in calls if extra == missing] or [calls[0][1]]
    wanted = REFUSED if missing != "fast" else 0
    assert {end[0] for end in ends((missing,), mine)} == {wanted}


def test_an_old_package_is_no_fault_of_ours(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.13" if name == "torch" else "99")
    refusal = missing_extra(ImportError("no module", name="torch.distributed.pipelining"), "numerics compare")
    assert isinstance(refusal, MissingExtraError)
    assert re.search(r"needs torch 2\.11 or newer, 1\.13 is here; pip install", str(refusal))
    assert missing_extra(ImportError("no module", name="numerics.gone"), "numerics compare") is None


def test_the_module_of_another_package_is_named(monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", absent)
    monkeypatch.setattr("tracekit.installation.find_spec", lambda name: name)
    refusal = missing_extra(ImportError("no such name", name="hta.common.trace_parser"), "interop.hta")
    assert "needs traceinsight 0.6 or newer, the hta of another package is here; pip install" in str(refusal)


def test_docs_say_which_command_needs_which_extra(calls):
    rows = [line for line in (ROOT / "docs" / "index.md").read_text().splitlines() if line.startswith("| `")]
    for extra, words in calls:
        option = next((w for w in words[2:] if w in {"--model", *OPTIONS}), "")
        asked = option if option in OPTIONS else " ".join((*words[:2], option)).strip()
        holding = [row.split("`")[1] for row in rows if f"`{asked}`" in row]
        assert holding == ([extra] if extra else []), asked
