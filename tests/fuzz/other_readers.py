"""What `numerics` and `reftrain` read, damaged: captures, order plans, schedules, configurations, hardware."""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

import msgspec
import pyarrow.parquet as pq
from tracekit_cli.numerics_commands.advise import advise
from tracekit_cli.numerics_commands.compare import compare
from tracekit_cli.numerics_commands.replay import plan
from tracekit_cli.reftrain_commands.run import run
from tracekit_cli.reftrain_commands.schedule import schedule
from tracekit_cli.reftrain_commands.simulate import simulate

from numerics.order.order_plan import read_plan, write_plan
from reftrain.config.file import load
from reftrain.replay.declared_plan import declared_plan
from reftrain.schedule.csv_form import to_csv
from reftrain.schedule.generators import generate
from reftrain.schedule.lower import lower
from reftrain.schedule.spec import ScheduleSpec
from reftrain.schedule.text_form import to_text
from tests.fuzz.mutate import BOUNDS, damaged, in_document, in_text, put_table
from tests.fuzz.outcome import KEPT
from tests.fuzz.readers import Damage, Input
from tests.reftrain.test_tokens import arrow, megatron, parquet

PAIRS = 0.8
"""Share of captures that are compared with another one."""
TABLES = {
    "model": {
        "preset": "tiny",
        "layers": 2,
        "dim": 64,
        "heads": 4,
        "kv_heads": 2,
        "rope_base": 5e5,
        "bias": False,
    },
    "mesh": {
        "tp": 1,
        "cp": 1,
        "pp": 2,
        "dp": 1,
        "order": ["tp", "cp", "pp", "dp"],
        "zero": 1,
        "bucket_mb": 0.0,
    },
    "pipeline": {"schedule": "1f1b", "virtual_stages": 1, "consecutive": 0, "layers_per_stage": [1, 1]},
    "data": {
        "batch_size": 4,
        "seq_len": 32,
        "micro_batch_size": 1,
        "mean_document": 24,
        "padding": 0.25,
        "seed": 1,
    },
    "numerics": {"policy": "bf16", "recompute": "none"},
    "optimizer": {"clip_norm": 1.0, "warmup_steps": 2, "beta1": 0.9},
    "checkpoint": {"every": 0, "keep": 2},
    "evidence": {"trace_steps": [1], "faults": ["slow_compute:rank=0,factor=1.5"], "capture": "digest"},
    "run": {"steps": 2, "seed": 0, "threads": 1, "compute": "real"},
}


@cache
def _captured() -> Path:
    """Two runs of a made-up trainer, each with a capture."""
    from tests.numerics.synthetic import Plan, write

    folder = Path(mkdtemp(prefix="fuzzcapture", dir=KEPT))
    for name, tp in (("a", 2), ("b", 1)):
        write(folder / name, Plan(tp=tp, micro_batches=1, steps=1, level="tensors"))
    return folder


def capture(rng: Random, folder: Path) -> Input:
    """Two captures of which one has a damaged stamp, table or file of values."""
    for path in _captured().rglob("*.*"):
        to = folder / path.relative_to(_captured())
        to.parent.mkdir(parents=True, exist_ok=True)
        to.hardlink_to(path)
    path = rng.choice(sorted((folder / "a").rglob("*.*")))
    data = path.read_bytes()
    path.unlink()
    if path.suffix == ".json":
        path.write_bytes(in_text(json.loads(data), rng))
    elif path.suffix == ".parquet" and rng.random() < 0.7:
        whole = _captured() / path.relative_to(folder)
        put_table(pq.read_table(whole), path, rng)
    else:
        path.write_bytes(damaged(data, rng))
    runs = ["--parallel", str(folder / "a"), "--baseline", str(folder / "b")]
    form = rng.choice(
        (["--json", "-"], ["--verbose"], ["--markdown", "-"], ["--html", str(folder / "page.html")])
    )
    return Input(compare, [*(runs if rng.random() < PAIRS else runs[:2]), "--no-replay", "--quiet", *form])


def shadow_sums(rng: Random, folder: Path) -> Input:
    """A run of two ranks whose gradients were summed in three formats; one file is damaged."""
    from tests.numerics.test_advise import write

    for rank in range(2):
        write(folder, rank=rank, world=2)
    path = folder / "shadow" / f"rank{rng.randrange(2):05d}.json"
    path.write_bytes(in_text(json.loads(path.read_text()), rng))
    return Input(advise, [str(folder), *rng.choice((["--json", "-"], ["--verbose"]))])


@cache
def _plans() -> Path:
    folder = Path(mkdtemp(prefix="fuzzplan", dir=KEPT))
    write_plan(folder, declared_plan(load(None, {"mesh": {"tp": 2, "dp": 2}}), None))
    return folder


