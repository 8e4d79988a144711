"""The public API: names, signatures and fields of what programs import; a change here is a change for users."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import tracekit

ROOT = Path(__file__).parents[2]

NAMES = {
    "BreakdownFinding", "DiffFinding", "DumpSet", "FloorFinding", "HangFinding", "InputError", "MeshError",
    "PlacesFinding", "Run", "SlowRankFinding", "TracekitError", "TrendFinding", "TriageFinding", "UsageError",
    "WhatIfFinding", "breakdown", "diff", "findings", "floor", "hang", "interop", "load", "load_dumps", "operations",
    "places", "slowrank", "trend", "triage", "whatif",
}  # fmt: skip
SIGNATURES = {
    "load": ["inputs", "out=None", "jobs=1", "progress=None", "job=None", "engine=None", "append=False"],
    "slowrank": [
        "run",
        "mesh=None",
        "order=None",
        "steps=None",
        "progress=None",
        "explain=False",
        "hosts=None",
        "hardware=None",
    ],
    "whatif": ["run", "fix=()", "mesh=None", "order=None", "steps=None", "progress=None", "layouts=()"],
    "breakdown": ["run", "mesh=None", "order=None", "steps=None", "progress=None"],
    "floor": [
        "run",
        "mesh=None",
        "order=None",
        "steps=None",
        "progress=None",
        "flops=None",
        "peak_tflops=None",
        "plan=None",
    ],
    "diff": ["before", "after", "mesh=None", "order=None", "steps=None", "progress=None"],
    "trend": ["run", "mesh=None", "order=None", "steps=None", "progress=None"],
    "operations": ["run", "mesh=None", "order=None", "steps=None", "progress=None"],
    "places": ["run", "mesh=None", "order=None", "progress=None"],
    "load_dumps": ["inputs", "jobs=1", "progress=None", "timed=False", "job=None"],
    "hang": ["dumps", "mesh=None", "order=None"],
    "triage": [
        "inputs",
        "mesh=None",
        "order=None",
        "jobs=1",
        "progress=None",
        "job=None",
        "hosts=None",
        "hardware=None",
    ],
}
FINDINGS = {
    "SlowRankFinding": (
        "ranks mesh steps verdict cause reason path suspects what_if quality notes coverage candidates to_decide "
        "explanation to_record on_gpu cures network_parts expert_waits"
    ),
    "Suspect": (
        "rank host coords lost_ms_per_step confidence steps cause evidence lost_ms_low lost_ms_high mechanisms causes"
    ),
    "Cure": "cause ranks saved_ms saved_ms_low saved_ms_high step_ms",
    "Mechanism": "name share detail sure",
    "ExpertWaits": "ranks ms",
    "NetworkPart": "kind name ranks",
    "Coverage": "matched by_axis",
    "Evidence": "what value peers_median unit quantity",
    "PathLevel": "dim index lag_ms",
    "StepsFinding": "analysed median_ms",
    "WhatIf": "step_ms without_suspects_ms slowdown",
    "WhatIfFinding": "ranks mesh steps step_ms residual_ms answers together coverage quality notes",
    "WhatIfAnswer": (
        "question meaning ranks without_ms without_ms_low without_ms_high slowdown lost_ms lost_ms_low lost_ms_high "
        "share proven"
    ),
    "BreakdownFinding": "ranks mesh steps total shares by_rank cells traffic volumes coverage quality notes",
    "TimeParts": "step_ns compute_ns exposed bubble_ns host_ns idle_ns unknown_ns",
    "ExposedTime": "axis wait_ns transfer_ns open_ns",
    "Share": "part mean_ns share least median most",
    "StepBreakdown": "rank step parts",
    "RankBreakdown": "rank host coords steps parts communication_ns hidden_ns",
    "Traffic": (
        "axis op members rank_steps calls unsized bytes moved_bytes exposed_ns algorithm_gb_s bus_gb_s"
    ),
    "Volume": "axis what phi recorded formula scheme expected times fits",
    "HangFinding": (
        "ranks mesh verdict reason culprits first_group victims quality groups last_done notes candidates to_decide"
        " open_calls waits"
    ),
    "Culprit": "rank host kind group collective last_enqueued group_enqueued last_completed stack sides how",
    "GroupRef": "name desc dim ranks",
    "CallRef": "op seq input_sizes dtype",
    "Side": "ranks text stack place",
    "GroupFrontier": "group enqueued completed waiting behind missing",
    "LastDone": "rank group op seq",
    "RankCoverage": "expected read missing rejected",
    "Rejected": "path reason rank",
    "MeshFinding": "order sizes source parts programs",
    "Quality": "kind path count detail kept_events",
}
CHOICES = {
    "Verdict": {"healthy", "slow_rank", "slow_link", "imbalance", "inconclusive"},
    "HangVerdict": {"hang", "mismatch", "none", "inconclusive"},
    "CulpritKind": {
        "host_stalled",
        "device_stalled",
        "mismatched_call",
        "missing_dump",
        "died",
        "never_joined",
    },
    "MeshSource": {"process_groups", "flag", "manifest", "flat_world"},
    "Cause": {
        "gpu_compute", "cpu_launch", "cpu_contention", "host_stall", "dataloader", "network", "data_imbalance",
        "stage_imbalance", "memory", "host_copies", "unknown",
    },
}  # fmt: skip


def signature(function):
    """Parameters as `name` or `name=default`."""
    return [
        name if parameter.default is parameter.empty else f"{name}={parameter.default!r}"
        for name, parameter in inspect.signature(function).parameters.items()
    ]


def python(text):
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, cwd=ROOT, timeout=120
    ).stdout


def test_names_are_frozen():
    assert set(tracekit.__all__) == set(dir(tracekit)) == NAMES
    assert all(getattr(tracekit, name) is not None for name in NAMES)
    with pytest.raises(AttributeError, match="has no attribute 'slow_rank'"):
        _ = tracekit.slow_rank


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_frozen_and_documented(name):
    function = getattr(tracekit, name)
    assert signature(function) == SIGNATURES[name]
    documented = inspect.getdoc(function)
    assert "Raises" in documented.split()
    assert [
        word.partition("=")[0] for word in SIGNATURES[name][1:] if word.partition("=")[0] not in documented
    ] == []


@pytest.mark.parametrize("name", FINDINGS)
def test_fields_of_findings_are_frozen(name):
    kind = getattr(tracekit.findings, name)
    assert [field.name for field in dataclasses.fields(kind)] == FINDINGS[name].split()
    assert kind.__dataclass_params__.frozen


@pytest.mark.parametrize("name", CHOICES)
def test_words_of_findings_are_frozen(name):
    assert set(get_args(getattr(tracekit.findings, name))) == CHOICES[name]


def test_every_finding_is_listed():
    assert set(tracekit.findings.__all__) == set(FINDINGS) | set(CHOICES)


def test_methods_of_runs_and_findings_are_frozen():
    assert signature(tracekit.interop.hta) == ["run", "include_last_profiler_step=False"]
    assert all(
        hasattr(tracekit.Run, name) for name in ("breakdown", "events", "operations", "slowrank", "whatif")
    )
    assert all(hasattr(tracekit.SlowRankFinding, name) for name in ("to_arrow", "to_pandas", "_repr_html_"))


def test_import_of_tracekit_is_light():
    loaded = set(python("import sys, tracekit; print(*sys.modules)").split())
    assert {name for name in loaded if name.startswith("tracekit.")} == {"tracekit.errors"}
    assert loaded & {"numpy", "pyarrow", "scipy"} == set()


def test_answers_about_devices_load_no_pandas(tmp_path):
    job = "simulate --preset tiny --mesh dp=4 --micro-batches 2 --steps 2 --fault slow_compute:rank=1 --quiet"
    words = ["reftrain", *job.split(), "--out", str(tmp_path / "job")]
    python(f"import sys; sys.argv = {words}; from tracekit_cli.reftrain import main; main()")
    asked = f"import sys, tracekit; tracekit.load({str(tmp_path / 'job')!r}).slowrank()"
    assert python(f"{asked}; print('pandas' in sys.modules)").split() == ["False"]


def test_functions_stay_functions_after_every_import():
    for module in pkgutil.walk_packages(tracekit.__path__, "tracekit."):
        importlib.import_module(module.name)
    assert all(inspect.isfunction(getattr(tracekit, name)) for name in SIGNATURES)
    rooms = {module.name for module in pkgutil.iter_modules(tracekit.__path__)}
    assert rooms & (NAMES - {"findings", "interop"}) == set()


def test_readme_snippet_runs(monkeypatch, capsys):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(import tracekit\n.*?)```", readme, re.DOTALL)
    assert "sample_traces/slow_compute" in snippet
    monkeypatch.chdir(ROOT)
    exec(compile(snippet, "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[0] == "slow_rank [5]"


def test_load_takes_one_path_or_several():
    sample = ROOT / "sample_traces" / "demo_slow_tp" / "trace" / "rank0.json.gz"
    runs = [tracekit.load(given) for given in (str(sample), sample, [sample], (str(sample),))]
    assert [[r.rank for r in run.ranks] for run in runs] == [[0]] * 4
