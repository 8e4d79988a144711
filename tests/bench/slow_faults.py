"""What `tracekit slowrank` says of every slow fault on sixteen ranks: `python -m tests.bench.slow_faults`.

Each case is run and the answer is judged by the truth in run.json. The lag is measured in a second run, untraced, in
which the fault strikes every other step: two runs of sixteen ranks on shared cores differ by more than what is to be
measured, steps that take turns hardly. The table goes to stdout as Markdown, each case as it ends also to --jsonl.
"""

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from reftrain.errors import ReftrainError
from reftrain.job.demo import LONG_SEQUENCES, WARM_UP, demo_config
from reftrain.job.lag import step_ms
from reftrain.job.launcher import launch

RANK = 5
STEPS = {"emulated": 4, "real": 8}  # traced
PAIRS = {"emulated": 4, "real": 12}  # of steps with and without the fault, by which the lag is measured

EMULATED = {
    "none": None,
    "slow_compute": f"slow_compute:rank={RANK},factor=1.2",
    "launch_bound": f"launch_bound:rank={RANK},delay_us=300",
    "pauses": f"pauses:rank={RANK},pause_ms=60,every=8",
    "late_data": f"late_data:rank={RANK},delay_ms=600",
    "slow_link": f"slow_link:rank={RANK},delay_ms=5",
    "long_stage": "long_stage:factor=1.2",
    "doc_imbalance": "doc_imbalance:factor=12",
}
"""Faults at about 1.2 times the rank's own time, where computing is emulated."""

REAL = {
    "none": None,
    "slow_compute": f"slow_compute:rank={RANK},factor=3.5",
    "launch_bound": f"launch_bound:rank={RANK},delay_us=80",
    "pauses": f"pauses:rank={RANK},pause_ms=60,every=8",
    "late_data": f"late_data:rank={RANK},delay_ms=250",
    "slow_link": f"slow_link:rank={RANK},delay_ms=5",
    "long_stage": "long_stage:factor=1.25",
    "doc_imbalance": "doc_imbalance:factor=8",
}
"""Faults whose measured lag is about a tenth of the step, where sixteen ranks really compute on two cores."""

REAL_TABLES: dict[str, dict[str, Any]] = {
    "model": {"dim": 128, "ffn_dim": 512, "vocab_size": 64},
    "data": {"seq_len": 256, "mean_document": 32},
    "numerics": {"attention": "documents"},
    "run": {"compute": "real"},
}

REAL_LONG_SEQUENCES: dict[str, dict[str, Any]] = {
    **REAL_TABLES,
    "model": {"dim": 128, "ffn_dim": 128, "vocab_size": 64},
    "data": {"seq_len": 2048, "mean_document": 256},
}
"""Where pairs of tokens decide what attention costs, and not the number of documents: fewer are cheaper to start."""

EXPECTED = {
    "none": ("healthy", None),
    "slow_compute": ("slow_rank", "gpu_compute"),
    "launch_bound": ("slow_rank", "cpu_launch"),
    "pauses": ("slow_rank", "host_stall"),
    "late_data": ("slow_rank", "dataloader"),
    "slow_link": ("slow_link", "network"),
    "long_stage": ("imbalance", "stage_imbalance"),
    "doc_imbalance": ("imbalance", "data_imbalance"),
}
"""Verdict and cause that the truth asks for; a slow rank or link must name `RANK` first."""


def tables_of(compute: str, kind: str) -> dict[str, dict[str, Any]]:
    """Overrides of a case's configuration."""
    if compute == "real":
        return REAL_LONG_SEQUENCES if kind == "doc_imbalance" else REAL_TABLES
    return LONG_SEQUENCES if kind == "doc_imbalance" else {}