def order_plan(rng: Random, folder: Path) -> Input:
    """Two order plans, one of them damaged."""
    whole = (_plans() / "order_plan.json").read_bytes()
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "order_plan.json").write_bytes(whole if name == "b" else in_text(_plan(), rng))
    runs = [str(folder / n) for n in (("a", "b") if rng.random() < 0.5 else ("b", "a"))]
    return Input(plan, [*runs, "--json", "-"])


@cache
def _plan() -> Any:
    return msgspec.json.decode(msgspec.json.encode(read_plan(_plans())))


@cache
def _schedules() -> list[tuple[str, str]]:
    tables = [
        generate(ScheduleSpec(n, 2, 4, v, 2)) for n, v in (("1f1b", 1), ("interleaved", 2), ("zb_h1", 1))
    ]
    tables += [lower(tables[0], 1, "eager_opt"), lower(tables[2], 2, "eager_opt")]
    return [(end, to(t)) for t in tables for end, to in ((".csv", to_csv), (".txt", to_text))]


def table_of_schedule(rng: Random, folder: Path) -> Input:
    """A schedule's table with words dropped, repeated, exchanged or damaged."""
    end, text = rng.choice(_schedules())
    path = folder / f"table{end}"
    between = "," if end == ".csv" else " "
    lines = [line.split(between) for line in text.splitlines()]
    for _ in range(rng.choice((1, 1, 2, 6))):
        row = rng.choice(lines)
        at = rng.randrange(len(row)) if row else 0
        kind = rng.random()
        if kind < 0.2 and row:
            del row[at]
        elif kind < 0.4:
            row.insert(at, rng.choice(rng.choice([r for r in lines if r] or [["F0"]])))
        elif kind < 0.5:
            lines.insert(rng.randrange(len(lines)), list(row))
        elif kind < 0.8 and row:
            new = str(rng.choice((*BOUNDS[:-1], 1, 7, 9999999)))
            row[at] = "".join(new if c.isdigit() and rng.random() < 0.5 else c for c in row[at])
        elif row:
            row[at] = damaged(row[at].encode(), rng).decode("utf-8", "replace")
    data = "\n".join(between.join(row) for row in lines).encode()
    path.write_bytes(damaged(data, rng) if rng.random() < 0.1 else data)
    return Input(schedule, [str(path), "--json", "-"])


def _toml(tables: Any, rng: Random) -> bytes:
    """TOML of tables whose values JSON writes as TOML does; what is none is damage as well."""
    lines = []
    for name, table in tables.items() if isinstance(tables, dict) else ():
        if isinstance(table, dict):
            lines.append(f"[{name}]")
            lines += [f"{key} = {json.dumps(value, default=str)}" for key, value in table.items()]
        else:
            lines.insert(0, f"{name} = {json.dumps(table, default=str)}")
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    return damaged(data, rng) if rng.random() < 0.2 else data


def configuration(rng: Random, folder: Path) -> Input:
    """A configuration of a run with strange values."""
    path = folder / "config.toml"
    path.write_bytes(_toml(in_document(TABLES, rng), rng))
    if rng.random() < 0.3:
        return Input(simulate, [str(path), "--steps", "1", "--quiet", "--json", "-"])
    return Input(run, [str(path), "--dry-run", "--quiet", "--out", str(folder / "out")])


@cache
def _machine() -> Any:
    import tomllib

    found = tomllib.loads((resources.files("reftrain.cost.hardware") / "h100.toml").read_text("utf-8"))
    return dict(sorted(found.items(), key=lambda item: isinstance(item[1], dict)))


def hardware(rng: Random, folder: Path) -> Input:
    """A machine with strange numbers."""
    path = folder / "machine.toml"
    path.write_bytes(_toml(in_document(_machine(), rng), rng))
    sizes = ["--preset", "tiny", "--mesh", "tp=2,pp=2", "--steps", "1"]
    return Input(simulate, [*sizes, "--hardware", str(path), "--quiet", "--json", "-"])


def tokens(rng: Random, folder: Path) -> Input:
    """A tokenised data set of one of its forms, damaged in its index, its column, or its tokens."""
    write = rng.choice([megatron, megatron, parquet, arrow])
    path = write(folder)
    if write is megatron and rng.random() < 0.2:
        path = path.with_suffix(".bin")
    path.write_bytes(damaged(path.read_bytes(), rng))
    sizes = ["--set", "model.vocab_size=100", "--set", "data.eos=99", "--set", "data.seq_len=16"]
    return Input(run, ["--data", str(path), *sizes, "--dry-run", "--out", str(folder / "out")])


OTHERS: Mapping[str, Damage] = {
    "capture": capture, "order plan": order_plan, "schedule": table_of_schedule, "TOML of a run": configuration,
    "TOML of a machine": hardware, "shadow sums": shadow_sums,
    "tokens": tokens,
}  # fmt: skip
