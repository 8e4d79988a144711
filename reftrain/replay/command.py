"""The replayer as a program of its own: `python -m reftrain.replay.command RUN --out DIR`.

`numerics replay` finds it by the entry-point group `numerics.replayers` and starts it, so that neither package imports
the other's internals. It reads RUN/run.json and RUN/order_plan.json and writes DIR/run.json, DIR/order_plan.json (the
declared plan) and DIR/capture.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from numerics.errors import CaptureError
from numerics.order.order_plan import OrderPlan, read_plan, write_plan
from numerics.schema import FOLDER, STAMP, Level
from reftrain.errors import ReftrainError
from reftrain.replay.manifest import ReplayError, configuration, described, read_manifest
from reftrain.thresholds import LARGEST_MANIFEST
from tracekit.errors import InputError
from tracekit.installation import missing_extra
from tracekit.small_files import read_small

if TYPE_CHECKING:
    from reftrain.config.run import RunConfig

REFUSED = 3
"""Exit code of a replay that cannot be made; the reason is on stderr."""


def captured_level(run: Path) -> tuple[Level, tuple[str, ...]]:
    """Return level and names of the run's own capture; digest where it has none."""
    try:
        stamp = json.loads(read_small(run / FOLDER / STAMP, LARGEST_MANIFEST).decode())
        level, names = stamp["level"], stamp["names"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "digest", ()
    if level not in {"digest", "tensors"} or not isinstance(names, list):
        return "digest", ()
    return level, tuple(str(name) for name in names)


def replay(
    run: Path,
    out: Path,
    level: Level,
    names: Sequence[str],
    variants: Sequence[str],
    steps: int | None,
    *,
    forced: bool = False,
) -> None:
    """Replay a run folder, as far as it came, into another; `ReplayError` where that is impossible.

    A `forced` replay goes on with the values that the run recorded (see `forced_passes`).
    """
    import torch

    from reftrain.replay.capture_writer import CaptureWriter
    from reftrain.replay.declared_plan import declared_plan
    from reftrain.replay.engine import Replay
    from reftrain.replay.forcing.forced_passes import force, repeat
    from reftrain.replay.formats import formats_of
    from reftrain.replay.possible_orders import possible_orders
    from reftrain.replay.resumed_state import state_before
    from reftrain.replay.variant import with_variants

    manifest, config = _checked(run, out)
    torch.set_num_threads(config.threads)
    recorded = _plan_of(run, config.mesh.world_size)
    formats = with_variants(formats_of(config.numerics.policy), variants)
    orders = possible_orders(recorded, config)
    out.mkdir(parents=True, exist_ok=True)
    state = state_before(run, manifest.get("resumed"), config)
    count = min(_end(run, config.steps), state.step + (steps or config.steps))
    if forced:
        force(run, config, orders, formats, out, level, names, count, state)
    else:
        repeat(Replay(config, orders, formats, CaptureWriter(config, out, level, names), state), count)
    write_plan(out, declared_plan(config, recorded, state.step))
    _write_manifest(out, {**manifest, "faults": [], "replay": {"of": str(run), "variants": list(variants)}})


def _end(run: Path, steps: int) -> int:
    """The step behind the last one that a run recorded; it may have ended before all its `steps`."""
    from reftrain.replay.resumed_state import recorded_steps

    made = recorded_steps(run)
    return min(steps, made.stop) if made else steps


def _two_dimensional(run: Path, out: Path, level: str, names: Sequence[str]) -> None:
    """Run the 2D baseline; the trainer is imported for this only."""
    from reftrain.job.baseline import run_two_dimensional

    run_two_dimensional(described(read_manifest(run), out), out, level, names)


def _again(run: Path, out: Path, level: str, variants: Sequence[str]) -> None:
    """Run the same once more by the trainer, faults planted in it included."""
    from reftrain.job.baseline import run_again

    manifest = read_manifest(run)
    changes = dict(text.partition("=")[::2] for text in variants)
    policy = changes.pop("policy", manifest["numerics"]["policy"])
    if changes:
        raise ReplayError(f"--baseline again takes --variant policy=… only, not {', '.join(changes)}")
    run_again(described(manifest, out), policy, manifest.get("faults") or [], level)


def _checked(run: Path, out: Path) -> "tuple[dict[str, Any], RunConfig]":
    """Return the manifest of a run, and the configuration of its replay; `ReplayError` for one of another model."""
    manifest = read_manifest(run)
    config = configuration(manifest, out)
    _check_experts(run, config)
    return manifest, config


def _check_experts(run: Path, config: "RunConfig") -> None:
    """Raise `ReplayError` where the run recorded weights of other experts than its configuration declares.

    Such a run.json was not written by the trainer that made the record, and its model is another one.
    """
    from reftrain.replay.resumed_state import recorded_parameters

    names = recorded_parameters(run, config.mesh.world_size)
    found = {int(match[1]) for match in map(_EXPERT.search, names) if match}
    if names and found != set(range(config.model.experts)):
        held = f"weights of {len(found)} experts" if found else "no weights of experts"
        raise ReplayError(
            f"run.json declares model.experts = {config.model.experts}, and the capture holds {held}: they are of two "
            "models; put back the run.json of the capture, or check its own trainer by numerics compare --model"
        )


_EXPERT: Final = re.compile(r"\.experts\.(\d{1,6})\.")
"""An expert's number in the name of its weight."""


def _plan_of(run: Path, world_size: int) -> OrderPlan:
    """Return the recorded plan; `ReplayError` where there is none, or one of another run."""
    plan = read_plan(run)
    if plan is None:
        raise ReplayError(f"{run}: has no order_plan.json; run again with --capture digest")
    if plan.world_size != world_size:
        raise ReplayError(
            f"{run}: order_plan.json is of {plan.world_size} ranks, run.json of {world_size}; they are of two runs"
        )
    return plan


def _write_manifest(out: Path, values: dict[str, Any]) -> None:
    temporary = out / ".run.json.tmp"
    temporary.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    temporary.replace(out / "run.json")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; errors become one sentence on stderr and exit code 3."""
    given = _parser().parse_args(arguments)
    level, names = captured_level(given.run)
    try:
        if given.baseline == "again":
            _again(given.run, given.out, given.level or level, given.variant)
            return
        if given.baseline == "2d":
            _two_dimensional(given.run, given.out, given.level or level, tuple(given.names or names))
            return
        replay(
            given.run,
            given.out,
            cast("Level", given.level or level),
            tuple(given.names or names),
            tuple(given.variant),
            given.steps,
            forced=given.forced,
        )
    except ImportError as error:
        print(missing_extra(error, "a replay") or error, file=sys.stderr)  # noqa: T201
        sys.exit(REFUSED)
    except (ReftrainError, CaptureError, InputError, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - the reason, for who started this program
        sys.exit(REFUSED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="reftrain.replay", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of the run to replay")
    parser.add_argument("--out", type=Path, required=True, help="folder the replay is written to")
    parser.add_argument("--level", choices=("digest", "tensors"), help="as the run's capture if left out")
    parser.add_argument("--names", action="append", help="values to keep at level tensors; repeatable")
    parser.add_argument(
        "--variant", action="append", default=[], help="another format, e.g. rope=bf16; repeatable"
    )
    parser.add_argument("--steps", type=int, help="replay only the first steps")
    parser.add_argument(
        "--forced", action="store_true", help="go on with recorded values; bound what differs"
    )
    parser.add_argument(
        "--baseline",
        choices=("matched", "2d", "again"),
        default="matched",
        help="matched: one process in the run's order; 2d: its dp and tp ranks, by the trainer itself; "
        "again: the very run, with --variant policy=fp64 in another policy",
    )
    return parser


if __name__ == "__main__":
    main()
