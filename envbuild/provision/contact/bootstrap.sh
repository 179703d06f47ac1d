# First contact: POSIX sh only (dash, bash, busybox). Fed to `/bin/sh -s`; @NAMES@ are filled in by first_contact.py.
# Everything of ours on stdout stands between marker lines with a nonce, so that start-up files may print.
LC_ALL=C.UTF-8
export LC_ALL
prefix=@PREFIX@
shared=@SHARED@
say() { printf '%s=%s\n' "$1" "$2"; }
have() { command -v "$1" >/dev/null 2>&1; }
user=$(id -un 2>/dev/null || id -u)
home=${HOME:-/}
case ${XDG_DATA_HOME-} in
  /*) data=$XDG_DATA_HOME ;;
  *) data=$home/.local/share ;;
esac
# {user}, {home} and {data} by parameter expansion alone: no sed that would read a name as a pattern
fill() {
  left=$1 done_=
  while :; do
    case $left in
      *"$2"*) done_=$done_${left%%"$2"*}$3 left=${left#*"$2"} ;;
      *) filled=$done_$left; return ;;
    esac
  done
}
fill "$prefix" '{user}' "$user"; fill "$filled" '{home}' "$home"; fill "$filled" '{data}' "$data"
prefix=$filled
printf '\n%s\n' "@BEGIN@"
say protocol 1
say hostname "$(uname -n)"
say user "$user"
say reached "${SSH_CONNECTION-}"
set -- $(uname -srm)
say kernel "${1-} ${2-}"
say arch "${3-}"
libc=$(getconf GNU_LIBC_VERSION 2>/dev/null)
case $libc in
  glibc*) ;;
  *)
    libc=
    for f in /lib/ld-musl-*; do [ -e "$f" ] && libc=musl; done
    if [ -z "$libc" ] && have ldd; then libc=$(ldd --version 2>&1 | head -n 1); fi ;;
esac
say libc "$libc"
say prefix "$prefix"
p=$prefix
while [ ! -e "$p" ] && [ ! -L "$p" ] && [ "$p" != / ] && [ -n "$p" ]; do
  p=${p%/*}
  [ -n "$p" ] || p=/
done
say prefix_parent "$p"
if [ -d "$p" ] && [ -w "$p" ] && [ -x "$p" ]; then say prefix_writable yes; else say prefix_writable no; fi
if [ -n "${SLURM_JOB_ID-}" ] || have sinfo; then say scheduler slurm
elif [ -n "${PBS_JOBID-}" ] || have qstat; then say scheduler pbs
else say scheduler none; fi

# A Python runs the node program if it is 3.8 or newer, its probe if it is 3.6, and is real: shims without a version
# fail here.
usable() {
  [ -x "$1" ] || return 1
  # The distribution's own is known by its name: starting it twice would cost as much as all the rest of this text.
  if [ "$1" = /usr/bin/python3 ]; then
    case $(readlink -f "$1" 2>/dev/null) in /usr/bin/python3.[89] | /usr/bin/python3.1[0-9]) return 0 ;; esac
  fi
  "$1" -I -S -c 'import sys; sys.exit(sys.version_info < (3, int(sys.argv[1])))' $least </dev/null >/dev/null 2>&1
}
# What lies in a folder that another user can write is never run; root and the folder's group are trusted.
trusted() {
  [ ! -L "$1" ] || return 1
  set -- $(ls -ldn "$1/." 2>/dev/null)
  case ${1-} in '' | ????????w*) return 1 ;; esac
  [ "$3" = 0 ] || [ "$3" = "$(id -u)" ]
}
python=
old_ifs=$IFS
IFS=:
set -f
set -- $PATH /usr/local/bin /usr/bin
set +f
IFS=$old_ifs
of_tools() {
  trusted "$1" || return 0
  for candidate in "$1"/python-*/bin/python3 "$1"/python-*/bin/python3.* "$1"/python-*/python/bin/python3; do
    tree=${candidate#"$1"/}
    if [ -z "$python" ] && trusted "$1/${tree%%/*}" && usable "$candidate"; then python=$candidate; fi
  done
}
search() {
  least=$1
  shift
  of_tools "$prefix/tools"
  for candidate in /usr/bin/python3 /usr/local/bin/python3 /usr/libexec/platform-python; do
    if [ -z "$python" ] && usable "$candidate"; then python=$candidate; fi
  done
  for folder in "$@"; do
    [ -z "$python" ] || break
    for name in python3 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8 python3.7 python3.6; do
      if usable "$folder/$name"; then python=$folder/$name; break; fi
    done
  done
  for candidate in "$home"/.pyenv/versions/3.*/bin/python3 /opt/*/bin/python3; do
    if [ -z "$python" ] && usable "$candidate"; then python=$candidate; fi
  done
  [ -z "$shared" ] || of_tools "$shared/tools"
}
search 8 "$@"
[ -n "$python" ] || search 6 "$@"
say python "$python"
if [ -n "$python" ]; then
  # printf is part of the shell and writes to a pipe: a here-document of bash would need room in /tmp
  printf 'response='
  printf '%s' '@SENT@' | @FOLLOW@ "$python" -I -S -c '@START@' '@VERB@'
  code=$?
  printf '\n'
  say exit $code
fi
printf '%s\n' "@END@"
