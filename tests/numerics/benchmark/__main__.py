"""Runs the benchmark: resumes where results are, writes one JSON file a case and the table."""

import argparse
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from numerics.comparison.compare import Options, compare
from numerics.report.json import compare_document
from reftrain.config.file import load
from tests.numerics.benchmark import foreign
from tests.numerics.benchmark.benign import BENIGN
from tests.numerics.benchmark.bugs import bug_cases
from tests.numerics.benchmark.case import BASE, Case, merged
from tests.numerics.benchmark.changed import changed_cases
from tests.numerics.benchmark.foreign import foreign_cases
from tests.numerics.benchmark.others import verdicts
from tests.numerics.benchmark.outside import OUTSIDE
from tests.numerics.benchmark.replays import replay_maker
from tests.numerics.benchmark.runs import Runs
from tests.numerics.benchmark.score import score
from tests.numerics.benchmark.table import table


def all_cases() -> list[Case]:
    """Bugs of the catalogue, bugs from outside, changes of source, benign layouts, and a trainer of somebody else."""
    return [
        *bug_cases(),
        *(patch.case() for patch in OUTSIDE),
        *changed_cases(),
        *BENIGN,
        *foreign_cases(),
    ]


def measure(case: Case, runs: Runs, *, keep: bool) -> dict[str, object]:
    """Make the case's runs, compare them, ask the other rules, score."""
    if case.trainer:
        document, more = foreign.measure(case, runs)
    else:
        document, more = measure_own(case, runs, keep=keep)
    return {
        "name": case.name,
        "what": case.what,
        "bug": case.is_bug,
        "expected": list(case.verdicts),
        "score": score(case, document).to_json(),
        **more,
        "document": {k: v for k, v in document.items() if k not in {"modules", "worst", "runs"}},
    }


def measure_own(case: Case, runs: Runs, *, keep: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer to a case of reftrain as JSON, and what other rules say, with seconds."""
    begin = time.perf_counter()
    patch = next((patch for patch in OUTSIDE if patch.name == case.patch), None)
    source = patch.apply(runs.folder / "source").absolute() if patch else None
    baseline, parallel = runs.baseline(case), runs.parallel(case, source)
    moved = None if case.parallel.get("evidence", {}).get("capture") == "digest" else runs.perturbed(case)
    made = time.perf_counter()
    config = load(None, merged(BASE, case.parallel, {"run": {"out": str(parallel)}}))
    finding = compare(parallel, baseline, Options(make_replay=replay_maker(runs, source)))
    compared = time.perf_counter()
    others, multiple = verdicts(parallel, baseline, config.numerics.policy, moved)
    if not keep:
        shutil.rmtree(parallel, ignore_errors=True)
    return compare_document(finding), {
        "others": others,
        "multiple": multiple,
        "seconds": {"run": round(made - begin, 2), "compare": round(compared - made, 2)},
    }


def state_of_source() -> str:
    """The commit that is measured; `+` follows where files differ from it."""
    git = [shutil.which("git") or "git"]
    head = subprocess.run(
        [*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True
    )
    dirty = subprocess.run(
        [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True
    )
    return head.stdout.strip() + "+" * bool(dirty.stdout.strip())


def measured(path: Path, commit: str) -> bool:
    """Whether a case has a result of this very commit."""
    return path.is_file() and json.loads(path.read_text(encoding="utf-8")).get("commit") == commit


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.numerics.benchmark")
    parser.add_argument("--out", type=Path, default=Path("bench_numerics"))
    parser.add_argument("--only", default="", help="regular expression of case names")
    parser.add_argument("--again", action="store_true", help="repeat cases that have a result")
    parser.add_argument("--keep", action="store_true", help="keep the parallel runs' folders")
    parser.add_argument("--docs", type=Path, help="Markdown file whose results are replaced")
    parser.add_argument("--table", action="store_true", help="only write the table")
    options = parser.parse_args()
    if options.docs and not options.docs.is_file():
        parser.error(f"--docs {options.docs}: no such file; its results are replaced, so it must exist")
    results = options.out / "results"
    results.mkdir(parents=True, exist_ok=True)
    commit = state_of_source()
    if not options.table:
        make_all(options, results, commit)
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    known = {case.name for case in all_cases()}
    text = table([result for result in found if result["name"] in known])
    (options.out / "table.md").write_text(text, encoding="utf-8")
    if options.docs:
        head, marker, _ = options.docs.read_text(encoding="utf-8").partition("<!-- results -->\n")
        options.docs.write_text(f"{head}{marker}\n{text}", encoding="utf-8")
    print(text.split("\n\n")[0])


def make_all(options: argparse.Namespace, results: Path, commit: str) -> None:
    """Measure the cases that have no result of this commit yet."""
    cases = [case for case in all_cases() if re.search(options.only, case.name)]
    runs = Runs((options.out / "runs").absolute())
    try:
        for number, case in enumerate(cases, 1):
            path = results / (re.sub(r"[^\w.=-]+", "_", case.name) + ".json")
            if not options.again and measured(path, commit):
                continue
            try:
                result = measure(case, runs, keep=options.keep)
            except Exception as error:  # noqa: BLE001 - a case that cannot be measured counts as missed
                told = {"name": case.name, "what": case.what, "bug": case.is_bug}
                result = {
                    **told,
                    "expected": list(case.verdicts),
                    "error": f"{type(error).__name__}: {error}"[-800:],
                }
            result["commit"] = commit
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            got = result.get("score", {"verdict": "ERROR " + str(result.get("error"))[-300:]})
            print(f"{number}/{len(cases)} {case.name}: {got}", flush=True)
    finally:
        runs.close()


if __name__ == "__main__":
    main()
