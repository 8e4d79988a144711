"""Traces in every form that a recorder may write, and in many that none should: text made at random from a seed."""

import json
from random import Random

from tracekit.ingest.kineto.compiled.layout import SLOTS

NUMBERS = (
    "0",
    "7",
    "-1",
    "-0",
    "17",
    "123456789012345678",
    "1234567890123456789",
    "18446744073709551615",
    "99999999999999999999",
    "123456789012345678901",
    "7.0",
    "7.5",
    "1e3",
    "1E+2",
    "5e-324",
    "1e999",
    "0.5",
    "-2147483648",
    "4611686018427387904",
)
TIMES = (
    "1000",
    "1000.125",
    "1712195495519689.047",
    "9223372036854774.999",
    "9223372036854775.807",
    "0.0005",
    "0.0015",
    "0.00050000000000000001",
    "1.0005000000000000",
    "2.123456789012345678",
    "2.1234567890123456789",
    "-5.25",
    "-0.0005",
    "0",
    "-0",
    "1e3",
    '"12"',
    "12345678901234567",
    "1.",
)
TEXTS = (
    '""',
    '"X"',
    '"ncclKernel_SendRecv<4>"',
    '"aten::mm"',
    '"aten::addmm"',
    '"gloo:all_reduce"',
    '"' + "long" * 30 + '"',
    '"\\u0041"',
    '"tab\\tand \\"quote\\" \\\\"',
    '"\\/"',
    '"/"',
    '"gemm<float, 4>"',
    '"\\ud83d\\ude00"',
    '"\\ud800"',
    '"ünï"',
    '"Send\\u0052ecv"',
    '"x Kernel_Generic"',
    '"a b"',
    '"\\u0000"',
    '"}, {"',
    '"c10d::send"',
    '"c10d::recv_"',
    '"c10d::sen\\u0064"',
    '"gl\\u006fo:send"',
    '"Trace"',
    '"12"',
    '"0x0"',
    '"nan"',
    '"Spans"',
    '"[0, 1]"',
)
ODD = (
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "[1, 2]",
    "[[], [1], [[2]]]",
    '{"a": 1}',
    '{"a": 1, "a": 2}',
    "NaN",
    "[" * 70 + "]" * 70,
    '["", "a", "3", "0"]',
    '["", "\\u0031", "0"]',
    '["1"]',
    "[3, 4]",
    '[null, "5", "6"]',
)
OTHER_KEYS = ("Call stack", "Ev Idx", "bp", "id", "s", "ünï", "\\u0061", "", "x" * 40)
TOP = [s.key for s in SLOTS if not s.argument]
ARGUMENTS = [s.key for s in SLOTS if s.argument]
PLAIN = ("Input Dims", "Input type", "grid", "External id", "stream", "device", "correlation")
CALL = ("Collective name", "In msg nelems", "Group size", "dtype", "Process Group Name", "Comms Id", "Seq")


def _value(rng: Random, key: str, strange: float) -> str:
    """A value that suits the key in most cases."""
    if rng.random() < strange / 10:
        return rng.choice((*NUMBERS, *TIMES, *TEXTS, *ODD))
    if key in ("ts", "dur"):
        return (
            rng.choice(TIMES)
            if rng.random() < strange / 2
            else f"{rng.randrange(10**6)}.{rng.randrange(1000):03d}"
        )
    if key in ("cat", "name", "Collective name", "dtype", "Process Group Name", "Process Group Ranks"):
        return rng.choice(TEXTS[:11]) if rng.random() > strange else rng.choice(TEXTS)
    if key == "Concrete Inputs":
        return rng.choice(('["", "a", "3", "0"]', "[]", '["", "[1]"]'))
    if key == "Input type":
        good = ('["float"]', '["c10::BFloat16", "c10::BFloat16"]', '["long int", "Scalar"]', "[]")
        return rng.choice(good) if rng.random() > strange else rng.choice((*ODD, '["flo\\u0061t"]'))
    if key == "Input Dims":
        good = (
            "[[2, 3], [3, 5]]",
            "[[2,3],[3,5]]",
            "[[5], [ 2, 3], [3, 5], [], []]",
            "[[[4, 4], [4]], []]",
            "[]",
        )
        return (
            rng.choice(good)
            if rng.random() > strange
            else rng.choice((*ODD, "[[2, -3], [3]]", "[[2.0, 3], [3, 5]]"))
        )
    if key == "grid":
        return rng.choice(("[24, 1, 1]", "[ 7 ]", "[]", "[0,0]")) if rng.random() > strange else '["a"]'
    if key == "Comms Id":
        return (
            rng.choice(("12345", '"12345"', "18446744073709551615", '"0"'))
            if rng.random() > strange
            else '"007"'
        )
    return (
        str(rng.randrange(100))
        if rng.random() > strange / 2
        else rng.choice((*NUMBERS, "[[16, 2048], []]", '"words"'))
    )


def _members(rng: Random, keys: list[str], colon: str, comma: str, strange: float) -> str:
    return comma.join(f'"{key}"{colon}{_value(rng, key, strange)}' for key in keys)


def _event(rng: Random, colon: str, comma: str, strange: float) -> str:
    """An event; `strange` is how likely it is to have keys twice, without use, or in another order."""
    keys = [k for k in TOP if k != "ph" and (k in ("ts", "dur") or rng.random() < 0.9)]
    arguments = [k for k in PLAIN if rng.random() < 0.6]
    if rng.random() < 0.2:
        arguments += [k for k in (CALL if rng.random() > strange else ARGUMENTS) if rng.random() < 0.7]
    if rng.random() < strange:
        arguments += [rng.choice((*ARGUMENTS, *OTHER_KEYS))]
        keys += [rng.choice((*TOP[2:], *OTHER_KEYS))] if rng.random() < 0.5 else []
    arguments = list(dict.fromkeys(arguments)) if rng.random() > strange / 4 else arguments
    rng.shuffle(arguments)
    phase = (
        rng.choice("XXXXXXXXBEsfiMC") if rng.random() > strange / 4 else rng.choice(("", "XX", "x", "7", "é"))
    )
    members = [f'"ph"{colon}"{phase}"', _members(rng, keys, colon, comma, strange)]
    if rng.random() < 0.9:
        members.append(f'"args"{colon}{{{_members(rng, arguments, colon, comma, strange)}}}')
    if rng.random() < strange:
        rng.shuffle(members)
    return "{" + comma.join(m for m in members if m) + "}"


def text(rng: Random) -> bytes:
    """A whole trace."""
    colon, comma, between = rng.choice(
        ((": ", ", ", ",\n  "), (":", ",", ","), (": ", ",\n    ", ",\n  "), (" :\t", " ,\r\n", "\n,\n"))
    )
    strange = rng.choice((0.0, 0.0, 0.02, 0.3))
    events = between.join(_event(rng, colon, comma, strange) for _ in range(rng.randrange(1, 25)))
    info = json.dumps({"rank": 0, "world_size": 4})
    document = f'{{"distributedInfo": {info}, "traceEvents": [\n  {events}\n], "baseTimeNanoseconds": 5}}'
    return document.encode("utf-8", "surrogatepass")
