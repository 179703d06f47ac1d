# The parts of a printed script. A part begins below its line `#: NAME`. A word as @THIS@ becomes a value.
#: head
#!/usr/bin/env bash
# @TITLE@
#
# Rendered by envbuild from a plan and its lock; where it runs, it needs bash, uv and git on PATH@NEEDS@.
# It does not do what only envbuild does: check files against RECORD, build without a network and without logins,
# compile in parallel and keep what it compiled, run the smoke test, write a stamp, build so that it can be resumed.
# So it replaces the environment in use by one that nobody has tested.
# uv reads UV_DEFAULT_INDEX and UV_FIND_LINKS, not pip's configuration: set them where an index is out of reach.
@INDEXES@set -euo pipefail
export UV_LINK_MODE=copy          # linked files would change together with uv's cache
export UV_PYTHON_DOWNLOADS=never  # the interpreter is the one that the plan names
export PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
export SOURCE_DATE_EPOCH=@EPOCH@ PYTHONHASHSEED=0  # two builds are equal
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV

fail() { printf 'error: %s\n' "$1" >&2; exit "${2:-4}"; }
command -v uv >/dev/null || fail 'uv is not on PATH'
@CHECK@work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

# install FILE BUILD-OPTIONS: one requirements file, every hash checked. What lies in UV_FIND_LINKS is taken from there,
# without asking an index that may be out of reach; the rest comes from where `index` says, else from UV_DEFAULT_INDEX.
# The hashes hold in all.
install() {
  local always=(--python "$environment/bin/python" --no-deps --require-hashes --no-compile-bytecode -r "$@")
  : > "$work/said"
  if [ -n "${UV_FIND_LINKS:-}" ] && uv pip install --no-index "${always[@]}" 2> "$work/said"; then return; fi
  uv pip install "${index[@]}" "${always[@]}" && return
  if [ -n "${UV_DEFAULT_INDEX:-}" ] && uv pip install "${index[@]:0:2}" "${always[@]}"; then return; fi
  [ ! -s "$work/said" ] || { printf 'and with UV_FIND_LINKS alone:\n'; cat "$work/said"; } >&2
  return 4
}

# checkout URL COMMIT TREE FOLDER: exactly that commit, and no other tree than the recorded one.
checkout() {
  local git=(git -c core.hooksPath=/dev/null -c protocol.ext.allow=never -c core.autocrlf=false -C "$4")
  mkdir -p -- "$4"
  "${git[@]}" init --quiet --template=
  [ ! -f "$1" ] || printf '%s\n' "$2" > "$4/.git/shallow"  # a bundle has the commit without its history
  "${git[@]}" fetch --quiet --no-tags --depth 1 -- "$1" "$2" ||
    "${git[@]}" fetch --quiet --no-tags -- "$1" '+refs/heads/*:refs/all/heads/*' '+refs/tags/*:refs/all/tags/*'
  local found
  found=$("${git[@]}" rev-parse --verify "$2^{tree}") || fail "commit $2 is not in $1" 5
  [ "$found" = "$3" ] || fail "$1 has tree $found at $2, expected $3" 5
  "${git[@]}" checkout --quiet --detach "$2"
}
#: bundle
  # Packages and sources come from a bundle; nothing is fetched over a network.
  export UV_OFFLINE=1
  [ -f @FILE@ ] || fail @LACKING@ 7
  mkdir -p -- "$work/bundle"
  tar -xf @FILE@ -C "$work/bundle"
  export UV_FIND_LINKS="$work/bundle/wheels"
#: venv
  # Variant @VARIANT@, sha256 @DIGEST@
  local python=@PYTHON@
  export UV_CACHE_DIR=@CACHE@
@BUILD@  [ -x "$python" ] || fail "there is no interpreter at $python@HOW@" 7
@NVCC@  [ ! -e "$environment" ] || fail "$environment is there already; remove it first" 7
  "$python" -I -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' @VERSION@ || fail "$python is not Python @VERSION@" 7
  mkdir -p -- "$prefix/envs" "$prefix/current" "$UV_CACHE_DIR"

