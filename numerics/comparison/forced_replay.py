"""Judges a run by its forced replay: does each value follow from the recorded values before it, but for rounding?

The forced replay goes on with what the run recorded, so that nothing drifts: a row differs by the rounding of one
operation or by a bug in it. Beside it lie the exact values and the bound of their rounding.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from numerics.columns import Columns, read_columns
from numerics.comparison.joins.row_table import RowTable, by_row
from numerics.comparison.joins.tensor_table import Status
from numerics.comparison.lone_difference import lone_element, lone_ranks
from numerics.comparison.matched_replay import MakeReplay
from numerics.formats import UNIT_ROUNDOFF, most_rewritten, unit_roundoff
from numerics.keys import Ints
from numerics.schema import FOLDER
from numerics.store import Capture, open_capture
from tracekit.errors import InputError

EXACT, ERROR = "exact", "error"
"""Folders in a forced replay's: the exact values of what differs, and the bounds of their rounding."""

IN_BITS = "may not differ in any bit"


@dataclass(frozen=True)
class ForcedReplay:
    """A forced replay and its judgement.

    `wrong` gives by row of the run why rounding does not explain it; `uses` the largest share of its bound that each
    other differing row takes, and `unsure` that of rows of a 16-bit format that only a formula written otherwise could
    miss by so much.
    """

    columns: Columns
    rows: RowTable
    wrong: Mapping[int, str]
    uses: Mapping[int, float]
    unsure: Mapping[int, float]

    def rounding(self, run: Columns) -> str | None:
        """Return the sentence that every difference is rounding; None where one is not, or nothing differs."""
        if self.wrong or self.unsure or not self.uses or len(self.rows.missing) or len(self.rows.extra):
            return None
        worst = max(self.uses, key=lambda row: (self.uses[row], -row))
        return (
            f"every value is what the recorded ones before it give: {self.rows.compared - len(self.uses)} of "
            f"{self.rows.compared} rows in every bit, the others within the bound of their rounding (they take up to "
            f"{self.uses[worst]:.2g} of it: {run.name('tensor', worst)} at step {int(run['step'][worst])})"
        )

    def open(self, run: Columns) -> str | None:
        """Return the sentence that rounding of a formula written otherwise may explain what its bound does not."""
        if self.wrong or not self.unsure:
            return None
        worst = max(self.unsure, key=lambda row: (self.unsure[row], -row))
        return (
            f"{run.name('tensor', worst)} at step {int(run['step'][worst])} misses what the recorded values before it "
            f"give by {self.unsure[worst]:.3g} times the bound of its rounding: a bug, or the same formula written in "
            f"another form, with other roundings in {run.name('dtype', worst)}"
        )

    def blamed(self) -> RowTable:
        """Return the joined rows in which only those differ that rounding does not explain."""
        status = np.where(self.rows.status == Status.DIFFERENT, int(Status.EQUAL), self.rows.status)
        status[list(self.wrong)] = Status.DIFFERENT
        return replace(self.rows, status=status)


@contextmanager
def forced_replay(run: Columns, make: MakeReplay | None) -> Iterator[ForcedReplay | None]:
    """Make and judge the forced replay of a run, which is there as long as the block runs.

    None where the run holds no values, no replay can be made, or its replayer knows no forced replay.
    """
    if make is None or not run.capture.values:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="numerics-") as folder:
        try:
            made = make(run.capture.folder, Path(folder) / "replay", forced=True)
            found = _judged(run, made)
        except InputError:
            found = None
        yield found


def _judged(run: Columns, made: Path) -> ForcedReplay | None:
    """Return the judgement of a forced replay; None where the run kept no values of something that differs."""
    forced = read_columns(open_capture(made), run.names)
    rows = by_row(run, forced)
    different = rows.different
    different = different[~run.named("kind", "metric")[different]]
    if any(run.values_key(row) is None for row in different.tolist()):
        return None
    bounds = _Bounds(run, forced, rows, made)
    uses, wrong = bounds.of_rows(different)
    for row in lone_ranks(run, rows, different):
        wrong.setdefault(row, "differs on one rank alone")
    within = {row: use for row, use in uses.items() if row not in wrong and use <= 1}
    unsure = {row: use for row, use in uses.items() if row not in wrong and use > 1}
    return ForcedReplay(forced, rows, wrong, within, unsure)


