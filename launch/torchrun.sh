#!/usr/bin/env bash
# Starts one machine's ranks of a run; call it on every machine with the same arguments.
#
#   launch/torchrun.sh MACHINES FIRST_MACHINE [CONFIG]
#
# FIRST_MACHINE is a name that all machines reach; port 29500 must be free there (or set MASTER_PORT).
set -euo pipefail

machines=${1:?number of machines}
first=${2:?name of the first machine}
config=${3:-launch/llama3-8b.toml}

exec torchrun \
  --nnodes="$machines" \
  --nproc-per-node="${GPUS:-8}" \
  --rdzv-backend=c10d \
  --rdzv-endpoint="$first:${MASTER_PORT:-29500}" \
  --rdzv-id="${RUN_ID:-reftrain}" \
  --no-python \
  reftrain run "$config"
