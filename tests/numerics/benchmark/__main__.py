"""Runs the benchmark: resumes where results are, writes one JSON file a case and the table."""

import argparse
import json
import re
import shutil
import time
from pathlib import Path

from numerics.comparison.compare import Options, compare
from numerics.report.json import compare_document
from reftrain.config.file import load
from tests.numerics.benchmark.benign import BENIGN
from tests.numerics.benchmark.bugs import bug_cases
from tests.numerics.benchmark.case import BASE, Case, merged
from tests.numerics.benchmark.others import verdicts
from tests.numerics.benchmark.outside import OUTSIDE
from tests.numerics.benchmark.replays import replay, replay_elsewhere
from tests.numerics.benchmark.runs import DONE, Runs
from tests.numerics.benchmark.score import score
from tests.numerics.benchmark.table import table


def all_cases() -> list[Case]:
    """Bugs of the catalogue, bugs from outside, benign changes."""
    return [*bug_cases(), *(patch.case() for patch in OUTSIDE), *BENIGN]


def measure(case: Case, runs: Runs, *, keep: bool) -> dict[str, object]:
    """Make the case's runs, compare them, ask the other rules, score."""
    begin = time.perf_counter()
    patch = next((patch for patch in OUTSIDE if patch.name == case.patch), None)
    source = patch.apply(runs.folder / "source").absolute() if patch else None
    baseline, parallel = runs.baseline(case), runs.parallel(case, source)
    made = time.perf_counter()
    config = load(None, merged(BASE, case.parallel, {"run": {"out": str(parallel)}}))
    folder = parallel / "replay"
    if not (folder / DONE).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        if source is not None:
            replay_elsewhere(parallel, folder, source)
        else:
            runs.pool.run(replay, 1, str(parallel), str(folder), timeout=400)
        (folder / DONE).touch()
    replayed = time.perf_counter()
    document = compare_document(compare(parallel, baseline, Options(replay=folder)))
    compared = time.perf_counter()
    others = verdicts(parallel, baseline, config.numerics.policy)
    result = {
        "name": case.name,
        "what": case.what,
        "bug": case.is_bug,
        "expected": list(case.verdicts),
        "score": score(case, document).to_json(),
        "others": others,
        "seconds": {
            "run": round(made - begin, 2),
            "replay": round(replayed - made, 2),
            "compare": round(compared - replayed, 2),
        },
        "document": {k: v for k, v in document.items() if k not in {"modules", "worst", "runs"}},
    }
    if not keep:
        shutil.rmtree(parallel, ignore_errors=True)
    return result


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
    results = options.out / "results"
    results.mkdir(parents=True, exist_ok=True)
    cases = [case for case in all_cases() if re.search(options.only, case.name)]
    runs = Runs((options.out / "runs").absolute())
    try:
        for case in [] if options.table else cases:
            path = results / (re.sub(r"[^\w.=-]+", "_", case.name) + ".json")
            if path.is_file() and not options.again:
                continue
            try:
                result = measure(case, runs, keep=options.keep)
            except Exception as error:  # noqa: BLE001 - a case that cannot be measured counts as missed
                result = {
                    "name": case.name,
                    "what": case.what,
                    "bug": case.is_bug,
                    "error": str(error)[-800:],
                }
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            got = result.get("score", {"verdict": "ERROR " + str(result.get("error"))[-300:]})
            print(f"{case.name}: {got}", flush=True)
    finally:
        runs.close()
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    known = {case.name for case in all_cases()}
    text = table([result for result in found if result["name"] in known])
    (options.out / "table.md").write_text(text, encoding="utf-8")
    if options.docs:
        head, marker, _ = options.docs.read_text(encoding="utf-8").partition("<!-- results -->\n")
        options.docs.write_text(f"{head}{marker}\n{text}", encoding="utf-8")
    print(text.split("\n\n")[0])


if __name__ == "__main__":
    main()
