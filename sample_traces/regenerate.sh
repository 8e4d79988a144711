#!/bin/sh
# Records the samples anew with the demo trainer (a minute or two); expected.json of each case stays as it is.
# Usage: sample_traces/regenerate.sh [python]
set -eu
cd "$(dirname "$0")"
python=$(command -v "${1:-../.venv/bin/python}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
record() {
    "$python" -m reftrain.demo --out "$scratch/$1" --steps "$2" --fault "$3" --seed 1
    mkdir -p "$1"
    rm -rf "$1/trace"
    mv "$scratch/$1/trace" "$scratch/$1/run.json" "$1/"
}
record demo_slow_tp 16 slow_compute:rank=5,factor=1.5
record demo_healthy 16 none

# The trainer on eight ranks, one of which stalls on its host in the third step; ends when the others time out.
rm -rf hang_host_stall/fr
mkdir -p hang_host_stall
"$python" - "$scratch/hang" <<'PROGRAM'
import sys

from reftrain.config_file import load
from reftrain.errors import RankDiedError
from reftrain.launcher import launch
from reftrain.record.hooks import FlightRecording

evidence = {"timeout_s": 20.0, "faults": ["host_stall:rank=6,steps=2"]}
mesh = {"tp": 2, "pp": 2, "dp": 2}
run = {"steps": 4, "out": sys.argv[1]}
config = load(None, {"run": run, "model": {"preset": "tiny"}, "mesh": mesh, "evidence": evidence})
try:
    launch(config, lambda rank: [FlightRecording()])
except RankDiedError as end:
    print(f"as planned: {end}", file=sys.stderr)
PROGRAM
mv "$scratch/hang/fr" "$scratch/hang/run.json" hang_host_stall/
