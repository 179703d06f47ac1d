#!/bin/sh
# Asks the node program on this node of a job, up to what goes wrong first, or all (-k): run.sh [-k] FOLDER NAME...
# FOLDER/requests/NAME.json is the request; NAME:VERB where its verb has another name. FOLDER/answers-<attempt>/<node>
# has in `findings` what sh found here, as in a first contact. An answer NAME.json has its name only when it is whole: it
# ends with a line. Of a step that died before, NAME.new stays, and NAME.died has its exit code and how many processes of
# this job the kernel has killed meanwhile because memory ran out.
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
/bin/sh "$folder/requests/findings.sh" > "$answers/findings" 2>> "$answers/stderr.log" < /dev/null
python=$(sed -n 's/^python=//p' "$answers/findings")
if [ -z "$python" ]; then
  [ "$all" ]
  exit
fi
for word; do
  name=${word%%:*}
  # The node that built has tested already.
  [ -e "$answers/$name.json" ] && continue
  before=$(kills)
  # The answer first: without a request, it tells that the step began.
  "$python" -I -S "$folder/requests/node.pyz" "${word#*:}" > "$answers/$name.new" 2>> "$answers/stderr.log" \
    < "$folder/requests/$name.json"
  code=$?
  if [ -s "$answers/$name.new" ] && [ -z "$(tail -c 1 -- "$answers/$name.new")" ]; then
    mv -f -- "$answers/$name.new" "$answers/$name.json"
  else
    echo "$code $(($(kills) - before))" > "$answers/$name.died"
    [ "$code" != 0 ] || code=70
  fi
  [ "$code" = 0 ] || [ "$all" ] || exit "$code"
done
