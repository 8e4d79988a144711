"""Compiles the scanner to machine code of this processor: `python -m tracekit.ingest.kineto.compiled.build FILE`.

A separate process imports numba, which takes seconds and a hundred megabytes; reading processes load only its result.
"""

import sys
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba import njit

from tracekit.ingest.kineto.compiled.layout import At, Ending, Key, Kind, Place
from tracekit.ingest.kineto.compiled.machine import SYMBOL, target
from tracekit.ingest.kineto.compiled.memory import byte_at, compiled, put_word, word_at
from tracekit.ingest.kineto.compiled.rows import MARKED, ROW, STOPPED, stored
from tracekit.ingest.kineto.compiled.texts import WORD, hash_of, same
from tracekit.ingest.kineto.compiled.tokens import (
    ARRAY_END,
    COLON,
    COMMA,
    OBJECT,
    OBJECT_END,
    QUOTE,
    blanks_end,
    has_escape,
    string_end,
    value_end,
)
from tracekit.ingest.kineto.compiled.values import HAS, ODD, WORDS, odd_end, taken_end
from tracekit.thresholds.ingest import KEY_TABLE, MAX_KEYS

NEXT, END, PLACE, ROWS, KEYS, SEEN, OPENED = (
    WORD * a for a in (At.NEXT, At.END, At.PLACE, At.ROWS, At.KEYS, At.SEEN, At.OPENED)
)
KEY = WORD * Key.COUNT
KEY_KIND, KEY_SLOT, KEY_ADDRESS, KEY_LENGTH, KEY_MARK = (
    WORD * w for w in (Key.KIND, Key.SLOT, Key.ADDRESS, Key.LENGTH, Key.MARK)
)
BEHIND_EVENT = int(Place.BEHIND_EVENT)
MORE, DONE, FULL, REFUSED = (int(e) for e in Ending)
ARGUMENTS = int(Kind.ARGUMENTS)


@compiled
def entry_of(state: int, argument: int, mixed: int, at: int, length: int) -> int:
    """Return the address of the entry of a key, 0 if it is not searched for."""
    keys = word_at(state + KEYS) + argument * KEY_TABLE * KEY
    place = mixed & (KEY_TABLE - 1)
    for _ in range(KEY_TABLE):
        entry = keys + place * KEY
        if word_at(entry + KEY_KIND) == 0:
            return 0
        if word_at(entry) == mixed and word_at(entry + KEY_LENGTH) == length:
            return entry if same(word_at(entry + KEY_ADDRESS), at, length) else 0
        place = (place + 1) & (KEY_TABLE - 1)
    return 0


@compiled
def is_new(state: int, first: int, count: int, mixed: int) -> bool:
    """Note the hash of a key; false if the current object, with keys from `first` on, had an equal one."""
    if count >= MAX_KEYS:
        return False
    seen = word_at(state + SEEN)
    for i in range(first, count):
        if word_at(seen + WORD * i) == mixed:
            return False
    put_word(seen + WORD * count, mixed)
    return True


@compiled
def member_end(state: int, argument: int, first: int, count: int, at: int) -> int:
    """Return the address behind a key and its value; of arguments that open, which sets OPENED, their first key's."""
    if byte_at(at) != QUOTE:
        return -at
    start = at + 1
    at = string_end(start)
    if at < 0:
        return at
    length = at - start
    mixed = hash_of(start, length)
    if not is_new(state, first, count, mixed):
        return -start
    entry = entry_of(state, argument, mixed, start, length)
    if entry == 0 and has_escape(start, length):
        return -start
    at = blanks_end(at + 1)
    if byte_at(at) != COLON:
        return -at
    at = blanks_end(at + 1)
    if entry == 0:
        return value_end(at)
    if word_at(entry + KEY_KIND) == ARGUMENTS:
        return arguments_end(state, at)
    put_word(state + MARKED, word_at(state + MARKED) | word_at(entry + KEY_MARK))
    return taken_end(state, word_at(entry + KEY_KIND), word_at(entry + KEY_SLOT), at)


@compiled
def arguments_end(state: int, at: int) -> int:
    """Return the address behind arguments without members; where there are some, that of the first."""
    if byte_at(at) != OBJECT:
        return odd_end(state, at)
    at = blanks_end(at + 1)
    if byte_at(at) == OBJECT_END:
        return at + 1
    put_word(state + OPENED, 1)
    return at


@compiled
def event_end(state: int, at: int) -> int:
    """Return the address behind an event, its values in their slots; negative where it cannot be read so."""
    put_word(state + HAS, 0)
    put_word(state + ODD, 0)
    put_word(state + WORDS, 0)
    put_word(state + MARKED, 0)
    argument = first = count = 0
    at = blanks_end(at + 1)
    while True:
        put_word(state + OPENED, 0)
        at = member_end(state, argument, first, count, at)
        if at < 0:
            return at
        count += 1
        if word_at(state + OPENED) != 0:
            argument, first = 1, count
            continue
        at = blanks_end(at)
        if argument == 1 and byte_at(at) == OBJECT_END:
            argument, count, first = 0, first, 0
            at = blanks_end(at + 1)
        if byte_at(at) == OBJECT_END:
            return at + 1 if argument == 0 else -at
        if byte_at(at) != COMMA:
            return -at
        at = blanks_end(at + 1)


@compiled
def scan(state: int) -> int:
    """Read events from `NEXT` on until something else is needed, and return why (Ending); all of an event, or none."""
    at = word_at(state + NEXT)
    end = word_at(state + END)
    place = word_at(state + PLACE)
    while True:
        start = blanks_end(at)
        if byte_at(start) == ARRAY_END:
            at, ending = start + 1, DONE
            break
        if place == BEHIND_EVENT and byte_at(start) == COMMA:
            start = blanks_end(start + 1)
        elif place == BEHIND_EVENT:
            ending = MORE if start >= end else REFUSED
            break
        behind = one_end(state, start)
        if behind <= 0:
            ending = FULL if behind == STOPPED else (MORE if -behind >= end else REFUSED)
            break
        at, place = behind, BEHIND_EVENT
    put_word(state + NEXT, at)
    put_word(state + PLACE, place)
    return ending


@compiled
def one_end(state: int, start: int) -> int:
    """Return the address behind an event, stored; STOPPED where there is no room, negative where it cannot be read."""
    if byte_at(start) != OBJECT:
        return -start
    if word_at(state + ROW) >= word_at(state + ROWS):
        return STOPPED
    behind = event_end(state, start)
    return stored(state, behind, start) if behind > 0 else behind


def machine_code() -> bytes:
    """Return the scanner as an object file; RuntimeError where it would call anything outside itself."""
    signed: Any = njit(
        "int64(int64)", nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
    )
    scanner: Any = scan
    made: Any = signed(scanner.py_func)
    result = made.overloads[made.signatures[0]]
    module = llvm.parse_assembly(result.library.get_llvm_str())
    foreign = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
    if foreign:
        raise RuntimeError(f"the compiled scanner calls {', '.join(foreign)}")
    module.get_function(result.fndesc.llvm_func_name).name = SYMBOL
    code: bytes = target().emit_object(module)
    return code


def main() -> None:
    """Write the machine code to the file named."""
    Path(sys.argv[1]).write_bytes(machine_code())


if __name__ == "__main__":
    main()
