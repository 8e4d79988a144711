#!/bin/sh
# Records the samples again (about nine minutes on two cores); expected.json of each case stays as it is.
# Usage: sample_traces/regenerate.sh [CASE…]     PYTHON=… for another interpreter
set -eu
cd "$(dirname "$0")"
python=$(command -v "${PYTHON:-../.venv/bin/python}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cases=${*:-demo_slow_tp demo_healthy healthy slow_compute slow_link data_imbalance hang_host_stall}

keep() { # CASE PART…: put the parts of the finished run into the case's folder
    name=$1
    shift
    mkdir -p "$name"
    for file in "$scratch/$name"/trace/*.gz; do # the profiler packs for speed
        if test -f "$file"; then gunzip -c "$file" | gzip -9n >"$file.small" && mv "$file.small" "$file"; fi
    done
    for part in "$@"; do
        rm -rf "${name:?}/$part"
        mv "$scratch/$name/$part" "$name/"
    done
}

traced() { # CASE FAULT…: ranks of the demo's job, computing emulated, some steps traced; demo_… without cp
    "$python" - "$scratch/$1" "$@" <<'PROGRAM'
import sys
from pathlib import Path

from reftrain.job.demo import LONG_SEQUENCES, demo_config
from reftrain.job.launcher import launch

out, case, *faults = sys.argv[1:]
eight = case.startswith("demo_")
overrides = LONG_SEQUENCES if case == "data_imbalance" else {"mesh": {"cp": 1}} if eight else {}
launch(demo_config(Path(out), 4 if eight else 3, faults, overrides), lambda rank: [])
PROGRAM
    keep "$1" trace run.json
}

hang() { # CASE FAULT: sixteen ranks of which one stops; ends when the others time out
    "$python" - "$scratch/$1" "$2" <<'PROGRAM'
import sys

from reftrain.config.file import load
from reftrain.errors import RankDiedError
from reftrain.job.launcher import launch

out, fault = sys.argv[1:]
mesh = {"tp": 2, "cp": 2, "pp": 2, "dp": 2}
tables = {"run": {"steps": 4, "out": out}, "model": {"preset": "tiny", "layers": 2}, "mesh": mesh}
try:
    launch(load(None, {**tables, "evidence": {"faults": [fault]}}), lambda rank: [])
except RankDiedError as end:
    print(f"as planned: {end}", file=sys.stderr)
PROGRAM
    keep "$1" fr run.json
}

for case in $cases; do
    echo "$case" >&2
    case $case in
    demo_slow_tp) traced demo_slow_tp slow_compute:rank=5,factor=1.4 ;;
    demo_healthy) traced demo_healthy ;;
    healthy) traced healthy ;;
    slow_compute) traced slow_compute slow_compute:rank=5,factor=1.3 ;;
    slow_link) traced slow_link slow_link:rank=10,delay_ms=20 ;;
    data_imbalance) traced data_imbalance doc_imbalance:factor=12 ;;
    hang_host_stall) hang hang_host_stall host_stall:rank=6,steps=2,axis=tp ;;
    *) echo "no such case: $case" >&2 && exit 2 ;;
    esac
done
