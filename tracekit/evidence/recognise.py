"""What a file is, by its content alone: the first bytes, decompressed. Used by `gather`."""

import contextlib
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from tracekit.evidence.ras import is_ras
from tracekit.evidence.stacks import is_stacks
from tracekit.files.source import ByteStream, Source
from tracekit.thresholds.evidence import KIND_HEAD, TEXT_SHARE

Form = Literal[
    "dump",
    "trace",
    "table",
    "ras",
    "stacks",
    "inspector",
    "nsys",
    "nsys_report",
    "counters",
    "text",
    "archive",
    "empty",
    "unknown",
]
"""What a file's beginning shows: `text` may be a log, which only its lines show."""

_PICKLE: Final = re.compile(rb"\x80[\x02-\x05]|\(dp")
_SAMPLE: Final = re.compile(rb"^#? ?(?:HELP|TYPE) (?:DCGM_|nvidia_|node_|tracekit_|nccl_)\w+", re.MULTILINE)
_COUNTER_HEAD: Final = re.compile(
    rb"^(?:#Entity\s|timestamp, |index, )[^\n]*(?:temperature|power|clocks?|utilization|GPUTL|TMPTR|POWER|SMCLK)",
    re.MULTILINE | re.IGNORECASE,
)
_PRINTABLE: Final = bytes(range(32, 127)) + b"\t\n\r\x1b\x08" + bytes(range(128, 256))
_DATABASE: Final = b"SQLite format 3\0"
_NSYS_TABLES: Final = frozenset(
    {"StringIds", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"}
)
_HEADING: Final = re.compile(rb"#{1,6} \S[^\n]*\n")
_MARKUP: Final = re.compile(
    rb"^(?: {0,3}(?:```|~~~)|\|[ :|-]*-[ :|-]*\|\s*$)|\]\([^)\s]{1,300}\)", re.MULTILINE
)
_FENCED: Final = re.compile(rb"^ {0,3}```.*?^ {0,3}```", re.MULTILINE | re.DOTALL)
_LOG_LINE: Final = re.compile(
    rb"^(?:\[\w{1,30}\d{1,7}\]:|\[?[IWEF]\d{4} |\[?\d{4}-\d\d-\d\d[T ]|\d{1,7}: |Traceback \()", re.MULTILINE
)
_PROGRAM: Final = re.compile(
    rb"#!|\"\"\"|'''|(?:import|from) [\w.]{1,80}(?: import .{1,300})?\s*\n|#include [<\"]|/[/*]"
    rb"|<(?:!doctype|html|\?xml)\b|\{\s*\"cells\"",
    re.IGNORECASE,
)
"""How programs, notebooks and pages of HTML begin."""


def quotes_logs(source: Source) -> bool:
    """Return whether a text is a page or a program, which may quote logs but is not a log. OSError passes through.

    A page begins with a heading of Markdown, has a fence, a table or a link, and no line of a log outside its fences.
    """
    text = head_of(source).removeprefix(b"\xef\xbb\xbf").lstrip()
    if _HEADING.match(text) is None:
        return _PROGRAM.match(text) is not None
    return _MARKUP.search(text) is not None and _LOG_LINE.search(_FENCED.sub(b"", text)) is None


def head_of(source: Source) -> bytes:
    """Return the first KIND_HEAD decompressed bytes of a file; OSError passes through."""
    with source.open() as raw:
        head = b""
        for block in ByteStream(raw).blocks():
            head += block[:KIND_HEAD]
            if len(head) >= KIND_HEAD:
                break
        return head[:KIND_HEAD]


def form_of(source: Source) -> Form:
    """Return what a file is; `unknown` where nothing here reads it. OSError passes through."""
    with source.open() as raw:
        first = raw.read(KIND_HEAD)
    if _is_archive(first, source):
        return "archive"
    head = head_of(source) if first[:2] == b"\x1f\x8b" or first[:4] == b"\x28\xb5\x2f\xfd" else first
    if head[257:262] == b"ustar":
        return "archive"
    if not head.strip(b"\0 \t\r\n\xef\xbb\xbf"):
        return "empty"
    return next((form for form, holds in _FORMS if holds(head, source)), "unknown")


def _is_archive(head: bytes, source: Source) -> bool:
    named = source.name.lower().endswith((".tar.gz", ".tgz", ".tar.zst"))
    return head.startswith(b"PK\x03\x04") or head[257:262] == b"ustar" or (named and head[:2] == b"\x1f\x8b")


def _dump(head: bytes, _source: Source) -> bool:
    pickled = _PICKLE.match(head) is not None and (
        b"pg_config" in head or b"entries" in head or b"pg_status" in head
    )
    written = head.lstrip()[:1] == b"{" and b'"traceEvents"' not in head and (
        b'"pg_config"' in head or (b'"entries"' in head and b'"version"' in head) or b'"pg_status"' in head
    )  # fmt: skip
    return pickled or written


def _trace(head: bytes, _source: Source) -> bool:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"{":
        return b'"traceEvents"' in text or (b'"distributedInfo"' in text or b'"deviceProperties"' in text)
    return text[:1] == b"[" and b'"ph"' in text and b'"ts"' in text


def _nsys(head: bytes, source: Source) -> bool:
    """Return whether this is a database that nsys exported: it holds some of its tables, or is compressed."""
    if not head.startswith(_DATABASE) or "://" in source.uri:
        return False
    with source.open() as raw:
        if raw.read(len(_DATABASE)) != _DATABASE:
            return source.name.lower().removesuffix(".gz").removesuffix(".zst").endswith(".sqlite")
    try:
        where = Path(source.uri).absolute().as_uri()
        with contextlib.closing(sqlite3.connect(f"{where}?mode=ro&immutable=1", uri=True)) as base:
            names = {
                row[0]
                for row in base.execute("select name from sqlite_master where type = 'table' limit 1000")
            }
    except (sqlite3.Error, ValueError, OSError):
        return False
    return bool(_NSYS_TABLES & names)


def _counters(head: bytes, _source: Source) -> bool:
    return _SAMPLE.search(head) is not None or _COUNTER_HEAD.search(head) is not None


def _text(head: bytes, _source: Source) -> bool:
    plain = len(head) - len(head.translate(None, _PRINTABLE))
    return b"\0" not in head and plain >= TEXT_SHARE * len(head)


_FORMS: Final[tuple[tuple[Form, Callable[[bytes, Source], bool]], ...]] = (
    ("table", lambda head, _: head.startswith(b"PAR1")),
    ("nsys", _nsys),
    ("nsys_report", lambda _, source: source.name.lower().endswith((".nsys-rep", ".qdrep"))),
    ("ras", lambda head, _: is_ras(head)),
    ("inspector", lambda head, _: b'"inspector_output_format_version"' in head),
    ("stacks", lambda head, _: is_stacks(head)),
    ("dump", _dump),
    ("trace", _trace),
    ("counters", _counters),
    ("text", _text),
)
"""Each form and its test, in the order in which they are asked."""
