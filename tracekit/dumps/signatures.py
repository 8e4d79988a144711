"""Signatures and stacks of calls, one object for all that are equal: a job has few, its dumps repeat them often.

Part of `entries`.
"""

from typing import Any, Final

from tracekit.dumps.calls import Signature
from tracekit.dumps.fields import frame_text, is_listed, listed
from tracekit.dumps.rank_dump import Stack
from tracekit.thresholds.dumps import (
    MAX_DTYPES_TEXT,
    MAX_FRAMES,
    MAX_OP_NAME,
    MAX_PARTS_SHOWN,
    MAX_SIGNATURES,
    MAX_SIZES_TEXT,
    RECENT_SIGNATURES,
)

_TEXT: Final = frozenset({str})
_PLAIN: Final = frozenset({str, int})


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


class Stacks:
    """Makes the stacks of entries, and keeps those it has made."""

    def __init__(self) -> None:
        self._stacks: dict[Stack, Stack] = {}
        self._texts: dict[Any, str] = {}
        self._known: dict[tuple[int, ...], Stack] = {}
        self._recent: list[tuple[Any, Stack]] = []

    def of(self, entry: Any) -> Stack:
        """Give the stack of an entry; an empty one where none is recorded."""
        frames = entry.get("frames")
        if not isinstance(frames, (list, tuple)) or not frames:
            return ()
        for other, stack in self._recent:
            if other == frames:
                return stack
        key = tuple(map(id, frames[:MAX_FRAMES]))  # a recorder writes each frame once, and refers to it
        known = self._known.get(key)
        if known is None:
            texts = tuple([text for frame in frames[:MAX_FRAMES] if (text := self._text(frame))])
            known = self._known[key] = self._stacks.setdefault(texts, texts)
            if all(map(_is_plain, frames)):
                self._recent.append((frames, known))
                del self._recent[:-RECENT_SIGNATURES]
        return known

    def next_dump(self) -> None:
        """Forget which objects the last dump was made of: another dump's may lie at the same places."""
        self._known.clear()
        if max(len(self._stacks), len(self._texts)) > MAX_SIGNATURES:
            self._stacks.clear()
            self._texts.clear()

    def _text(self, frame: Any) -> str:
        """Give the text of a frame, looked up by its fields."""
        if not _is_plain(frame):
            return frame_text(frame)
        key = (frame.get("filename"), frame.get("line"), frame.get("name"))
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = frame_text(frame)
        return text


def _is_plain(frame: Any) -> bool:
    """Whether a frame is a mapping of texts and numbers, as a recorder writes it: quick to compare and to hash."""
    return (
        type(frame) is dict
        and _TEXT.issuperset(map(type, frame))
        and _PLAIN.issuperset(map(type, frame.values()))
    )
