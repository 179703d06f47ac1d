#!/bin/bash -l
# envbuild-probe: 1 node for as long as the site allows, account proj-1.
# Submit it with `qsub FILE`.
#PBS -N envbuild-probe
#PBS -S /bin/bash
#PBS -l select=1
#PBS -l place=scatter
#PBS -A proj-1
#PBS -r n
#PBS -j oe

# What the site's programs need.
module use /soft/modulefiles || exit 1
module load conda || exit 1
module load 'it'"'"'s' || exit 1

set -euo pipefail
echo built
