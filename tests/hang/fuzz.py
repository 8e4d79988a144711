"""Damaged and hostile dumps through reader, analysis and command: `python -m tests.hang.fuzz --inputs 10000 --seed 1`.

Every input is a dump changed in its bytes, cut off, changed in its structure, or with something that would run code
put into it; folders of a few of them go through `tracekit hang`, and now and then `tracekit slowrank`. Anything but
an answer or a refusal in words raises here, and so does a sign that code ran.
"""

import argparse
import copy
import json
import os
import pickle
import random
import resource
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

from click.testing import CliRunner
from tracekit_cli.tracekit_commands.hang import hang
from tracekit_cli.tracekit_commands.slowrank import slowrank

from tests.hang.simulate import make
from tracekit.errors import TracekitError

ODD = (
    *(None, True, -1, 0, 1, 2**31, 2**62, 2**70, -(2**63), 1.5, float("nan"), float("inf"), "", "0", "nan"),
    *(
        "x" * 300,
        "nccl:send 0->1",
        "gloo:recv 9<-9",
        "nccl:coalesced",
        [],
        [[]],
        [[-1]],
        [["a"]],
        {},
        {"a": 1},
    ),
    *((), ("0", "default_pg"), ("\ud800", "\x1b[2J"), b"\x00", "[0, 1, 2]", "[0, 0]", "[[0]]", "[" * 500),
)
A_FOLDER = 20


class Runs:
    """Leaves a mark if anything calls the function it names."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def in_bytes(data, rng):
    body = bytearray(data)
    for _ in range(rng.randrange(1, 8)):
        at = rng.randrange(len(body) or 1)
        kind = rng.randrange(4)
        if kind == 0 and body:
            body[at] = rng.randrange(256)
        elif kind == 1:
            del body[at : at + rng.randrange(1, 40)]
        elif kind == 2:
            body[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            body[at : at + 8] = body[rng.randrange(len(body) or 1) :][:8]
    return bytes(body)


def in_structure(dump, rng):
    """Replace, drop or repeat values anywhere in the dump."""
    changed = copy.deepcopy(dump)
    for _ in range(rng.randrange(1, 6)):
        where, key = changed, None
        while isinstance(where, (dict, list)) and len(where):
            key = rng.choice(list(where)) if isinstance(where, dict) else rng.randrange(len(where))
            below = where[key]
            if not isinstance(below, (dict, list)) or not below or rng.random() < 0.15:
                break
            where = below
        if key is None:
            continue
        if rng.random() < 0.2:
            del where[key]
        elif isinstance(where, list) and rng.random() < 0.3:
            where.insert(key, copy.deepcopy(where[rng.randrange(len(where))]))
        else:
            where[key] = copy.deepcopy(rng.choice(ODD))
    return changed


def damaged(dump, rng, mark):
    """One input: bytes of a damaged dump, and what was done."""
    kind = rng.choice(("bytes", "structure", "structure", "cut", "json", "code"))
    if kind == "bytes":
        return kind, in_bytes(pickle.dumps(dump, protocol=rng.randrange(6)), rng)
    if kind == "structure":
        return kind, pickle.dumps(in_structure(dump, rng), protocol=2)
    if kind == "json":
        text = json.dumps(in_structure(dump, rng), default=str).encode("utf-8", "replace")
        return kind, text if rng.random() < 0.5 else in_bytes(text, rng)
    if kind == "code":
        return kind, pickle.dumps({**dump, rng.choice(("entries", "pg_config", "x")): Runs(mark)}, protocol=2)
    data = pickle.dumps(dump, protocol=rng.choice((2, 4)))
    return kind, data[: rng.randrange(len(data))]


def originals(seed):
    """Small dumps of hung and healthy jobs, timed or not; real ones too where present."""
    rng = random.Random(seed)
    cases = [make(rng.randrange(1000), sizes={"tp": 2, "cp": 1, "pp": 2, "dp": 2}, ring=25) for _ in range(6)]
    dumps = [list(c.dumps.values()) for c in cases]
    shared = os.environ.get("TRACEKIT_SHARED_DATA") or Path(__file__).parents[2] / ".." / "shared" / "data"
    real = sorted(Path(shared).glob("flight_recorder/*/"))
    dumps.extend([pickle.loads(p.read_bytes()) for p in sorted(f.glob("_dump_*"))] for f in real)
    for entry in (e for d in dumps[0] for e in d["entries"]):
        entry["duration_ms"] = 1.0 + entry["record_id"] % 7
    return dumps


def fuzz(inputs, seed):
    """Counts by outcome; raises on anything but an answer or a refusal."""
    rng, counts = random.Random(seed), Counter()
    jobs = originals(seed)
    root = Path(tempfile.mkdtemp(prefix="hangfuzz"))
    mark = str(root / "code_ran")
    try:
        for number in range(-(-inputs // A_FOLDER)):
            folder = root / f"f{number}"
            folder.mkdir()
            dumps = rng.choice(jobs)
            whole = set(rng.sample(range(len(dumps)), len(dumps) // 3))  # else there is seldom a job to judge
            for place in range(A_FOLDER + len(whole)):
                dump = dumps[place % len(dumps)]
                kind, data = "whole", pickle.dumps(dump)
                if place not in whole:
                    kind, data = damaged(dump, rng, mark)
                counts[kind] += 1
                (folder / f"dump_{place}").write_bytes(data)
            options = ["--json", "-"] if rng.random() < 0.5 else ["--verbose"]
            counts[answer(hang, [str(folder), "--quiet", "--jobs", "1", *options])] += 1
            if rng.random() < 0.1:
                counts["slowrank: " + answer(slowrank, [str(folder), "--quiet"])] += 1
            if Path(mark).exists():
                raise AssertionError(f"code ran: {folder}")
            shutil.rmtree(folder)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return counts


def answer(command, arguments):
    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    if isinstance(result.exception, TracekitError):
        assert str(result.exception)
        return "refused"
    if result.exception is not None:
        raise AssertionError(" ".join(arguments)) from result.exception
    assert "\x1b" not in result.stdout
    return "answered"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    begin = time.perf_counter()
    counts = fuzz(args.inputs, args.seed)
    peaks = [resource.getrusage(w).ru_maxrss >> 10 for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    made = sum(counts[k] for k in ("bytes", "structure", "cut", "json", "code"))
    print(f"{made} damaged dumps in {time.perf_counter() - begin:.0f} s: {dict(sorted(counts.items()))}")
    print(f"peak of this process {peaks[0]} MiB, of a worker {peaks[1]} MiB; no traceback, no code run")


if __name__ == "__main__":
    main()
