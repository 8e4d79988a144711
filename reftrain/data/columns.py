"""Reads tokenised documents from a column of Parquet or Arrow files: each row is a document, a list of token numbers.

Arrow files (and streams, as Hugging Face's `datasets` writes them) are memory-mapped. Of Parquet the lengths are read
once, row group by row group, and the tokens of a row group when one of its documents is needed. Used by `tokens`.
"""

from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reftrain.errors import ConfigError
from reftrain.thresholds import GROUPS_HELD

COLUMNS: Final = ("input_ids", "tokens")
"""Names that a column of tokens has where the configuration names none."""

Integers = npt.NDArray[np.int64]


class ColumnFile:
    """The documents of a Parquet or Arrow file; `column` empty: the first of `COLUMNS`. Raises `ConfigError`."""

    def __init__(self, path: Path, column: str = "") -> None:
        self.path = path
        try:
            self._open(column)
            counts = [self._lengths_of(self._chunk(number)) for number in range(self._groups)]
        except OSError as error:
            raise _refused(path, (error.strerror or str(error)).splitlines()[0].lower()) from error
        except (pa.ArrowException, ValueError) as error:
            raise _refused(path, f"cannot be read ({str(error).splitlines()[0][:120]})") from error
        self.lengths: Integers = np.concatenate([np.empty(0, np.int64), *counts])
        self._first: Integers = np.cumsum([0, *map(len, counts)])

    def _open(self, column: str) -> None:
        self._held: OrderedDict[int, Any] = OrderedDict()
        if self.path.suffix == ".parquet":
            self._parquet: Any = pq.ParquetFile(self.path, memory_map=True)
            self._column = self._named(self._parquet.schema_arrow, column)
            self._groups = self._parquet.num_row_groups
            return
        self._parquet = None
        source = pa.memory_map(str(self.path))
        try:
            table = pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            table = pa.ipc.open_stream(source).read_all()
        self._column = self._named(table.schema, column)
        chosen = table.column(self._column)
        chosen.validate(full=True)  # the offsets of lists come from the file
        self._chunks = chosen.chunks
        self._groups = len(self._chunks)

    def _named(self, schema: Any, column: str) -> str:
        """Return the column of tokens; refuse a file without one."""
        wanted = (column,) if column else COLUMNS
        name = next((name for name in wanted if name in schema.names), None)
        if name is None:
            raise _refused(
                self.path, f"has no column {' or '.join(wanted)}, but {', '.join(schema.names[:8])}"
            )
        kind = schema.field(name).type
        lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        if not lists or not pa.types.is_integer(kind.value_type):
            raise _refused(self.path, f"holds {kind} in {name}, not lists of whole numbers")
        return name

    def _chunk(self, number: int) -> Any:
        """Return a row group as one array of lists; the last ones read are held."""
        if self._parquet is None:
            return self._chunks[number]
        if number not in self._held:
            group = self._parquet.read_row_group(number, columns=[self._column]).column(0).combine_chunks()
            self._held[number] = group.chunk(0) if isinstance(group, pa.ChunkedArray) else group
            while len(self._held) > GROUPS_HELD:
                self._held.popitem(last=False)
        self._held.move_to_end(number)
        return self._held[number]

    def _lengths_of(self, chunk: Any) -> Integers:
        if chunk.null_count:
            raise _refused(self.path, f"has rows without a list in {self._column}")
        return np.asarray(pc.list_value_length(chunk).to_numpy(zero_copy_only=False), dtype=np.int64)

    def document(self, number: int) -> Integers:
        """Return the tokens of a document."""
        group = int(np.searchsorted(self._first, number, side="right")) - 1
        values = self._chunk(group)[number - int(self._first[group])].values
        if values.null_count:
            raise _refused(self.path, f"lacks a token in row {number}")
        return np.asarray(values.to_numpy(zero_copy_only=False)).astype(np.int64)


def _refused(path: Path, problem: str) -> ConfigError:
    return ConfigError("data.files", f"{path} {problem}", "name data.column, or another file")