def judge(kind: str, answer: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the right rank (or none) was blamed, and whether the cause is right as well."""
    verdict, cause = EXPECTED[kind]
    named = [suspect["rank"] for suspect in answer["suspects"]]
    right = answer["verdict"] == verdict
    if verdict in {"slow_rank", "slow_link"}:
        right = right and RANK in named and (verdict == "slow_link" or named[0] == RANK)
    return right, right and answer["cause"] == cause


def measured_lag(fault: str, overrides: dict[str, dict[str, Any]], pairs: int) -> tuple[float, float]:
    """Share of a step by which one with the fault is longer than the next one without it, and its standard error."""
    with tempfile.TemporaryDirectory(prefix="slow-faults-lag-") as folder:
        untraced = {**overrides, "evidence": {"measure_lag": False, "trace_steps": []}}
        launch(demo_config(Path(folder), 2 * pairs, [f"{fault},steps={WARM_UP}::2"], untraced), lambda _: [])
        times = step_ms(Path(folder), list(range(WARM_UP, WARM_UP + 2 * pairs)))
    slow, usual = times[0::2], times[1::2]
    differences = [a - b for a, b in zip(slow, usual, strict=True)]
    mean = statistics.fmean(slow)
    return statistics.fmean(differences) / mean, statistics.stdev(differences) / math.sqrt(pairs) / mean


def run_case(
    folder: Path,
    kind: str,
    fault: str | None,
    overrides: dict[str, dict[str, Any]],
    compute: str,
    *,
    lag_too: bool,
) -> dict[str, Any]:
    """One run and what slowrank says of it, and one by which its lag is measured."""
    faults = [] if fault is None else [fault]
    apart = {**overrides, "evidence": {"measure_lag": False}}
    launch(demo_config(folder, STEPS[compute], faults, apart), lambda _: [])
    lag = measured_lag(fault, overrides, PAIRS[compute]) if fault and lag_too else (None, None)
    program = "import sys; from tracekit_cli.tracekit import main; sys.argv[0] = 'tracekit'; main()"
    command = [sys.executable, "-c", program, "slowrank", str(folder), "--json", "-", "--quiet"]
    answer = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    )
    rank, cause = judge(kind, answer)
    named = [suspect["rank"] for suspect in answer["suspects"]]
    return {
        "fault": fault or "none",
        "step_ms": answer["steps"]["median_ms"],
        "lag_share": lag[0],
        "lag_error": lag[1],
        "verdict": answer["verdict"],
        "cause": answer["cause"],
        "named": named,
        "cost_share": 1 - answer["what_if"]["without_suspects_ms"] / answer["what_if"]["step_ms"],
        "rank_right": rank,
        "cause_right": cause,
    }


def row(compute: str, case: dict[str, Any]) -> str:
    """One line of the table."""
    lag = "" if case["lag_share"] is None else f"{case['lag_share']:.1%} ± {case['lag_error']:.1%}"
    named = ", ".join(map(str, case["named"])) or "nobody"
    right = "yes" if case["cause_right"] else ("rank only" if case["rank_right"] else "no")
    return (
        f"| {compute} | `{case['fault']}` | {case['step_ms']:.0f} | {lag} | {case['verdict']} | {case['cause'] or ''} "
        f"| {named} | {case['cost_share']:.1%} | {right} |"
    )


HEAD = """| computing | fault | step ms | measured lag | verdict | cause | named | cost found | right |
|---|---|---|---|---|---|---|---|---|"""


def main() -> None:
    """Run the cases asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compute", choices=["emulated", "real"], action="append")
    parser.add_argument("--kinds", help="comma-separated; all if left out")
    parser.add_argument("--no-lag", action="store_true", help="leave out the second run, which measures it")
    parser.add_argument("--keep", type=Path, help="folder to keep the runs in")
    parser.add_argument("--jsonl", type=Path, help="file to append each case to")
    given = parser.parse_args()
    print(HEAD, flush=True)
    for compute in given.compute or ["emulated", "real"]:
        cases = EMULATED if compute == "emulated" else REAL
        for kind in given.kinds.split(",") if given.kinds else cases:
            scratch = Path(tempfile.mkdtemp(prefix="slow-faults-"))
            try:
                tables = tables_of(compute, kind)
                case = run_case(scratch, kind, cases[kind], tables, compute, lag_too=not given.no_lag)
                print(row(compute, case), flush=True)
                if given.keep:
                    shutil.rmtree(given.keep / f"{compute}_{kind}", ignore_errors=True)
                    shutil.copytree(scratch, given.keep / f"{compute}_{kind}")
                if given.jsonl:
                    with given.jsonl.open("a") as out:
                        out.write(json.dumps({"compute": compute, "kind": kind, **case}) + "\n")
            except (ReftrainError, subprocess.SubprocessError) as error:
                print(f"| {compute} | {kind} | failed: {error} |", flush=True)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
