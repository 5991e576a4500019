#!/bin/bash
#SBATCH --job-name=slackline
#SBATCH --ntasks=3
#SBATCH --cpus-per-task=1
#SBATCH --time=00:10:00
# One server and two workers, on as many nodes as Slurm gives: sbatch slurm.sh
# The processes of a job share a secret: a file in a home folder that all nodes mount, and that its owner alone can read.
set -eu
export SLACKLINE_SECRET_FILE="${SLACKLINE_SECRET_FILE:-$HOME/.slackline-secret}"
if [ ! -e "$SLACKLINE_SECRET_FILE" ]; then
    (umask 077; head -c 32 /dev/urandom | base64 > "$SLACKLINE_SECRET_FILE")
fi
# Slurm runs a copy of this script: the program is found from where sbatch was called.
cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")}"
srun "${PYTHON:-python}" job.py "$@"
