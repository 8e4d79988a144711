"""One SQLite file that nsys exported, opened so that nothing in it runs: rows of its tables in bounded chunks.

The file is opened read-only and taken as it lies. Only columns of ordinary tables are selected, never views, virtual
tables or generated columns, and an authorizer refuses anything else. Names of tables and columns that a version of nsys
does not write count as empty. Source: the schema reference in the user guide of Nsight Systems, 2022 to 2025.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tracekit.text import plain
from tracekit.thresholds.nsys import (
    BYTES_PER_SECOND,
    CHUNK,
    LEAST_SECONDS,
    MAX_CELL,
    MAX_NAMES,
    MAX_ROWS,
    MAX_TABLES,
    NAME_LENGTH,
    TICK,
)

MAGIC: Final = b"SQLite format 3\0"
KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
KNOWN: Final = frozenset({KERNELS, "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "StringIds"})
"""Tables that show a database to be of nsys: it writes at least one."""
_READS: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ})
_FAULTS: Final = (sqlite3.Error, OverflowError, UnicodeError)
"""What a damaged file makes SQLite's module raise; names of columns in no encoding among it."""
Row = tuple[object, ...]


class UnusableDatabaseError(Exception):
    """The file cannot be read, or is not what it seems; the sentence says why, and what to do."""


class Database:
    """The tables of one file; every method raises UnusableDatabaseError where it is damaged, or reading takes long."""

    def __init__(self, path: str, size: int) -> None:
        self._until = time.monotonic() + LEAST_SECONDS + size / BYTES_PER_SECOND
        self._names: dict[object, str] = {}
        self._columns: dict[str, tuple[str, ...]] = {}
        where = Path(path).absolute().as_uri()
        try:
            self._base = sqlite3.connect(f"{where}?mode=ro&immutable=1", uri=True)
            self._base.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self._base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_CELL)
            self._base.set_progress_handler(lambda: int(time.monotonic() > self._until), TICK)
            for setting in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
                self._base.execute(f"PRAGMA {setting}")
            self._columns = self._ordinary_tables()
            self._base.set_authorizer(_only_reads)
        except _FAULTS as error:
            raise UnusableDatabaseError(_why(error)) from error

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    def _ordinary_tables(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the columns of each ordinary table."""
        found = self._base.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' LIMIT ?", (MAX_TABLES,)
        )
        names = [
            name
            for name, sql in found.fetchall()
            if isinstance(name, str)
            and isinstance(sql, str)
            and not sql.lstrip().upper().startswith("CREATE VIRTUAL")
        ]
        wanted = [name for name in names if name.replace("_", "").isalnum() and name.isascii()]
        query = "SELECT name FROM pragma_table_info(?)"
        return {
            name: tuple(str(row[0]) for row in self._base.execute(query, (name,)).fetchall())
            for name in wanted
        }

    def has(self, table: str, column: str | None = None) -> bool:
        """Return whether there is an ordinary table of that name, with that column."""
        return table in self._columns and (column is None or column in self._columns[table])

    @property
    def exported(self) -> bool:
        """Whether nsys wrote it, by the names of its tables."""
        return bool(KNOWN & set(self._columns))

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[list[Row]]:
        """Yield the rows of a table in chunks; a column that it lacks is None, a table that there is not has none."""
        if table not in self._columns:
            return
        own = self._columns[table]
        asked = ", ".join(f'"{name}"' if name in own else "NULL" for name in columns)
        read = 0
        try:
            cursor = self._base.execute(f'SELECT {asked} FROM "{table}"')  # noqa: S608 - names of our own, quoted
            while chunk := cursor.fetchmany(CHUNK):
                read += len(chunk)
                if read > MAX_ROWS:
                    raise UnusableDatabaseError(
                        f"{table} has more than {MAX_ROWS} rows; record fewer steps (--capture-range=cudaProfilerApi)"
                    )
                yield chunk
        except _FAULTS as error:
            raise UnusableDatabaseError(_why(error)) from error

    def name(self, value: object) -> str:
        """Return a name by its number in StringIds, or the text itself; "" where it is neither."""
        if isinstance(value, str):
            return plain(value[:NAME_LENGTH])
        if type(value) is not int or not self.has("StringIds", "value"):
            return ""
        if (known := self._names.get(value)) is not None:
            return known
        try:
            row = self._base.execute('SELECT "value" FROM "StringIds" WHERE "id" = ?', (value,)).fetchone()
        except _FAULTS as error:
            raise UnusableDatabaseError(_why(error)) from error
        found = plain(row[0][:NAME_LENGTH]) if row and isinstance(row[0], str) else ""
        if len(self._names) >= MAX_NAMES:
            self._names.clear()
        self._names[value] = found
        return found


def _only_reads(action: int, *_names: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY


def _why(error: Exception) -> str:
    text = plain(str(error))
    if text == "interrupted":
        return "reading it takes longer than any report of its size needs; export it again"
    return f"it is damaged ({text}); export it again with `nsys export --type sqlite`"


def number(value: object) -> int:
    """Return a whole number that is not negative; -1 for any other value."""
    return value if type(value) is int and value >= 0 else -1
