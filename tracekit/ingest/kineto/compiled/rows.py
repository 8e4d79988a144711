"""The event at hand becomes a row of the columns, if the general reader would read it in one way only."""

from tracekit.ingest.kineto.compiled.layout import (
    BITS_COMMS,
    BITS_TEXT,
    CATEGORY,
    INPUT_TYPES,
    NAME,
    PEER,
    PHASE,
    TS,
    At,
    Pool,
)
from tracekit.ingest.kineto.compiled.memory import (
    byte_at,
    compiled,
    lowest_bit,
    put_code,
    put_word,
    word_at,
)
from tracekit.ingest.kineto.compiled.texts import CODE, NO_ROOM, WITH_ESCAPE, WORD, code_of, traits
from tracekit.ingest.kineto.compiled.tokens import (
    ARRAY_END,
    COMMA,
    QUOTE,
    ZERO,
    blanks_end,
    is_digit,
    string_end,
)
from tracekit.ingest.kineto.compiled.values import HAS, LENGTH, ODD, VALUE, VALUES, WORDS
from tracekit.thresholds.ingest import MAX_PEER_DIGITS

ROW, WITHOUT_TIME, PHASES, COLUMNS, FILLED, POOLS, MARKED = (
    WORD * a for a in (At.ROW, At.WITHOUT_TIME, At.PHASES, At.COLUMNS, At.FILLED, At.POOLS, At.MARKED)
)
POOL = WORD * Pool.COUNT
STOPPED = 0
"""No address: rows or texts are to be taken away before the event can be stored."""
COMPLETE, BEGIN, FINISH = (ord(c) for c in "XBE")
TRACE = int.from_bytes(b"Trace", "little")
CALL_START = int.from_bytes(b"c10d::se", "little")
RECEIVE_START = int.from_bytes(b"c10d::re", "little")
SEND_END = int.from_bytes(b"nd", "little")
RECEIVE_END = int.from_bytes(b"cv_", "little")
GLOO = int.from_bytes(b"gloo:", "little")
GLOO_LENGTH = len(b"gloo:")
GLOO_BYTES = (1 << (WORD * GLOO_LENGTH)) - 1
TRACE_LENGTH, SEND_LENGTH, RECEIVE_LENGTH = (len(w) for w in (b"Trace", b"c10d::send", b"c10d::recv_"))


@compiled
def text_is(state: int, slot: int, first_word: int, last_word: int, length: int) -> bool:
    """Return whether a slot holds the text of `length` bytes with these words: the first 8 bytes, and the others."""
    if word_at(state + HAS) & (1 << slot) == 0:
        return False
    value = word_at(state + VALUES) + slot * VALUE
    at = word_at(value)
    if word_at(value + LENGTH) != length:
        return False
    head = min(length, WORD)
    mask = -1 if head == WORD else (1 << (WORD * head)) - 1
    if word_at(at) & mask != first_word:
        return False
    rest = length - head
    return rest == 0 or word_at(at + WORD) & ((1 << (WORD * rest)) - 1) == last_word


@compiled
def names_peer(state: int) -> bool:
    """Return whether the current event is a call with inputs that name its peer."""
    return text_is(state, NAME, CALL_START, SEND_END, SEND_LENGTH) or text_is(
        state, NAME, RECEIVE_START, RECEIVE_END, RECEIVE_LENGTH
    )


@compiled
def is_on_gloo(state: int) -> bool:
    """Return whether the name of the current event begins as those of calls on Gloo."""
    value = word_at(state + VALUES) + NAME * VALUE
    named = word_at(state + HAS) & (1 << NAME) != 0
    return named and word_at(value + LENGTH) > GLOO_LENGTH and word_at(word_at(value)) & GLOO_BYTES == GLOO


