"""Signatures of calls: what was called with which sizes and types, one object for all dumps that repeat it.

Part of `flight_entry`.
"""

from typing import Any

from tracekit.dumps.calls import Signature

_MANY = 100_000
_RECENT = 4
_PARTS = 8


class Signatures:
    """Makes signatures of entries; a job has few, a dump thousands of entries."""

    def __init__(self) -> None:
        self._signatures: dict[Signature, Signature] = {}
        self._calls: dict[Any, Signature] = {}
        self._recent: dict[str, list[tuple[Any, Any, Any, Any, Signature]]] = {}

    def of(self, entries: tuple[Any, ...]) -> Signature:
        """Give the signature of one call: of its entry, or of all entries of a coalesced one."""
        if len(entries) > 1:
            parts = [
                self.of((e,)) for e in entries if not str(e.get("profiling_name")).endswith(":coalesced")
            ]
            texts = ("; ".join(part[i] for part in parts[:_PARTS]) for i in range(1, len(Signature._fields)))
            joined = Signature(parts[0].op if parts else "coalesced", *texts)
            return self._signatures.setdefault(joined, joined)
        return self.one(entries[0])

    def one(self, entry: Any) -> Signature:
        """Give the signature of a call that is one entry."""
        try:
            name, sent, got = entry["profiling_name"], entry["input_sizes"], entry["output_sizes"]
            sent_types, got_types = entry["input_dtypes"], entry["output_dtypes"]
            for a, b, c, d, call in self._recent.get(
                name, ()
            ):  # to compare lists is quicker than to hash them
                if a == sent and b == got and c == sent_types and d == got_types:
                    return call
        except (TypeError, KeyError):
            return self._signature(entry)
        call = self._known(entry)
        recent = self._recent.setdefault(name, [])
        recent.append((sent, got, sent_types, got_types, call))
        del recent[:-_RECENT]
        if len(self._recent) > _MANY:
            self._recent.clear()
        return call

    def _known(self, entry: Any) -> Signature:
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
            return self._signature(entry)
        if known is None:
            known = self._calls[key] = self._signature(entry)
            if len(self._calls) > _MANY:
                self._calls.clear()
        return known

    def _signature(self, entry: Any) -> Signature:
        name = str(entry.get("profiling_name"))
        signature = Signature(
            name[name.find(":") + 1 :][:80],
            str(entry.get("input_sizes"))[:400],
            str(entry.get("output_sizes"))[:400],
            str(entry.get("input_dtypes"))[:200],
            str(entry.get("output_dtypes"))[:200],
        )
        return self._signatures.setdefault(signature, signature)
