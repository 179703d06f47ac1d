#!/bin/sh
# Runs verbs on this node of a job, up to the first that goes wrong, or all (-k): job_run.sh [-k] FOLDER VERB...
# FOLDER/requests/VERB.sh is how. An answer has its final name in FOLDER/answers-<attempt>/<node> only when it is whole:
# it ends with a line. Of a verb that died before, VERB.new stays, and VERB.died has its exit code and how many processes
# of this job the kernel has killed meanwhile because memory ran out.
all=
if [ "$1" = -k ]; then
  all=yes
  shift
fi
folder=$1
shift
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
  /bin/sh "$folder/requests/$verb.sh" > "$answers/$verb.new" 2>> "$answers/stderr.log" < /dev/null
  code=$?
  if [ -s "$answers/$verb.new" ] && [ -z "$(tail -c 1 -- "$answers/$verb.new")" ]; then
    mv -f -- "$answers/$verb.new" "$answers/$verb.json"
  else
    echo "$code $(($(kills) - before))" > "$answers/$verb.died"
    [ "$code" != 0 ] || code=70
  fi
  [ "$code" = 0 ] || [ "$all" ] || exit "$code"
done
