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