@compiled
def keep_types(state: int) -> None:
    """Take the types of inputs away from any event but a call on Gloo; odd where an escape is among them."""
    value = word_at(state + VALUES) + INPUT_TYPES * VALUE
    if not is_on_gloo(state):
        put_word(state + HAS, word_at(state + HAS) & ~(1 << INPUT_TYPES))
    elif traits(word_at(value), word_at(value + LENGTH)) & WITH_ESCAPE:
        put_word(state + ODD, 1)


@compiled
def find_peer(state: int) -> None:
    """Put the last text but one of the inputs into their slot, as a number; odd where they are no plain texts."""
    value = word_at(state + VALUES) + PEER * VALUE
    at = blanks_end(word_at(value) + 1)
    last = last_length = before = before_length = -1
    while byte_at(at) == QUOTE:
        before, before_length = last, last_length
        last = at + 1
        at = string_end(last)
        last_length = at - last
        if traits(last, last_length) & WITH_ESCAPE:
            break
        at = blanks_end(at + 1)
        if byte_at(at) == COMMA:
            at = blanks_end(at + 1)
    if byte_at(at) != ARRAY_END:
        put_word(state + ODD, 1)
    number = 0
    is_number = 0 < before_length <= MAX_PEER_DIGITS
    for i in range(before_length if is_number else 0):
        is_number = is_number and is_digit(byte_at(before + i))
        number = 10 * number + byte_at(before + i) - ZERO
    put_word(value, number)
    if not is_number:
        drop_peer(state)


@compiled
def drop_peer(state: int) -> None:
    """Take the value of the inputs away."""
    put_word(state + HAS, word_at(state + HAS) & ~(1 << PEER))


@compiled
def code_texts(state: int) -> int:
    """Number the texts of the event at hand in their slots; negative where a pool has no room."""
    left = word_at(state + HAS) & BITS_TEXT
    while left != 0:
        slot = lowest_bit(left)
        value = word_at(state + VALUES) + slot * VALUE
        code = code_of(word_at(state + POOLS) + slot * POOL, word_at(value), word_at(value + LENGTH))
        if code < 0:
            return code
        put_word(value, code)
        left &= left - 1
    return 0


@compiled
def put_row(state: int) -> None:
    """Put the values of the event at hand into the columns, in the next row."""
    row = word_at(state + ROW)
    left = word_at(state + HAS)
    while left != 0:
        slot = lowest_bit(left)
        value = word_at(word_at(state + VALUES) + slot * VALUE)
        column = word_at(word_at(state + COLUMNS) + WORD * slot)
        if BITS_TEXT & (1 << slot):
            put_code(column + CODE * row, value)
        else:
            put_word(column + WORD * row, value)
        filled = word_at(state + FILLED) + WORD * slot
        put_word(filled, word_at(filled) + 1)
        left &= left - 1
    put_word(state + ROW, row + 1)


@compiled
def add(address: int) -> None:
    """Add 1 to a word."""
    put_word(address, word_at(address) + 1)


@compiled
def stored(state: int, at: int, start: int) -> int:
    """Store the event at hand, which ends at `at`; return that, STOPPED where there is no room, or a negative."""
    has = word_at(state + HAS)
    if has & (1 << PHASE) == 0:
        return -start
    phase = word_at(word_at(state + VALUES) + PHASE * VALUE)
    count = word_at(state + PHASES) + WORD * phase
    if phase not in (COMPLETE, BEGIN, FINISH):
        add(count)
        return at
    if word_at(state + WORDS) != 0 and not text_is(state, CATEGORY, TRACE, 0, TRACE_LENGTH):
        return -start
    if has & (1 << PEER) and not names_peer(state):
        drop_peer(state)
    elif has & (1 << PEER):
        find_peer(state)
    if has & (1 << INPUT_TYPES):
        keep_types(state)
    if word_at(state + ODD) != 0:
        return -start
    if has & BITS_COMMS != 0 and word_at(state + MARKED) == 0:
        return -start
    if has & (1 << TS) == 0:
        add(state + WITHOUT_TIME)
    else:
        code = code_texts(state)
        if code < 0:
            return STOPPED if code == NO_ROOM else -start
        put_row(state)
    add(count)
    return at
