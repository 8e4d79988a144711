"""The matched replay of a run for `compare`: found or made, checked to be of this run, and varied to test formats."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from numerics.columns import Frame, Names, frame
from numerics.comparison.first_divergence import Found
from numerics.comparison.missing_addends import Explanation
from numerics.comparison.preconditions import difference
from numerics.comparison.row_table import RowTable, by_row
from numerics.comparison.tensor_table import Status
from numerics.errors import CaptureError
from numerics.order.order_plan import PlanDifference, differences, read_plan
from numerics.schema import FOLDER
from numerics.store import open_capture
from tracekit.errors import InputError


class MakeReplay(Protocol):
    """Makes the matched replay of a run folder; see `numerics.order.replayer.make_replay`."""

    def __call__(
        self, run: Path, out: Path | None = None, *, variants: Sequence[str] = (), steps: int | None = None
    ) -> Path:
        """Return the replay's folder; InputError where no replay can be made."""


class NoReplay(Exception):  # noqa: N818 - no error: the comparison goes on without
    """There is no replay to use, and why."""


def find_replay(run: Frame, given: Path | None, make: MakeReplay | None) -> Frame:
    """Open `given`, else RUN/replay, else what `make` makes; NoReplay with the reason where that gives nothing."""
    folder = given
    own = run.capture.folder / "replay"
    if folder is None and (own / FOLDER).is_dir():
        folder = own
    if folder is None and make is not None:
        try:
            folder = make(run.capture.folder)
        except InputError as error:
            raise NoReplay(f"no matched replay could be made ({error})") from error
    if folder is None:
        raise NoReplay("there is no matched replay")
    replay = frame(open_capture(folder), run.names)
    reason = difference(run.capture, replay.capture, same_run=True)
    if reason is not None:
        raise NoReplay(f"the replay in {folder} is not of this run: {reason}")
    return replay


def plan_differences(run: Path, replay: Path) -> list[PlanDifference]:
    """How the run's recorded plan differs from the declared one; none where either is missing."""
    try:
        recorded, declared = read_plan(run), read_plan(replay)
    except CaptureError as error:
        raise InputError(str(error)) from error
    return [] if recorded is None or declared is None else differences(recorded, declared)


_FORMATS: Final = {
    "forward": ("rope=bf16", "compute=bf16"),
    "backward": ("accumulate=bf16", "reduce=bf16"),
    "reduce": ("reduce=bf16", "accumulate=bf16"),
}
_WORDS: Final = {
    "rope=bf16": "the rotary table is held in bfloat16",
    "compute=bf16": "the computation is done in bfloat16",
    "accumulate=bf16": "gradients are accumulated in bfloat16",
    "reduce=bf16": "gradients are reduced in bfloat16",
}


def narrower_format(run: Frame, found: Found, make: MakeReplay, names: Names) -> Explanation | None:
    """Try replays with a narrower format somewhere; the one that equals the run in every bit explains it.

    Only the steps up to the first divergence are replayed, and only formats that can show in its phase.
    """
    for variant in _FORMATS.get(found.divergence.phase, ()):
        with tempfile.TemporaryDirectory(prefix="numerics-") as folder:
            try:
                steps = max(found.divergence.step, 0) + 1
                made = make(run.capture.folder, Path(folder) / "replay", variants=[variant], steps=steps)
            except InputError:
                continue
            replay = frame(open_capture(made), names)
            table = by_row(run, replay)
            if table.compared and not _differs(run, table):
                return Explanation(
                    f"{_WORDS[variant]}, not as declared: a replay with {variant} equals the run in every bit",
                    dtype="bfloat16",
                )
    return None


def _differs(run: Frame, table: RowTable) -> bool:
    metric = run.named("kind", "metric")
    return bool((np.asarray(table.status == Status.DIFFERENT) & ~metric).any())
