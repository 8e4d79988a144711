"""A DDP trainer of somebody else as cases: the local proof of its changes, answered by `numerics compare --model`."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numerics.comparison.compare import Options, compare
from numerics.local.model_source import build_model
from numerics.local.proof import prove
from numerics.report.json import compare_document
from tests.numerics.benchmark.case import Case, Where
from tests.numerics.benchmark.others import verdicts
from tests.numerics.benchmark.runs import LONGEST, Runs
from tests.numerics.local.changes import BENIGN, BUGS
from tests.numerics.local.trainers import PERTURBED, trained

WORLD = 3


def foreign_cases() -> Iterator[Case]:
    """Changes of the trainer's model: the same function computed otherwise, and bugs."""
    for name in BENIGN:
        yield Case(f"F {name}", name, {}, {}, ("rounding", "drift", "identical"), trainer=name)
    for name, (_, tensor) in BUGS.items():
        place = (tensor or r".*\.grad").replace(".", r"\.") if tensor else r".*\.grad"
        yield Case(
            f"F {name}", name, {}, {}, ("bug",), Where(place, place.rpartition(r"\.")[0]), trainer=name
        )


def measure(case: Case, runs: Runs) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer to a case as JSON, and what other rules say, with seconds."""
    begin = time.perf_counter()
    baseline, moved = (_made(runs, name) for name in ("", PERTURBED))
    run = _made(runs, case.trainer)
    made = time.perf_counter()
    model, optimizer = build_model("tests.numerics.local.model:build")
    found = compare(run, None, Options(prove=lambda columns: prove(columns, model, optimizer)))
    compared = time.perf_counter()
    others, multiple = verdicts(run, baseline, "fp32", moved)
    return compare_document(found), {
        "others": others,
        "multiple": multiple,
        "seconds": {"run": round(made - begin, 2), "compare": round(compared - made, 2)},
    }


def _made(runs: Runs, name: str) -> Path:
    folder = runs.folder / f"foreign-{name.replace(' ', '_').replace('%', 'pc') or 'sound'}"
    if not (folder / "done").is_file():
        runs.pool.run(trained, WORLD, "ddp", folder, name, timeout=LONGEST)
        (folder / "done").touch()
    return folder
