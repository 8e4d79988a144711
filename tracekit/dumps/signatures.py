"""Signatures of calls, one object for all that are equal: a job has few, its dumps repeat them thousands of times.

Part of `entries`.
"""

from typing import Any

from tracekit.dumps.calls import Signature
from tracekit.dumps.fields import is_listed, listed
from tracekit.thresholds.dumps import (
    MAX_DTYPES_TEXT,
    MAX_OP_NAME,
    MAX_PARTS_SHOWN,
    MAX_SIGNATURES,
    MAX_SIZES_TEXT,
    RECENT_SIGNATURES,
)


class Signatures:
    """Makes the signatures of entries, and keeps those it has made."""

    def __init__(self) -> None:
        self._signatures: dict[Signature, Signature] = {}
        self._calls: dict[Any, Signature] = {}
        self._recent: dict[str, list[tuple[Any, Any, Any, Any, Signature]]] = {}

    def of(self, entries: tuple[Any, ...]) -> Signature:
        """Give the signature of one call: of its entry, or of all entries of a coalesced one."""
        if len(entries) == 1:
            return self.one(entries[0])
        parts = [self.one(e) for e in entries if not str(e.get("profiling_name")).endswith(":coalesced")]
        op = parts[0].op if parts else "coalesced"
        _, *columns = zip(*parts[:MAX_PARTS_SHOWN], strict=True) if parts else [()] * len(Signature._fields)
        joined = Signature(op, *("; ".join(column) for column in columns))
        return self._signatures.setdefault(joined, joined)

    def one(self, entry: Any) -> Signature:
        """Give the signature of a call that is one entry."""
        try:
            name, sent, got = entry["profiling_name"], entry["input_sizes"], entry["output_sizes"]
            sent_types, got_types = entry["input_dtypes"], entry["output_dtypes"]
            # to compare lists is quicker than to hash them
            for a, b, c, d, call in self._recent.get(name, ()):
                if a == sent and b == got and c == sent_types and d == got_types:
                    return call
        except (TypeError, KeyError):
            return self._made(entry)
        if not all(map(is_listed, (sent, got, sent_types, got_types))):
            return self._made(entry)
        call = self._known(entry)
        recent = self._recent.setdefault(name, [])
        recent.append((sent, got, sent_types, got_types, call))
        del recent[:-RECENT_SIGNATURES]
        if len(self._recent) > MAX_SIGNATURES:
            self._recent.clear()
        return call

    def _known(self, entry: Any) -> Signature:
        """Look the signature up by the values of the fields, so that their texts need not be made again."""
        try:
            key = (
                entry["profiling_name"],
                tuple(map(tuple, entry["input_sizes"])),
                tuple(map(tuple, entry["output_sizes"])),
                tuple(entry["input_dtypes"]),
                tuple(entry["output_dtypes"]),
            )
            known = self._calls.get(key)
        except (TypeError, KeyError):
            return self._made(entry)
        if known is None:
            known = self._calls[key] = self._made(entry)
            if len(self._calls) > MAX_SIGNATURES:
                self._calls.clear()
        return known

    def _made(self, entry: Any) -> Signature:
        name = str(entry.get("profiling_name"))
        signature = Signature(
            name[name.find(":") + 1 :][:MAX_OP_NAME],
            listed(entry.get("input_sizes"), MAX_SIZES_TEXT),
            listed(entry.get("output_sizes"), MAX_SIZES_TEXT),
            listed(entry.get("input_dtypes"), MAX_DTYPES_TEXT),
            listed(entry.get("output_dtypes"), MAX_DTYPES_TEXT),
        )
        return self._signatures.setdefault(signature, signature)
