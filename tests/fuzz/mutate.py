"""Changes a value of a document, a column of a table, or bytes of a file; the original is never touched."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.hang.fuzz import ODD, in_bytes

BOUNDS = (
    *(
        -(2**63),
        -(2**63) - 1,
        -(2**31) - 1,
        -1,
        0,
        1,
        2**15,
        2**31 - 1,
        2**31,
        2**32,
        10**9,
        2**40,
        2**53 + 1,
    ),
    *(2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**40, 10**400),
)
STRANGE = (
    *ODD,
    *BOUNDS,
    *(
        1e300,
        -1e300,
        5e-324,
        -0.0,
        "9" * 5000,
        "\x1b]0;x\x07",
        "\u202e",
        "../../etc/passwd",
        "/dev/full",
        "[0, 1000000000]",
    ),
    *(
        "ProfilerStep#2147483647",
        "[" * 2000,
        {"9" * 5000: 1},
        [[[[[[[[]]]]]]]],
        [None] * 50,
        list(range(70)),
        "[0,0]",
        "\0",
    ),
)
COLUMNS = (pa.int64(), pa.int8(), pa.uint64(), pa.float64(), pa.string(), pa.bool_(), pa.null(), pa.binary())


def strange(rng: Random, old: Any) -> Any:
    """A value in place of `old`: mostly one of its kind that is out of bounds, else any other."""
    if type(old) is int and rng.random() < 0.6:
        near = (old + 1, old - 1, -old, old * 2, old + 0.5, str(old)) if abs(old) < BOUNDS[-3] else ()
        return rng.choice((*BOUNDS, *near))
    if isinstance(old, str) and old and rng.random() < 0.3:
        at = rng.randrange(len(old))
        return old[:at] + rng.choice(("\x1b[2J", "\ud800", "9", "-", "", "é", old)) + old[at + 1 :]
    return rng.choice(STRANGE)


def in_document(value: Any, rng: Random) -> Any:
    """`value`, a tree of lists and dictionaries, with one to five changes; only what changes is copied."""
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        value = _changed(value, rng)
    return value


def _changed(value: Any, rng: Random) -> Any:
    if not isinstance(value, (dict, list, tuple)) or not value or rng.random() < 0.04:
        return strange(rng, value)
    if isinstance(value, dict):
        copy: Any = dict(value)
        key: Any = rng.choice(list(copy))
    else:
        copy, key = list(value), rng.randrange(len(value))
    kind = rng.random()
    if kind < 0.08:
        del copy[key]
    elif kind < 0.14:
        twin = copy[rng.choice(list(copy))] if isinstance(copy, dict) else copy[rng.randrange(len(copy))]
        if isinstance(copy, dict):
            copy[rng.choice((key, str(key) + "x", "", "9" * 50))] = twin
        else:
            copy.insert(key, twin)
    elif kind < 0.17 and isinstance(copy, list):
        rng.shuffle(copy)
    else:
        copy[key] = _changed(copy[key], rng)
    return tuple(copy) if isinstance(value, tuple) else copy


def everywhere(value: Any, rng: Random) -> Any:
    """`value` with all values under one key, anywhere in it, replaced by the same strange one."""
    keys = sorted(_keys(value))
    name = rng.choice(keys) if keys else ""
    new = strange(rng, 0)
    return _put(value, name, new)


def _keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {str(k) for k in value}.union(*(_keys(v) for v in value.values()))
    return set().union(*(_keys(v) for v in value[:40])) if isinstance(value, list) else set()


def _put(value: Any, name: str, new: Any) -> Any:
    if isinstance(value, dict):
        return {k: new if k == name else _put(v, name, new) for k, v in value.items()}
    return [_put(v, name, new) for v in value] if isinstance(value, list) else value


def in_text(document: Any, rng: Random) -> bytes:
    """JSON of a changed document, now and then with damaged bytes, cut off, or of bytes alone."""
    kind = rng.random()
    if kind < 0.7:
        document = in_document(document, rng)
    elif kind < 0.8:
        document = everywhere(document, rng)
    data = json.dumps(document, default=str).encode("utf-8", "surrogatepass")
    if kind >= 0.8 or rng.random() < 0.05:
        data = damaged(data, rng)
    return data


def damaged(data: bytes, rng: Random) -> bytes:
    """Bytes cut off, or changed in a few places."""
    return data[: rng.randrange(len(data) or 1)] if rng.random() < 0.25 else in_bytes(data, rng)


def in_table(table: pa.Table, rng: Random) -> pa.Table:
    """A table with strange values, columns of another type, without a column or rows, or with rows twice."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not table.num_columns:
            return table
        at = rng.randrange(table.num_columns)
        name, kind = table.schema.names[at], rng.random()
        if kind < 0.65:
            table = table.set_column(at, name, _values(table.column(at), rng))
        elif kind < 0.72:
            table = table.drop_columns([name]) if table.schema.names.count(name) == 1 else table
        elif kind < 0.76:
            table = table.append_column(name, table.column(at))
        elif kind < 0.88:
            table = table.slice(rng.randrange(table.num_rows or 1), rng.randrange(table.num_rows or 1))
        else:
            table = pa.concat_tables([table, table.slice(0, rng.randrange(table.num_rows or 1))])
    return table


def put_table(table: pa.Table, path: Path, rng: Random) -> None:
    """Write a changed table as Parquet; one that Parquet cannot hold is damaged in its bytes instead."""
    try:
        pq.write_table(in_table(table, rng), path)
    except (pa.ArrowException, ValueError, OverflowError):
        pq.write_table(table, path)
        path.write_bytes(damaged(path.read_bytes(), rng))


def _values(column: pa.ChunkedArray, rng: Random) -> pa.Array:
    """The values of a column, some or all replaced, of its own type where that holds them, else of another."""
    share = rng.choice((0.02, 0.2, 1.0))
    one = strange(rng, 0)
    listed = column.to_pylist()
    some = [one if rng.random() < share else v for v in listed]
    for kind in (column.type, rng.choice(COLUMNS), None):
        try:
            return pa.array(some, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, UnicodeError):
            continue
    return pa.array([None] * len(listed), rng.choice(COLUMNS))
