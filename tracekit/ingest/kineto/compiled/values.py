"""Values of an event in memory: each put into its slot, or found odd, which means that the general reader decides.

An odd value is one that the general reader repairs, drops or reads in a way of its own; it is passed over by the
standard's rules, since events that are not stored may hold it.
"""

from tracekit.ingest.kineto.compiled.layout import At, Kind, Value
from tracekit.ingest.kineto.compiled.memory import byte_at, compiled, put_word, word_at
from tracekit.ingest.kineto.compiled.texts import PLAIN, traits
from tracekit.ingest.kineto.compiled.tokens import (
    ARRAY,
    ARRAY_END,
    COMMA,
    FOUR_BYTES,
    LOWER_A,
    LOWER_E,
    MINUS,
    NULL,
    POINT,
    QUOTE,
    UPPER_E,
    ZERO,
    blanks_end,
    is_digit,
    number_end,
    string_end,
    value_end,
)
from tracekit.thresholds.ingest import (
    MAX_CODED_DIGITS,
    MAX_COMMS_DIGITS,
    MAX_FRACTION,
    MAX_MICROS,
    MAX_MICROS_DIGITS,
)

WORD = 8
HAS, ODD, WORDS = WORD * At.HAS, WORD * At.ODD, WORD * At.WORDS
VALUES = WORD * At.VALUES
VALUE, LENGTH = WORD * Value.COUNT, WORD * Value.LENGTH
NUMBER, ID, TIME, TEXT, DIGITS, IS_PHASE, INPUTS = (
    int(k) for k in (Kind.NUMBER, Kind.ID, Kind.TIME, Kind.TEXT, Kind.DIGITS, Kind.PHASE, Kind.INPUTS)
)
FIRST, SHAPES, TYPES = (int(k) for k in (Kind.FIRST, Kind.SHAPES, Kind.TYPES))
NANO_DIGITS = 3
"""Digits of a microsecond that are whole nanoseconds."""
CASE = 0x20
"""The bit by which a small letter differs from a large one."""
LOWER_Z = ord("z")
HALF = ord("5")
"""A first lost digit above it rounds up, one below it down."""


@compiled
def put(state: int, slot: int, first: int, length: int) -> None:
    """Give a slot its value."""
    at = word_at(state + VALUES) + slot * VALUE
    put_word(at, first)
    put_word(at + LENGTH, length)
    put_word(state + HAS, word_at(state + HAS) | (1 << slot))


@compiled
def odd_end(state: int, at: int) -> int:
    """Return the address behind a value of the wrong kind; `null` means no value, any other is odd."""
    if word_at(at) & FOUR_BYTES != NULL:
        put_word(state + ODD, 1)
    return value_end(at)


@compiled
def taken_end(state: int, kind: int, slot: int, at: int) -> int:
    """Return the address behind the value of a key that is looked for."""
    byte = byte_at(at)
    if kind == SHAPES:
        return shapes_end(state, slot, at) if byte == ARRAY else value_end(at)
    if byte == QUOTE:
        return quoted_end(state, kind, slot, at)
    if byte == MINUS or is_digit(byte):
        if kind in (NUMBER, ID):
            return integer_end(state, slot, at)
        if kind == TIME:
            return time_end(state, slot, at)
        if kind == DIGITS:
            return bare_digits_end(state, slot, at)
    elif kind in (INPUTS, TYPES) and byte == ARRAY:
        end = value_end(at)
        if end > 0:
            put(state, slot, at, end - at)
        return end
    elif kind == FIRST and byte == ARRAY:
        return first_end(state, slot, at)
    return odd_end(state, at)


@compiled
def shapes_end(state: int, slot: int, at: int) -> int:
    """Return the address behind a list, which is the value of a slot if it holds lists of whole numbers alone."""
    end = value_end(at)
    here = at
    while here < end:
        byte = byte_at(here)
        if not (is_digit(byte) or byte in (ARRAY, ARRAY_END, COMMA)):
            blank = blanks_end(here)
            if blank == here:
                return end
            here = blank - 1
        here += 1
    if end > 0:
        put(state, slot, at, end - at)
    return end


