#!/bin/bash
# envbuild-probe: 1 node for as long as the site allows.
# Submit it with `sbatch FILE`. The job then has all variables of your shell, tokens too; jobs that envbuild submits get few.
#SBATCH --job-name=envbuild-probe
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --no-requeue
#SBATCH --output=%x-%j.log

set -euo pipefail
echo built
