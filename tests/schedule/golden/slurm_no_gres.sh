#!/bin/bash
# smoke: 4 nodes of hpc for at most 25:00:00, 800 GPU-hours (8 GPUs a node), whole nodes, account proj-1.
#SBATCH --job-name=smoke
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=1-01:00:00
#SBATCH --partition=hpc
#SBATCH --account=proj-1
# If a node fails, Slurm runs this job again, from its start; `scheduler: {requeue: false}` prevents it.
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/shared/my jobs/100%%/smoke-%j.log"
#SBATCH --chdir="/shared/my jobs/100%"
# warning: the scheduler knows of no GPUs here (no GRES): whole nodes are asked for instead

set -euo pipefail
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP VIRTUAL_ENV CONDA_PREFIX LD_PRELOAD BASH_ENV
JOB_ID="$SLURM_JOB_ID"
RUN_ID="$JOB_ID${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}"
[ "$RUN_ID" = "$JOB_ID" ] || echo 'envbuild: the scheduler has started this job again'
output='/shared/my jobs/100%'

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
# An srun of the run itself: tasks and their processors are as it says, not the job's one task a node.
unset SLURM_NTASKS_PER_NODE SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK

# Where ranks meet: the first node of the job, and a port that follows from its number.
read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
NNODES="$SLURM_JOB_NUM_NODES"
export MASTER_ADDR MASTER_PORT NNODES
with_rank='export NODE_RANK="$SLURM_PROCID"; exec "$@"'

# Once on every node; a node that fails does not stop the others.
srun --nodes="$NNODES" --ntasks="$NNODES" --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --cpu-bind=none \
  bash -c "$with_rank" step \
  torchrun --nnodes 4 --rdzv-endpoint="${MASTER_ADDR}":"${MASTER_PORT}" --rdzv-id="${RUN_ID}" 'train it.py' '$HOME;$(id)'

# Once, on the first node.
srun --nodes=1 --ntasks=1 --relative=0 --kill-on-bad-exit=0 --wait=0 --cpu-bind=none \
  bash -c "$with_rank" step \
  /usr/bin/env echo done
