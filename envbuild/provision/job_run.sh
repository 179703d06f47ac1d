#!/bin/sh
# Runs the node program on this node of a job, once a verb: job_run.sh FOLDER PYTHON NODE-PROGRAM VERB...
# Requests lie in FOLDER/requests. An answer has its final name in FOLDER/answers-<attempt>/<node> only when it is whole.
folder=$1 python=$2 program=$3
shift 3
host=$(uname -n)
answers=$folder/answers-${SLURM_RESTART_COUNT:-0}/${SLURMD_NODENAME:-${host%%.*}}
mkdir -p -- "$answers" || exit 75
for verb; do
  # The node that built has tested already.
  [ -e "$answers/$verb.json" ] && continue
  "$python" "$program" "$verb" < "$folder/requests/$verb.json" > "$answers/$verb.new" 2>> "$answers/stderr.log"
  code=$?
  mv -f -- "$answers/$verb.new" "$answers/$verb.json"
  [ "$code" = 0 ] || exit "$code"
done
