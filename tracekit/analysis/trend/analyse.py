"""The trend of a job over its windows: from an ingested run to a finding; each is opened as by `slowrank`."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tracekit.analysis.diff.side import Side, side_of
from tracekit.analysis.trend.ranks import rank_trends
from tracekit.analysis.trend.series import Point, Series, of_steps, of_window, series_of
from tracekit.analysis.trend.step import step_trend
from tracekit.analysis.trend.verdict import decided
from tracekit.errors import InputError, MeshError
from tracekit.findings import MeshFinding, Quality, RankCoverage
from tracekit.findings.trend import TrendFinding, TrendUnit
from tracekit.mesh import Mesh
from tracekit.steps.recorded_windows import windows_of
from tracekit.store import Run
from tracekit.thresholds.trend import LEAST_CHANGE
from tracekit.timing.measured import StepRange


@dataclass(frozen=True)
class Opened:
    """The windows that could be analysed: the series over them, and the evidence they rest on."""

    unit: TrendUnit
    series: Series
    mesh: Mesh
    told: MeshFinding
    ranks: RankCoverage
    quality: tuple[Quality, ...]


def trend(
    run: Run,
    mesh: dict[str, int] | None = None,
    order: Sequence[str] | None = None,
    steps: Sequence[StepRange] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TrendFinding:
    """Return the trend of the step, its parts and each rank's excess of own time over the windows of `run`, tested.

    A window is what one file of each rank holds; in a run with one window, steps are compared. `mesh`, `order` and
    `steps` are as for `tracekit.slowrank`; `progress` is called with (windows analysed, all windows). Raises
    UsageError, MeshError and InputError as `tracekit.breakdown` does, where no window can be analysed.
    """
    opened = _opened(run, mesh, order, steps, progress)
    series = opened.series
    step = step_trend(series)
    least = LEAST_CHANGE * step.trend.level_ns
    by_rank = rank_trends(run, opened.mesh, series, least)
    answer = decided(opened.unit, series, step, by_rank)
    return TrendFinding(
        opened.ranks, opened.told, opened.unit, series.points, answer.verdict, answer.reason, step.trend, step.swing,
        step.parts, by_rank, step.serial, answer.to_decide, opened.quality, answer.notes,
    )  # fmt: skip


def _opened(
    run: Run,
    mesh: dict[str, int] | None,
    order: Sequence[str] | None,
    steps: Sequence[StepRange] | None,
    progress: Callable[[int, int], None] | None,
) -> Opened:
    """Return the windows of `run` as series, and which cannot be analysed or have another mesh than most."""
    windows = windows_of(run)
    if not windows:
        side = side_of(run, mesh, order, steps, progress)
        quality = side.told.quality
        series = series_of(of_steps(side))
        return Opened("step", series, side.case.mesh, side.told.mesh, side.told.ranks, quality)
    found: list[tuple[Side, Point]] = []
    lost: dict[int, InputError | MeshError] = {}
    for number, window in enumerate(windows):
        try:
            side = side_of(window.run, mesh, order, steps, None)
            found.append((side, of_window(side, number, window.at_ns)))
        except (InputError, MeshError) as error:
            lost[number] = error
        if progress:
            progress(number + 1, len(windows))
    if not found:
        raise lost[0]
    return _of_windows(run, found, lost)


def _of_windows(
    run: Run, found: Sequence[tuple[Side, Point]], lost: dict[int, InputError | MeshError]
) -> Opened:
    """The windows `found` as series, restricted to the most common mesh."""
    often = Counter(_key(side) for side, _ in found)
    usual = max(often, key=lambda k: (often[k], k))
    kept = [(side, point) for side, point in found if _key(side) == usual]
    quality = [*run.quality]
    for number, error in lost.items():
        quality.append(Quality("window_left_out", None, 1, f"window {number}: {error}"))
    if others := len(found) - len(kept):
        quality.append(Quality("other_mesh", None, others, "windows of another mesh than most are left out"))
    series = series_of([point for _, point in kept])
    first = kept[0][0]
    read = max((s.told.ranks for s, _ in kept), key=lambda r: r.expected)
    missing = tuple(sorted(set(read.missing) - set(series.ranks)))
    ranks = replace(read, read=len(series.ranks), missing=missing, rejected=run.rejected)
    return Opened("window", series, first.case.mesh, first.told.mesh, ranks, tuple(quality))


def _key(side: Side) -> tuple[tuple[str, int], ...]:
    """The sizes of a window's mesh, in its order."""
    return tuple((axis, side.case.mesh.sizes[axis]) for axis in side.case.mesh.order)
