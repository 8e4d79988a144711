"""JSON's tokens in memory, as strict as the standard: compiled functions from an address to the one behind.

A token that is broken, or that ends at the end of the buffer, gives the address of the fault, negative. No function
passes a byte that it has not seen to belong to its token, and 0 belongs to none: the zeros behind the buffer stop all.
"""

from tracekit.ingest.kineto.compiled.memory import AT_ONCE, byte_at, compiled, plain_bytes, word_at
from tracekit.thresholds.ingest import MAX_ARRAYS

QUOTE, BACKSLASH, COMMA, COLON, MINUS, PLUS, POINT = (ord(c) for c in '"\\,:-+.')
ARRAY, ARRAY_END, OBJECT, OBJECT_END = (ord(c) for c in "[]{}")
ZERO, NINE, UPPER_A, UPPER_F, UPPER_E, LOWER_A, LOWER_F, LOWER_E, LOWER_U = (ord(c) for c in "09AFEafeu")
BLANK, TAB, LINE, RETURN = (ord(c) for c in " \t\n\r")
TRUE, ALSE, NULL = (int.from_bytes(w, "little") for w in (b"true", b"alse", b"null"))
FALSE_START, TRUE_START, NULL_START = (ord(c) for c in "ftn")
WORD = len(b"null")
HEX_DIGITS = len(b"0000")
FOUR_BYTES = 0xFFFFFFFF
ESCAPES = b'"\\/bfnrt'


@compiled
def blanks_end(at: int) -> int:
    """Return the address behind white space."""
    while True:
        byte = byte_at(at)
        if byte > BLANK or byte not in (BLANK, LINE, RETURN, TAB):
            return at
        at += 1


@compiled
def is_digit(byte: int) -> bool:
    """Whether a byte is a decimal digit."""
    return ZERO <= byte <= NINE


@compiled
def string_end(at: int) -> int:
    """Return the address of the quote that ends a string; `at` is behind the one that begins it."""
    while True:
        count = plain_bytes(at)
        at += count
        if count == AT_ONCE:
            continue
        byte = byte_at(at)
        if byte == QUOTE:
            return at
        if byte != BACKSLASH:
            return -at
        at = escape_end(at + 1)
        if at < 0:
            return at


@compiled
def has_escape(at: int, length: int) -> bool:
    """Whether a string of the length returned by `string_end` contains an escape."""
    while length > AT_ONCE:
        if plain_bytes(at) < AT_ONCE:
            return True
        at += AT_ONCE
        length -= AT_ONCE
    return plain_bytes(at) < length


@compiled
def escape_end(at: int) -> int:
    """Return the address behind an escape; `at` is behind its backslash."""
    byte = byte_at(at)
    if byte == LOWER_U:
        for _ in range(HEX_DIGITS):
            at += 1
            byte = byte_at(at)
            if not (is_digit(byte) or UPPER_A <= byte <= UPPER_F or LOWER_A <= byte <= LOWER_F):
                return -at
        return at + 1
    for known in ESCAPES:
        if byte == known:
            return at + 1
    return -at


@compiled
def digits_end(at: int) -> int:
    """Return the address behind one digit or more."""
    if not is_digit(byte_at(at)):
        return -at
    while is_digit(byte_at(at)):
        at += 1
    return at


@compiled
def number_end(at: int) -> int:
    """Return the address behind a number."""
    if byte_at(at) == MINUS:
        at += 1
    at = at + 1 if byte_at(at) == ZERO else digits_end(at)
    if at > 0 and byte_at(at) == POINT:
        at = digits_end(at + 1)
    if at > 0 and (byte_at(at) == LOWER_E or byte_at(at) == UPPER_E):
        sign = byte_at(at + 1)
        at = digits_end(at + 2 if sign in (PLUS, MINUS) else at + 1)
    return at


@compiled
def word_end(at: int) -> int:
    """Return the address behind `true`, `false` or `null`."""
    letters = word_at(at) & FOUR_BYTES
    if letters in (TRUE, NULL):
        return at + WORD
    if byte_at(at) == FALSE_START and word_at(at + 1) & FOUR_BYTES == ALSE:
        return at + 1 + WORD
    return -cut_word(at)


@compiled
def cut_word(at: int) -> int:
    """Return the address behind the small letters at hand: of a word that is cut off, the end of the buffer."""
    while LOWER_A <= byte_at(at) <= LOWER_U:
        at += 1
    return at


@compiled
def scalar_end(at: int) -> int:
    """Return the address behind a value that is no array and holds no other value."""
    byte = byte_at(at)
    if byte == QUOTE:
        at = string_end(at + 1)
        return at + 1 if at > 0 else at
    if byte == MINUS or is_digit(byte):
        return number_end(at)
    if byte == OBJECT:
        at = blanks_end(at + 1)
        return at + 1 if byte_at(at) == OBJECT_END else -at
    return word_end(at)


@compiled
def value_end(at: int) -> int:
    """Return the address behind any value but an object with members, or arrays deeper than `MAX_ARRAYS`."""
    depth = 0
    while True:
        if byte_at(at) == ARRAY:
            depth += 1
            if depth > MAX_ARRAYS:
                return -at
            at = blanks_end(at + 1)
            if byte_at(at) != ARRAY_END:
                continue
        else:
            at = scalar_end(at)
            if at < 0 or depth == 0:
                return at
            at = blanks_end(at)
        while byte_at(at) == ARRAY_END:
            depth -= 1
            at += 1
            if depth == 0:
                return at
            at = blanks_end(at)
        if byte_at(at) != COMMA:
            return -at
        at = blanks_end(at + 1)
