"""Every scheme run by real processes and compared with one process in float64.

`python -m tests.schedule.execution [SCHEME…]` (make sweep) runs p = 2, 3, 4 and m = 1 … 3p of every scheme and prints
a table; the tests take p = 2 and 4 and m = 1, p, 2p + 1.
"""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from reftrain.config.file import load
from reftrain.config.run import RunConfig
from reftrain.errors import ScheduleError
from reftrain.schedule.registry import SCHEMES
from tests.ranks.pool import RankPool
from tests.reftrain import plain
from tests.reftrain.workers import RankResult, assemble
from tests.schedule import stale, workers

TOLERANCE = 1e-5
MODEL = {"dim": 16, "ffn_dim": 32, "heads": 2, "kv_heads": 2}
VARIANTS: dict[str, dict[str, object]] = {
    "gpipe": {},
    "1f1b": {},
    "interleaved": {"virtual_stages": 2},
    "flexible": {"virtual_stages": 2},
    "breadth_first": {"virtual_stages": 2},
    "afab": {"virtual_stages": 2},
    "gems": {},
    "chimera direct": {},
    "chimera doubling": {"concatenation": "doubling"},
    "chimera halving": {"concatenation": "halving"},
    "chimera 4 pipelines": {"pipelines": 4},
    "zb_h1": {},
    "dualpipe_v": {"virtual_stages": 2},
    "pipedream": {},
    "pipedream_2bw": {},
}
ASYNCHRONOUS = tuple(name for name, scheme in SCHEMES.items() if not scheme.synchronous)


def configuration(variant: str, p: int, m: int, **tables: dict[str, object]) -> RunConfig:
    """A small model on p pipeline ranks with m micro-batches; raises ScheduleError where the scheme refuses."""
    asynchronous = variant in ASYNCHRONOUS
    base: dict[str, dict[str, object]] = {
        "numerics": {"policy": "fp32"},
        "model": {**MODEL, "layers": 2 * p},
        "data": {"batch_size": m, "seq_len": 16, "mean_document": 6},
        "mesh": {"pp": p},
        "pipeline": {"schedule": variant.split(" ", maxsplit=1)[0], **VARIANTS[variant]},
    }
    if asynchronous:
        base["optimizer"] = {"clip_norm": 0.0, "eps": 1e-2, "learning_rate": 1e-3, "warmup_steps": 0}
        base["run"] = {"steps": 4}
    for name, table in tables.items():
        base.setdefault(name, {}).update(table)
    return load(None, base)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Tensors this small are far slower shared between threads (24 times at two), more so beside waiting ranks."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Distance:
    """Greatest relative error over the tensors, in Euclidean norm: gradients, or updated parameters."""

    worst: str
    error: float
    loss: float
    norm: float
    fresh: float = 0.0


def compare_gradients(config: RunConfig, results: list[RankResult]) -> Distance:
    """Compare one step's loss, norm and gradients with one process."""
    shapes = {n: s for r in results for n, s in r.shapes.items()}
    loss, valid, expected = plain.loss_and_gradients(config, shapes)
    got = assemble(results)
    assert set(got) == set(expected)
    assert {r.valid_tokens for r in results} == {valid}
    assert len({(r.loss, r.norm) for r in results}) == 1, "ranks disagree on loss or norm"
    errors = {n: float(np.linalg.norm(got[n] - g) / np.linalg.norm(g)) for n, g in expected.items()}
    worst = max(errors, key=errors.__getitem__)
    norm = float(np.sqrt(sum(np.square(g).sum() for g in expected.values())))
    return Distance(worst, errors[worst], abs(results[0].loss / loss - 1), abs(results[0].norm / norm - 1))


def compare_updates(config: RunConfig, results: list[RankResult]) -> Distance:
    """Compare the parameters after all steps with the emulation's.

    `fresh` is how far the same training with the newest weights is from ours: what staleness changes.
    """
    shapes = {n: s for r in results for n, s in r.shapes.items()}
    got = assemble(results)
    expected, fresh = stale.train(config, shapes), stale.train(config, shapes, stale=False)

    def distance(reference) -> dict[str, float]:
        return {n: float(np.linalg.norm(got[n] - v) / np.linalg.norm(v)) for n, v in reference.items()}

    errors = distance(expected)
    worst = max(errors, key=errors.__getitem__)
    return Distance(worst, errors[worst], 0.0, 0.0, max(distance(fresh).values()))


def measure(
    pool: RankPool, variant: str, p: int, micro_batches: list[int]
) -> dict[int, Distance | ScheduleError]:
    """Run a scheme at p for several m in one process group."""
    configs: dict[int, RunConfig] = {}
    out: dict[int, Distance | ScheduleError] = {}
    for m in micro_batches:
        try:
            configs[m] = configuration(variant, p, m)
        except ScheduleError as refusal:
            out[m] = refusal
    if not configs:
        return out
    asynchronous = variant in ASYNCHRONOUS
    work = workers.updated if asynchronous else workers.gradients
    by_rank = pool.run(work, p, list(configs.values()), timeout=300)
    compare = compare_updates if asynchronous else compare_gradients
    with one_thread():
        for i, (m, config) in enumerate(configs.items()):
            out[m] = compare(config, [results[i] for results in by_rank])
    return dict(sorted(out.items()))


def main() -> int:
    """Print the table of the whole sweep; the exit code is 1 when a scheme is off."""
    pool, failed = RankPool(), 0
    print(
        "| scheme | p | m run | worst relative error | at m | tensor | refused |\n|---|---|---|---|---|---|---|"
    )
    try:
        for variant in sys.argv[1:] or VARIANTS:
            for p in (2, 3, 4):
                found = measure(pool, variant, p, list(range(1, 3 * p + 1)))
                ran = {m: d for m, d in found.items() if isinstance(d, Distance)}
                refused = [m for m in found if m not in ran]
                failed += sum(d.error > TOLERANCE for d in ran.values())
                print(_line(variant, p, ran, refused, found), flush=True)
    finally:
        pool.close()
    return int(failed > 0)


def _line(
    variant: str, p: int, ran: dict[int, Distance], refused: list[int], found: dict[int, object]
) -> str:
    no = f"{', '.join(map(str, refused))}: {str(found[refused[0]]).split(';')[0]}" if refused else ""
    if not ran:
        return f"| {variant} | {p} | none | | | | {no} |"
    m = max(ran, key=lambda m: ran[m].error)
    return f"| {variant} | {p} | {', '.join(map(str, ran))} | {ran[m].error:.1e} | {m} | `{ran[m].worst}` | {no} |"


if __name__ == "__main__":
    sys.exit(main())
