"""Reads and writes of memory by address, for compiled code only.

Nothing here checks an address. The scanner reads forward from bytes that it has seen not to be 0, in buffers that end
in `layout.PADDING` zeros; that is more than any of these functions reads at once.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., int | None])
AT_ONCE = 32
"""Bytes that `plain_bytes` looks at together."""
_BYTE, _INT32, _INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_LANES = ir.VectorType(_BYTE, AT_ONCE)


def compiled(function: Function) -> Function:
    """Return a function that compiled functions may call; on integers only, never on arrays, which would be slow."""
    inner: Any = njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
    made: Function = inner(function)
    return made


def _at(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _loaded(builder: Any, address: Any, kind: Any) -> Any:
    found = builder.load(_at(builder, address, kind))
    found.align = 1
    return found


def _same(constant: int) -> Any:
    return ir.Constant(_LANES, [constant] * AT_ONCE)


def _byte_at(_context: Any, _address: Any) -> Any:
    """Return the byte at an address, 0 to 255."""

    def code(_: Any, builder: Any, __: Any, args: Any) -> Any:
        return builder.zext(_loaded(builder, args[0], _BYTE), _INT64)

    return types.int64(types.int64), code


def _word_at(_context: Any, _address: Any) -> Any:
    """Return the 8 bytes at an address as an integer, little-endian on every machine that we know."""

    def code(_: Any, builder: Any, __: Any, args: Any) -> Any:
        return _loaded(builder, args[0], _INT64)

    return types.int64(types.int64), code


def _code_at(_context: Any, _address: Any) -> Any:
    """Return the 32-bit integer at an address."""

    def code(_: Any, builder: Any, __: Any, args: Any) -> Any:
        return builder.sext(_loaded(builder, args[0], _INT32), _INT64)

    return types.int64(types.int64), code


def _storing(kind: Any) -> Any:
    def typed(_context: Any, _address: Any, _value: Any) -> Any:
        def code(_: Any, builder: Any, __: Any, args: Any) -> Any:
            value = args[1] if kind is _INT64 else builder.trunc(args[1], kind)
            builder.store(value, _at(builder, args[0], kind)).align = 1
            return args[1]

        return types.int64(types.int64, types.int64), code

    return intrinsic(typed)


def _plain_bytes(_context: Any, _address: Any) -> Any:
    """Return how many bytes at an address, up to `AT_ONCE`, are neither quote, backslash nor control character."""

    def code(_: Any, builder: Any, __: Any, args: Any) -> Any:
        lanes = _loaded(builder, args[0], _LANES)
        stop = builder.icmp_unsigned("==", lanes, _same(ord('"')))
        stop = builder.or_(stop, builder.icmp_unsigned("==", lanes, _same(ord("\\"))))
        stop = builder.or_(stop, builder.icmp_unsigned("<", lanes, _same(ord(" "))))
        mask = builder.zext(builder.bitcast(stop, ir.IntType(AT_ONCE)), _INT64)
        mask = builder.or_(mask, ir.Constant(_INT64, 1 << AT_ONCE))
        return builder.cttz(mask, ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), code


def _lowest_bit(_context: Any, _mask: Any) -> Any:
    """Return the place of the lowest bit that is set; there must be one."""

    def code(_: Any, builder: Any, __: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), code


Read = Callable[[int], int]
Write = Callable[[int, int], int]
byte_at: Read = intrinsic(_byte_at)
word_at: Read = intrinsic(_word_at)
code_at: Read = intrinsic(_code_at)
plain_bytes: Read = intrinsic(_plain_bytes)
lowest_bit: Read = intrinsic(_lowest_bit)
put_word: Write = _storing(_INT64)
put_code: Write = _storing(_INT32)
put_byte: Write = _storing(_BYTE)
