"""The matched replay of a run: found or made, and checked to be of this run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from numerics.columns import Columns, read_columns
from numerics.comparison.preconditions import why_incomparable
from numerics.errors import CaptureError
from numerics.order.order_plan import read_plan
from numerics.order.plan_differences import PlanDifference, differences
from numerics.order.replayer import REPLAY
from numerics.schema import FOLDER
from numerics.store import open_capture
from tracekit.errors import InputError


class MakeReplay(Protocol):
    """Makes the matched replay of a run folder; see `numerics.order.replayer.make_replay`."""

    def __call__(
        self,
        run: Path,
        out: Path | None = None,
        *,
        variants: Sequence[str] = (),
        steps: int | None = None,
        forced: bool = False,
    ) -> Path:
        """Return the replay's folder. InputError where no replay can be made."""


class NoReplay(Exception):  # noqa: N818 - no error: the comparison goes on without
    """There is no replay to use; the message says why."""


def find_replay(run: Columns, given: Path | None, make: MakeReplay | None) -> Columns:
    """Return the replay in `given`, else in RUN/replay, else the one that `make` makes.

    NoReplay, with the reason, where there is none or it is not of this run. InputError where its capture is damaged.
    """
    folder = given
    own = run.capture.folder / REPLAY
    if folder is None and (own / FOLDER).is_dir():
        folder = own
    if folder is None and make is not None:
        try:
            folder = make(run.capture.folder)
        except InputError as error:
            raise NoReplay(f"no matched replay could be made ({error})") from error
    if folder is None:
        raise NoReplay("there is no matched replay")
    replay = read_columns(open_capture(folder), run.names)
    reason = why_incomparable(run.capture, replay.capture, same_run=True)
    if reason is not None:
        raise NoReplay(f"the replay in {folder} is not of this run: {reason}")
    return replay


def differences_from_declared(run: Path, replay: Path) -> list[PlanDifference]:
    """Return how the run's recorded plan differs from the one its replay declares; [] where either is missing.

    InputError where a plan is damaged.
    """
    try:
        recorded, declared = read_plan(run), read_plan(replay)
    except CaptureError as error:
        raise InputError(str(error)) from error
    return [] if recorded is None or declared is None else differences(recorded, declared)
