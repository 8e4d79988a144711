"""What Python and the compiled scanner share in memory: the order of words, and the keys that are looked for."""

from enum import IntEnum
from typing import Final, NamedTuple

from tracekit.ingest.kineto.event_fields import ARGS, COMMS, COMMS_MARKS, INPUTS, SCANNED, SHAPES, TOP, TYPES
from tracekit.schema import DICT

PADDING: Final = 64
"""Zero bytes behind a buffer that is scanned."""
MIX: Final = -7046029254386353131
"""2^64 by the golden ratio, odd and signed: multiplication by it spreads low bits over the high ones."""
HALF: Final = 32
LOW_HALF: Final = 0xFFFFFFFF
_WORD: Final = 8


class At(IntEnum):
    """Place of each word of a scan's state, 8 bytes each."""

    NEXT = 0  # address of what is to be read next
    END = 1  # address behind the last byte, where the zeros begin
    PLACE = 2  # a Place
    ROW = 3
    ROWS = 4  # rows that fit
    WITHOUT_TIME = 5  # events without a start
    PHASES = 6  # address of the counts of phases, by byte
    KEYS = 7  # address of the table of keys, Key words each
    SEEN = 8  # address of the hashes of the keys of the event at hand
    VALUES = 9  # address of the values of the event at hand, Value words by slot
    COLUMNS = 10  # address of the addresses of the columns, by slot
    FILLED = 11  # address of the counts of values, by slot
    POOLS = 12  # address of the pools, Pool words by slot
    HAS = 13  # bits of the slots that have a value in the event at hand
    ODD = 14  # whether a value of it may be read in more than one way
    WORDS = 15  # whether it has words for ids
    MARKED = 16  # whether it says that it is communication
    OPENED = 17  # whether arguments begin at the address just returned
    COUNT = 18  # words of the state


class Place(IntEnum):
    """Where in the event array a scan stopped."""

    START = 0
    BEHIND_EVENT = 1


class Ending(IntEnum):
    """Why a scan stopped."""

    MORE = 0  # the bytes end inside an event, or behind one
    DONE = 1  # the end of the array
    FULL = 2  # rows or words are to be taken away first
    REFUSED = 3  # the part from here on needs the general reader


class Key(IntEnum):
    """Words of an entry of the table of keys."""

    HASH = 0
    KIND = 1  # 0 in an empty entry
    SLOT = 2
    ADDRESS = 3
    LENGTH = 4
    MARK = 5
    COUNT = 6


class Value(IntEnum):
    """Words of a value: a number, or the address and length of a text."""

    FIRST = 0
    LENGTH = 1
    COUNT = 2


class Pool(IntEnum):
    """Words of a pool, which numbers the different texts of a column."""

    TABLE = 0  # address of codes + 1 by hash; 0 where empty
    HASHES = 1  # address of hashes by code
    ENDS = 2  # address of the ends of texts by code, one 0 in front
    TEXT = 3  # address of all texts
    SIZE = 4  # texts in the pool
    ESCAPED = 5  # texts that hold escapes
    COUNT = 6


class Kind(IntEnum):
    """How the value of a key is read."""

    OTHER = 0
    NUMBER = 1
    ID = 2  # a number, or a word in Kineto's own events
    TIME = 3
    TEXT = 4
    DIGITS = 5  # an unsigned number, quoted or bare, kept as text
    PHASE = 6
    INPUTS = 7
    ARGUMENTS = 8
    FIRST = 9  # the first number of a list
    SHAPES = 10  # a list of lists of whole numbers, kept as text
    TYPES = 11  # a list, kept as text


class Slot(NamedTuple):
    """A key that is looked for; `column` is its place in SCANNED."""

    key: str
    kind: Kind
    column: int
    argument: bool
    mark: bool = False


def _kind(column: str, *, text: bool) -> Kind:
    special = {"ph": Kind.PHASE, "comms_id": Kind.DIGITS, "pid": Kind.ID, "tid": Kind.ID, "grid": Kind.FIRST}
    return special.get(column, Kind.TEXT if text else Kind.NUMBER)


_LISTS: Final = {Kind.INPUTS: INPUTS, Kind.SHAPES: SHAPES, Kind.TYPES: TYPES}


def _slots() -> tuple[Slot, ...]:
    """All keys with a value; of two spellings of one column the later entry counts, so the first spelling is last."""
    slots = [Slot("ts", Kind.TIME, 0, argument=False), Slot("dur", Kind.TIME, 1, argument=False)]
    for field in (*TOP, *ARGS):
        column = SCANNED.get_field_index(field.column)
        kind = next((k for k, fields in _LISTS.items() if field in fields), None)
        kind = kind or _kind(field.column, text=field.type == DICT)
        for key in reversed(field.keys):
            mark = any(f'"{key}"'.startswith(m.decode()) for m in COMMS_MARKS)
            slots.append(Slot(key, kind, column, argument=field in ARGS, mark=mark))
    return tuple(slots)


SLOTS: Final = _slots()
"""The keys by slot. Slots of texts have a pool."""
ARGUMENTS_KEY: Final = "args"
NAMES: Final = {s.key: i for i, s in enumerate(SLOTS)}
TS, DUR, PHASE, CATEGORY, NAME, PEER, INPUT_TYPES = (
    NAMES[k] for k in ("ts", "dur", "ph", "cat", "name", "Concrete Inputs", "Input type")
)
BITS_TEXT: Final = sum(
    1 << i for i, s in enumerate(SLOTS) if s.kind in {Kind.TEXT, Kind.DIGITS, Kind.SHAPES, Kind.TYPES}
)
"""Bits of the slots with values that a pool numbers."""
BITS_COMMS: Final = sum(
    1 << i for i, s in enumerate(SLOTS) if s.column in {SCANNED.get_field_index(f.column) for f in COMMS}
)
"""Bits of the slots that the general reader looks for only near a mark of communication."""


def hash_of(text: bytes) -> int:
    """Return the hash of a key as the compiled `texts.hash_of` does, a signed 64-bit integer."""
    bits = 2 * HALF
    mixed = len(text)
    for at in range(0, len(text), _WORD):
        word = int.from_bytes(text[at : at + _WORD], "little")
        mixed = ((mixed ^ word) * MIX) & ((1 << bits) - 1)
        mixed ^= mixed >> HALF
    return mixed - (1 << bits) if mixed >> (bits - 1) else mixed
