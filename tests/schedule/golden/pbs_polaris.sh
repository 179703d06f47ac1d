#!/bin/bash
# smoke: 2 nodes of debug for at most 1:00:00, 8 GPU-hours (4 GPUs a node), whole nodes, account proj-1.
#PBS -N smoke
#PBS -S /bin/bash
#PBS -l select=2:ncpus=64:ngpus=4:mem=503gb:system=polaris
#PBS -l place=scatter:exclhost
#PBS -l walltime=1:00:00
#PBS -l filesystems=home:eagle
#PBS -q debug
#PBS -A proj-1
#PBS -r n
#PBS -j oe
#PBS -o /eagle/p/me/jobs/

set -euo pipefail
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP VIRTUAL_ENV CONDA_PREFIX LD_PRELOAD BASH_ENV
JOB_ID="${PBS_JOBID%%.*}"
RUN_ID="$JOB_ID"
output=/eagle/p/me/jobs

# Whoever asks later, when the scheduler has forgotten the job, finds here how it ended.
status="$output/status-$JOB_ID"
rm -f -- "$status"
finish() {
  local code=$?
  trap - EXIT
  printf '%d\n' "$code" > "$status.new" && mv -f -- "$status.new" "$status"
  exit "$code"
}
trap finish EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

export GREETING='it'"'"'s $(id) `id` "x" \'
export NCCL_DEBUG=warn

# PBS puts the job's output into place only after it has ended.
exec >> "$output/smoke-$JOB_ID.log" 2>&1

# Where ranks meet: the first node of the job, and a port that follows from its number.
read -r MASTER_ADDR < "$PBS_NODEFILE"
MASTER_PORT=$((10000 + ${JOB_ID%%[!0-9]*} % 20000))
NNODES=2
export MASTER_ADDR MASTER_PORT NNODES
with_rank='export NODE_RANK="${PALS_RANKID:-${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-0}}}"; exec "$@"'

# Once on every node.
mpiexec --envall -n "$NNODES" --ppn 1 --hostfile "$PBS_NODEFILE" --cpu-bind none \
  bash -c "$with_rank" step \
  torchrun --nnodes 4 --rdzv-endpoint="${MASTER_ADDR}":"${MASTER_PORT}" --rdzv-id="${RUN_ID}" 'train it.py' '$HOME;$(id)'

# Once, on the first node.
mpiexec --envall -n 1 --ppn 1 --hostfile "$PBS_NODEFILE" --cpu-bind none \
  bash -c "$with_rank" step \
  /usr/bin/env echo done