@compiled
def first_end(state: int, slot: int, at: int) -> int:
    """Return the address behind a list that is empty or begins with an integer."""
    first = blanks_end(at + 1)
    byte = byte_at(first)
    if byte == MINUS or is_digit(byte):
        integer_end(state, slot, first)
    elif byte != ARRAY_END:
        put_word(state + ODD, 1)
    return value_end(at)


@compiled
def quoted_end(state: int, kind: int, slot: int, at: int) -> int:
    """Return the address behind a string that is the value of a key."""
    start = at + 1
    end = string_end(start)
    if end < 0:
        return end
    length = end - start
    if kind == TEXT:
        put(state, slot, start, length)
    elif kind == IS_PHASE and length == 1 and LOWER_A <= byte_at(start) | CASE <= LOWER_Z:
        put(state, slot, byte_at(start), 1)
    elif kind == DIGITS and is_plain_count(start, length):
        put(state, slot, start, length)
    elif kind == ID and LOWER_A <= byte_at(start) | CASE <= LOWER_Z and traits(start, length) == PLAIN:
        put_word(state + WORDS, 1)
    else:
        put_word(state + ODD, 1)
    return end + 1


@compiled
def is_plain_count(start: int, length: int) -> bool:
    """Whether a text is an unsigned integer as one would write it, short enough for every reader."""
    if length == 0 or length > MAX_COMMS_DIGITS or (byte_at(start) == ZERO and length > 1):
        return False
    for i in range(length):  # noqa: SIM110 (generators are not compiled)
        if not is_digit(byte_at(start + i)):
            return False
    return True


@compiled
def bare_digits_end(state: int, slot: int, at: int) -> int:
    """Return the address behind a number that is kept as text."""
    end = number_end(at)
    if end > 0:
        if is_plain_count(at, end - at):
            put(state, slot, at, end - at)
        else:
            put_word(state + ODD, 1)
    return end


@compiled
def integer_end(state: int, slot: int, at: int) -> int:
    """Return the address behind an integer."""
    negative = byte_at(at) == MINUS
    start = here = at + negative
    value = 0
    while is_digit(byte_at(here)) and here - start < MAX_CODED_DIGITS:
        value = 10 * value + byte_at(here) - ZERO
        here += 1
    if value > 0 and byte_at(start) != ZERO and is_behind_number(byte_at(here)):
        put(state, slot, -value if negative else value, 0)
        return here
    end = number_end(at)
    if value == 0 and end == here and not negative:
        put(state, slot, 0, 0)
    else:
        put_word(state + ODD, 1)
    return end


@compiled
def is_behind_number(byte: int) -> bool:
    """Whether a byte ends a number of digits."""
    return not (is_digit(byte) or byte in (POINT, LOWER_E, UPPER_E))


@compiled
def time_end(state: int, slot: int, at: int) -> int:
    """Return the address behind microseconds, which become nanoseconds, half to even."""
    end = number_end(at)
    if end < 0:
        return end
    negative = byte_at(at) == MINUS
    start = at + negative
    value = 0
    here = start
    while here < end and is_digit(byte_at(here)) and here - start <= MAX_MICROS_DIGITS:
        value = 10 * value + byte_at(here) - ZERO
        here += 1
    plain = here - start <= MAX_MICROS_DIGITS and value <= MAX_MICROS
    fraction = here + 1
    if here < end and byte_at(here) == POINT:
        here = fraction
        while here < end and is_digit(byte_at(here)):
            here += 1
    if plain and here == end and here - fraction <= MAX_FRACTION:
        value = rounded(value, fraction, end)
        put(state, slot, -value if negative else value, 0)
    else:
        put_word(state + ODD, 1)
    return end


@compiled
def rounded(value: int, fraction: int, end: int) -> int:
    """Return nanoseconds of whole microseconds and the digits of a fraction, which end at `end`."""
    for i in range(NANO_DIGITS):
        digit = byte_at(fraction + i) - ZERO if fraction + i < end else 0
        value = 10 * value + digit
    rest = fraction + NANO_DIGITS
    if rest >= end or byte_at(rest) < HALF:
        return value
    above = byte_at(rest) > HALF
    for at in range(rest + 1, end):
        above = above or byte_at(at) > ZERO
    return value + 1 if above or value % 2 == 1 else value
