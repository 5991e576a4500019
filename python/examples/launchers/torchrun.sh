#!/bin/bash
# One server and two workers on this host by torchrun. On several hosts give it --nnodes and --rdzv-endpoint as ever, and
# all of them the same SLACKLINE_SECRET_FILE.
set -eu
cd "$(dirname "$0")"
exec torchrun --nproc-per-node 3 --no-python "${PYTHON:-python}" job.py "$@"
