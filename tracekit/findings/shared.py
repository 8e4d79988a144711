"""Parts that findings of tracekit share: ranks, steps, rejected files, doubts, the mesh; and findings as tables."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from tracekit.axes import PARTS
from tracekit.errors import UsageError
from tracekit.text import plain, rank_names
from tracekit.thresholds.report import CELL_CHARACTERS, NOTEBOOK_ROWS, NUMBER_RUNS_SHOWN

MeshSource = Literal["process_groups", "flag", "manifest", "flat_world"]
"""Where a mesh comes from: the process groups, the user, a manifest beside the traces, or assumed as one flat group."""


@dataclass(frozen=True)
class Rejected:
    """A file that could not be used, and why."""

    path: str
    reason: str
    rank: int | None = None


@dataclass(frozen=True)
class Quality:
    """One kind of repair or doubt about one file (or, with `path` None, about the run)."""

    kind: str
    path: str | None = None
    count: int = 0
    detail: str = ""
    kept_events: int | None = None


@dataclass(frozen=True)
class RankCoverage:
    """The ranks that the answer rests on: how many the job has, how many were read, and which are missing."""

    expected: int
    read: int
    missing: tuple[int, ...] = ()
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True)
class StepsFinding:
    """Steps the answer rests on; `median_ms` is the median step time over ranks and steps."""

    analysed: tuple[int, ...]
    median_ms: float


@dataclass(frozen=True)
class Coverage:
    """The share (0 to 1) of exposed communication time that was matched with all members; None where none was exposed.

    `by_axis` has one entry for each axis or set of axes (`dp_cp`); `unknown` are operations of an unknown group.
    """

    matched: float | None = None
    by_axis: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MeshFinding:
    """Axes from inner to outer, their sizes, where they come from, and sizes of axes that divide others (`parts`).

    programs: (ranks, sizes of axes) of each program of a job that has several. Then `sizes` are the sums of stages and
    replicas, and the largest sizes of the other axes.
    """

    order: tuple[str, ...]
    sizes: dict[str, int]
    source: MeshSource
    parts: dict[str, int] = field(default_factory=dict)
    programs: tuple[tuple[tuple[int, ...], dict[str, int]], ...] = ()

    def written(self) -> str:
        """The sizes as a line: inner to outer, then those of axes that divide the ranks of others; by program."""
        if self.programs:
            found = []
            for ranks, of_axes in self.programs:
                axes = ",".join(f"{axis}={of_axes[axis]}" for axis in self.order if of_axes[axis] > 1)
                found.append(f"{rank_names(ranks, NUMBER_RUNS_SHOWN)} ({axes or 'alone'})")
            return f"{len(found)} programs: {' and '.join(found)}"
        sizes = ", ".join(f"{axis}={self.sizes[axis]}" for axis in self.order)
        return "; ".join(
            [sizes, *(f"{axis}={size} inside {PARTS[axis].inside}" for axis, size in self.parts.items())]
        )


# Findings as tables: the same rows for Arrow, for pandas and for a notebook.
#
# A finding says what its rows are; this room turns them into what other tools read. Nothing is computed here.

if TYPE_CHECKING:
    import pyarrow as pa

Columns = Mapping[str, str]
"""Arrow's name of each column's type (`int64`, `double`, `string`, `bool`), by the column's name."""
Row = Sequence[int | float | str | bool | None]


class Tabular(ABC):
    """A finding that is a table as well."""

    @abstractmethod
    def columns(self) -> Columns:
        """The columns of `rows`, in order; the same ones where there are no rows."""

    @abstractmethod
    def rows(self) -> Iterable[Row]:
        """What the finding names, one entry a column; None where something is not known."""

    @abstractmethod
    def headline(self) -> str:
        """The sentence above the rows."""

    def to_arrow(self) -> "pa.Table":
        """The rows as an Arrow table, shape (rows, columns); null is what is not known."""
        import pyarrow as pa

        columns = self.columns()
        schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])
        held: list[list[Any]] = [list(c) for c in zip(*self.rows(), strict=True)] or [[] for _ in columns]
        return pa.table(
            {name: pa.array(c, schema.field(name).type) for name, c in zip(columns, held, strict=True)}
        )

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame, a copy. Raises UsageError where pandas is not installed."""
        if find_spec("pandas") is None:
            raise UsageError("to_pandas needs pandas, not installed; pip install pandas, or use to_arrow")
        return self.to_arrow().to_pandas()

    def _repr_html_(self) -> str:
        """The headline and the first rows as HTML for a notebook; names from traces stay text."""
        rows = list(self.rows())
        shown = "".join(_line("td", row) for row in rows[:NOTEBOOK_ROWS])
        more = f"<p>… {len(rows) - NOTEBOOK_ROWS} more rows</p>" if len(rows) > NOTEBOOK_ROWS else ""
        table = f"<table>{_line('th', list(self.columns()))}{shown}</table>" if rows else ""
        return f"<div><p>{_cell(self.headline())}</p>{table}{more}</div>"


def places(mesh: MeshFinding) -> dict[str, str]:
    """The columns that hold a rank's place: one for each axis of the mesh, inner to outer."""
    return dict.fromkeys((*mesh.order, *mesh.parts), "int64")


def placed(coords: Mapping[str, int], mesh: MeshFinding) -> Row:
    """The cells of these columns: 0 on an axis of size 1, which answers leave out, None where the place is unknown."""
    return [coords.get(axis, 0 if mesh.sizes.get(axis) == 1 else None) for axis in (*mesh.order, *mesh.parts)]


def _line(tag: str, cells: Row) -> str:
    return f"<tr>{''.join(f'<{tag}>{_cell(c)}</{tag}>' for c in cells)}</tr>"


def _cell(value: float | str | None) -> str:
    """`value` as HTML that holds no markup of its own, and no more than a screen shows."""
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return escape(plain(text[:CELL_CHARACTERS]))
