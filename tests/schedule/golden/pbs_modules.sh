#!/bin/bash -l
# envbuild-probe: 2 nodes for at most 0:10:00.
#PBS -N envbuild-probe
#PBS -S /bin/bash
#PBS -l select=2
#PBS -l place=scatter
#PBS -l walltime=0:10:00
#PBS -r n
#PBS -j oe
#PBS -o /shared/envbuild/jobs/

# What the site's programs need.
module use /soft/modulefiles || exit 1
module load conda || exit 1
module load 'it'"'"'s' || exit 1

set -euo pipefail
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP VIRTUAL_ENV CONDA_PREFIX LD_PRELOAD BASH_ENV
JOB_ID="${PBS_JOBID%%.*}"
RUN_ID="$JOB_ID"
output=/shared/envbuild/jobs

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

# PBS puts the job's output into place only after it has ended.
exec >> "$output/envbuild-probe-$JOB_ID.log" 2>&1

# Where ranks meet: the first node of the job, and a port that follows from its number.
read -r MASTER_ADDR < "$PBS_NODEFILE"
MASTER_PORT=$((10000 + ${JOB_ID%%[!0-9]*} % 20000))
NNODES=2
export MASTER_ADDR MASTER_PORT NNODES
with_rank='export NODE_RANK="${PALS_RANKID:-${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-0}}}"; exec "$@"'

# Once on every node.
mpiexec --envall -n "$NNODES" --ppn 1 --hostfile "$PBS_NODEFILE" --cpu-bind none \
  bash -c "$with_rank" step \
  /opt/python3 probe.pyz
