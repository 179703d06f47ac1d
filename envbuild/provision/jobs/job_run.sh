#!/bin/sh
# Runs the node program on this node of a job, once a verb: job_run.sh FOLDER PYTHON NODE-PROGRAM VERB...
# Requests lie in FOLDER/requests. An answer has its final name in FOLDER/answers-<attempt>/<node> only when it is whole:
# one line of JSON. Of a step that died before, VERB.new stays, and VERB.died has its exit code and how many processes
# of this job the kernel has killed meanwhile because memory ran out.
folder=$1 python=$2 program=$3
shift 3
host=$(uname -n)
ENVBUILD_NODE=${SLURMD_NODENAME:-${host%%.*}}
export ENVBUILD_NODE
answers=$folder/answers-${SLURM_RESTART_COUNT:-0}/$ENVBUILD_NODE
mkdir -p -- "$answers" || exit 75
kills() {
  sum=0
  while IFS=: read -r number names path; do
    case $number:$names in
      0:) file=/sys/fs/cgroup$path/memory.events ;;
      *:memory) file=/sys/fs/cgroup/memory$path/memory.oom_control ;;
      *) continue ;;
    esac
    [ -r "$file" ] || continue
    while read -r key count; do [ "$key" != oom_kill ] || sum=$((sum + count)); done < "$file"
  done < /proc/self/cgroup
  echo "$sum"
}
for verb; do
  # The node that built has tested already.
  [ -e "$answers/$verb.json" ] && continue
  before=$(kills)
  "$python" "$program" "$verb" < "$folder/requests/$verb.json" > "$answers/$verb.new" 2>> "$answers/stderr.log"
  code=$?
  if [ -s "$answers/$verb.new" ] && [ -z "$(tail -c 1 -- "$answers/$verb.new")" ]; then
    mv -f -- "$answers/$verb.new" "$answers/$verb.json"
  else
    echo "$code $(($(kills) - before))" > "$answers/$verb.died"
    [ "$code" != 0 ] || code=70
  fi
  [ "$code" = 0 ] || exit "$code"
done
