#!/usr/bin/env bash
# Makes one file of the image of torch-smoke, and tests inside it on every node of the job.
set -euo pipefail
umask 022
number="${PBS_JOBID%%.*}"
nodes=$(sort -u -- "$PBS_NODEFILE" | wc -l)
export http_proxy=http://proxy.alcf.anl.gov:3128
export https_proxy=http://proxy.alcf.anl.gov:3128

# It has to be there before: envbuild image dockerfile torch-smoke --apptainer -o "$context"
context="$HOME"/envbuild/images/torch-smoke-000000000000.context
file="$HOME"/envbuild/images/torch-smoke-000000000000.sif
mkdir -p -- "$HOME"/envbuild/images
# On the first node alone; the others read the file, so its folder has to be one that all see.
if [ ! -e "$file" ]; then
  mkdir -p -- /local/scratch/envbuild-"$USER"
  (cd -- "$context" && APPTAINER_TMPDIR=/local/scratch/envbuild-"$USER" APPTAINER_CACHEDIR=/local/scratch/envbuild-"$USER" apptainer build "$file.$number" apptainer.def) < /dev/null
  mv -- "$file.$number" "$file"
fi

code=0
request="$file.$number.request" program="$file.$number.pyz"
trap 'rm -f -- "$request" "$program"' EXIT
# envbuild's node program, which tests inside and leaves nothing there; it goes in by standard input.
base64 -d << 'EOF' | gzip -d > "$program"
PROGRAM
EOF
# On each node, with the GPUs that the scheduler gives there; its $0 is the file.
inside='[ -z "${CUDA_VISIBLE_DEVICES+x}" ] || set -- env "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES" "$@"
[ -z "${CUDA_DEVICE_ORDER+x}" ] || set -- env "CUDA_DEVICE_ORDER=$CUDA_DEVICE_ORDER" "$@"
exec apptainer exec --cleanenv --no-home --nv --writable-tmpfs --bind /eagle:/eagle "$0" "$@"'
# verify: every node prints one line of JSON.
cp -- "$program" "$request"
printf %s 'REQUEST' >> "$request"
mpiexec --envall -n "$nodes" --ppn 1 --hostfile "$PBS_NODEFILE" --cpu-bind none \
  bash -c 'n=$(uname -n); "$@" < "$0" | sed "s/^/${n%%.*}: /"; exit "${PIPESTATUS[0]}"' "$request" sh -c "$inside" "$file" /opt/envbuild/envs/torch-smoke-exact-000000000000/bin/python -I -S -c 'import os, runpy, sys, tempfile; top = tempfile.TemporaryDirectory(prefix='"'"'envbuild-'"'"'); sys.argv[0] = os.path.join(top.name, '"'"'envbuild-node.pyz'"'"'); size = int(sys.argv.pop(1)); open(sys.argv[0], '"'"'wb'"'"').write(sys.stdin.buffer.read(size)); runpy.run_path(sys.argv[0], run_name='"'"'__main__'"'"')' SIZE verify || code=$?
# smoke: every node prints one line of JSON.
cp -- "$program" "$request"
printf %s 'REQUEST' >> "$request"
mpiexec --envall -n "$nodes" --ppn 1 --hostfile "$PBS_NODEFILE" --cpu-bind none \
  bash -c 'n=$(uname -n); "$@" < "$0" | sed "s/^/${n%%.*}: /"; exit "${PIPESTATUS[0]}"' "$request" sh -c "$inside" "$file" /opt/envbuild/envs/torch-smoke-exact-000000000000/bin/python -I -S -c 'import os, runpy, sys, tempfile; top = tempfile.TemporaryDirectory(prefix='"'"'envbuild-'"'"'); sys.argv[0] = os.path.join(top.name, '"'"'envbuild-node.pyz'"'"'); size = int(sys.argv.pop(1)); open(sys.argv[0], '"'"'wb'"'"').write(sys.stdin.buffer.read(size)); runpy.run_path(sys.argv[0], run_name='"'"'__main__'"'"')' SIZE smoke || code=$?
exit "$code"