@BASE@  uv venv --no-project --python "$python" @SITE@"$environment"
#: nvcc
  [ -x @NVCC@ ] || fail @ABSENT@ 7
  [ @NVCC@ -ef "$(command -v nvcc || echo @NVCC@)" ] ||
    printf 'warning: %s compiles, as the facts have it, not %s of PATH\n' @NVCC@ "$(command -v nvcc)" >&2
#: activation

  # Variables for one shell; no start-up file is touched.
  mkdir -p -- "$environment/.envbuild" "$prefix/current"
  { printf 'export VIRTUAL_ENV=%q\n' "$environment"
    printf 'export PATH=%q:"$PATH"\n' "$environment/bin"
    cat <<'EOF'
export PYTHONNOUSERSITE=1 PIP_REQUIRE_VIRTUALENV=1
unset PYTHONHOME PYTHONPATH
@VARIABLES@EOF
@SECRETS@  } > "$environment/.envbuild/activate.sh"

  # The link is switched by a rename, so that there is always one.
  ln -sfn -- "$environment" "$prefix/current/.@STACK@.new"
  mv -T -- "$prefix/current/.@STACK@.new" "$prefix/current/@STACK@"
  printf 'in use: %s\nload it with: . %q\n' "$environment" "$environment/.envbuild/activate.sh"
#: tree

  # @NAME@ is a working tree of the user, used where it lies
  [ -d @PLACE@ ] || fail @ABSENT@ 7
  mkdir -p -- "$environment"/src && ln -s -- @PLACE@ @FOLDER@
#: required
# required BASE NAME...: every package is one of these, or is named by the metadata of one that is, or of the BASE.
required() {
  "$python" -I - "$environment" "$@" <<'EOF' || fail 'the lock has a package that nothing asks for' 5
from __future__ import annotations

import errno
import io
import os
import re
import stat
import sys


@PARTS@

base = set()
if sys.argv[2] != "none":
    from importlib import metadata

    base = {required_name(text) for package in metadata.distributions() for text in package.requires or []}
edges = requires(sys.argv[1])
odd = unwanted(edges, edges, sys.argv[3:], base)
if odd:
    sys.exit("neither the stack nor the metadata of an installed package names: " + ", ".join(odd))
EOF
}
#: patches
# Patches are edits that are placed by syntax, counted and checked: envbuild makes them.
command -v envbuild >/dev/null || fail 'envbuild is not on PATH, and sources of this plan are patched' 7
#: mpi
[ "${MPICC:-}" ] || command -v mpicc >/dev/null || fail 'mpicc is not on PATH: load a module of the site with an MPI' 7
#: wheel

# wheel PROJECT FOLDER FLAG...: setup.py gets the flags for certain; what has another backend goes through PEP 517.
wheel() {
  local project=$1 out=$2 other=''
  shift 2
  if [ -f "$project/pyproject.toml" ]; then
    other=$(grep -E '^[[:space:]]*(backend-path|build-backend)' "$project/pyproject.toml" |
      grep -v 'setuptools[.]build_meta') || true
  fi
  if [ -f "$project/setup.py" ] && [ -z "$other" ]; then
    (cd -- "$project" && "$environment/bin/python" setup.py "$@" bdist_wheel --dist-dir "$out")
  else
    uv build --wheel --no-build-isolation --no-index --python "$environment/bin/python" --out-dir "$out" \
      "${@/#/-C--build-option=}" "$project"
  fi
}

# imports SOURCE MODULE...: an extension that cannot be imported is no extension.
imports() {
  local source=$1 module
  shift
  for module in "$@"; do
    "$environment/bin/python" -I -B -c '
import importlib, sys
try:
    import torch
except ImportError:
    pass
importlib.import_module(sys.argv[1])' "$module" || fail "$source: its extension $module cannot be imported" 4
  done
}
#: editable

# editable PROJECT: the program below makes the wheel for a setuptools before 64, which cannot, and nothing for others.
editable() {
  local out
  out=$(mktemp -d -p "$work")
  cat > "$out/program" <<'EOF'
@PROGRAM@EOF
  (cd -- "$1" && "$environment/bin/python" -c "$(cat "$out/program")" "$out")
  local made=("$out"/*.whl)
  if [ -e "${made[0]}" ]; then set -- "${made[0]}"; else set -- --no-build-isolation -e "$1"; fi
  uv pip install --python "$environment/bin/python" --no-deps --no-index --no-cache "$@"
}