class _Bounds:
    """The exact values and bounds of what differs."""

    def __init__(self, run: Columns, forced: Columns, rows: RowTable, made: Path) -> None:
        self.run, self.forced, self.rows = run, forced, rows
        self.exact: Columns | None = None
        if (made / EXACT / FOLDER).is_dir():
            self.exact = read_columns(open_capture(made / EXACT), run.names)
            self.errors: Capture = open_capture(made / ERROR)
            self.match: Ints = by_row(run, self.exact).match

    def of_rows(self, rows: Ints) -> tuple[dict[int, float], dict[int, str]]:
        """Return the share of its bound that each row takes, and by row why others are wrong."""
        uses: dict[int, float] = {}
        wrong: dict[int, str] = {}
        for row in rows.tolist():
            use = self._use(row)
            if use is None:
                wrong[row] = IN_BITS
            elif use == math.inf:
                wrong[row] = "has no bound of its rounding, or is not a number where one is due"
            elif use > 1 and not self._rewritten(row):
                wrong[row] = f"differs by {use:.3g} times what rounding can do"
            elif lone_element(self.run, self.forced, row, int(self.rows.match[row])):
                wrong[row] = "one element alone differs, by more than a rounding"
            else:
                uses[row] = use
        return uses, wrong

    def _rewritten(self, row: int) -> bool:
        """Return whether a formula written otherwise may miss by so much: by roundings of the usual size."""
        if self.exact is None:
            return False
        recorded, right, _ = self._read(self.exact, row)
        with np.errstate(all="ignore"):
            most = np.nanmax(np.abs(recorded - right), initial=0.0)
        return bool(most <= self._usual(row, recorded, right))

    def _usual(self, row: int, recorded: np.ndarray, right: np.ndarray) -> float:
        """Return the miss that a formula written otherwise may make, at the tensor's usual size."""
        with np.errstate(all="ignore"):
            misses = recorded - right
            finite = np.isfinite(right) & np.isfinite(misses)
            missed, size = (
                float(np.sqrt(np.mean(np.square(one[finite], dtype=np.float64)))) if finite.any() else 0.0
                for one in (misses, right)
            )
        return most_rewritten(missed, size, unit_roundoff(self.run.name("dtype", row)), len(right))

    def _read(self, exact: Columns, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the recorded values of a row, the exact ones, and the bound of their rounding."""
        run, at = self.run, int(self.match[row])
        rank, bound = int(run["rank"][row]), str(self.errors.table.column("values")[at].as_py())
        recorded = run.capture.read_values(rank, str(run.values_key(row))).astype(np.float64)
        right = exact.capture.read_values(rank, str(exact.values_key(at)))
        allowed = self.errors.read_values(rank, bound)
        if not len(recorded) == len(right) == len(allowed):
            raise InputError(f"{exact.capture.folder}: values and rows do not fit")
        return recorded, right, allowed

    def _use(self, row: int) -> float | None:
        """Return the largest share of its bound that an element takes; None where the row may not differ at all."""
        run, exact = self.run, self.exact
        dtype = run.name("dtype", row)
        same = dtype == self.forced.name("dtype", int(self.rows.match[row]))
        computed = run.name("kind", row) != "input" and run.name("phase", row) != "init"
        at = -1 if exact is None else int(self.match[row])
        if exact is None or at < 0 or not (same and computed and dtype in UNIT_ROUNDOFF):
            return None
        recorded, right, allowed = self._read(exact, row)
        if unit_roundoff(dtype) <= UNIT_ROUNDOFF["float32"]:
            allowed = np.where(allowed > 0, np.maximum(allowed, self._usual(row, recorded, right)), allowed)
        with np.errstate(all="ignore"):
            apart = np.where(
                (recorded == right) | (np.isnan(recorded) & np.isnan(right)), 0.0, np.abs(recorded - right)
            )
            share = np.where(apart > 0, apart / allowed, 0.0)
        if bool(((apart > 0) & (allowed == 0)).any()):
            return None
        share = np.where(np.isfinite(allowed) & np.isfinite(apart), share, np.where(apart == 0, 0.0, np.inf))
        return float(share.max(initial=0.0))
