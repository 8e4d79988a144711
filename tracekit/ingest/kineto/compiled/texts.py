"""Texts in memory: their hash, their traits, and pools that number the different ones of a column."""

from tracekit.ingest.kineto.compiled.layout import HALF, LOW_HALF, MIX, Pool
from tracekit.ingest.kineto.compiled.memory import (
    byte_at,
    code_at,
    compiled,
    put_byte,
    put_code,
    put_word,
    word_at,
)
from tracekit.ingest.kineto.compiled.tokens import BACKSLASH
from tracekit.thresholds.ingest import MAX_PROBES, POOL_BYTES, POOL_TABLE, POOL_WORDS

WORD = 8
CODE = 4
BITS = 8
TABLE, HASHES, ENDS, TEXT, SIZE, ESCAPED = (
    WORD * w for w in (Pool.TABLE, Pool.HASHES, Pool.ENDS, Pool.TEXT, Pool.SIZE, Pool.ESCAPED)
)
PLAIN, WITH_ESCAPE, WITH_HIGH_BIT = 0, 1, 2
HIGH_BIT = 0x80
NO_ROOM, NO_PLACE = -1, -2


@compiled
def hash_of(at: int, length: int) -> int:
    """Return a hash of a text; never reads behind the 8 bytes in which it ends."""
    mixed = length
    left = length
    while left > 0:
        word = word_at(at)
        if left < WORD:
            word &= (1 << (BITS * left)) - 1
        mixed = (mixed ^ word) * MIX
        mixed ^= (mixed >> HALF) & LOW_HALF
        at += WORD
        left -= WORD
    return mixed


@compiled
def same(one: int, other: int, length: int) -> bool:
    """Whether two texts of one length are equal."""
    while length > 0:
        differ = word_at(one) ^ word_at(other)
        if length < WORD:
            differ &= (1 << (BITS * length)) - 1
        if differ != 0:
            return False
        one += WORD
        other += WORD
        length -= WORD
    return True


@compiled
def traits(at: int, length: int) -> int:
    """Return whether a text holds a backslash (WITH_ESCAPE) or a byte that is no ASCII (WITH_HIGH_BIT)."""
    found = PLAIN
    for i in range(length):
        byte = byte_at(at + i)
        if byte == BACKSLASH:
            found |= WITH_ESCAPE
        if byte >= HIGH_BIT:
            found |= WITH_HIGH_BIT
    return found


@compiled
def code_of(pool: int, at: int, length: int) -> int:
    """Return the number of a text; NO_ROOM where the pool is full, NO_PLACE where too many texts hash alike."""
    mixed = hash_of(at, length)
    table, ends = word_at(pool + TABLE), word_at(pool + ENDS)
    place = mixed & (POOL_TABLE - 1)
    for _ in range(MAX_PROBES):
        code = code_at(table + CODE * place) - 1
        if code < 0:
            return added(pool, at, length, mixed, place)
        if word_at(word_at(pool + HASHES) + WORD * code) == mixed:
            start = code_at(ends + CODE * code)
            if code_at(ends + CODE * (code + 1)) - start == length and same(
                word_at(pool + TEXT) + start, at, length
            ):
                return code
        place = (place + 1) & (POOL_TABLE - 1)
    return NO_PLACE


@compiled
def added(pool: int, at: int, length: int, mixed: int, place: int) -> int:
    """Add a text to a pool at a place of its table; return its number, or NO_ROOM."""
    size = word_at(pool + SIZE)
    ends = word_at(pool + ENDS)
    start = code_at(ends + CODE * size)
    if size >= POOL_WORDS or length > POOL_BYTES - start:
        return NO_ROOM
    text = word_at(pool + TEXT) + start
    for i in range(length):
        put_byte(text + i, byte_at(at + i))
    if traits(at, length) & WITH_ESCAPE:
        put_word(pool + ESCAPED, word_at(pool + ESCAPED) + 1)
    put_code(ends + CODE * (size + 1), start + length)
    put_word(word_at(pool + HASHES) + WORD * size, mixed)
    put_code(word_at(pool + TABLE) + CODE * place, size + 1)
    put_word(pool + SIZE, size + 1)
    return size
