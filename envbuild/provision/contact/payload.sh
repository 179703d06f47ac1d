#!/bin/sh
# Puts tools into a prefix, each in a folder named by its digest; run it again and nothing changes.
# Needs sh, dd and tar, and gzip when the content is packed. Prints one line of JSON; everything else goes to stderr.
set -eu
umask 022
export LC_ALL=C

prefix=@PREFIX@
unpack=@UNPACK@
tools=$prefix/tools
changed=false
placed=
present=
checked=none
python=
half=

# code, exit code, message: fixed texts without quotes, so that the JSON stays JSON
fail() {
    printf 'error[%s]: %s\n' "$1" "$3" >&2
    printf '{"ok": false, "changed": %s, "error": {"code": "%s", "what": "%s", "exit": %s}}\n' "$changed" "$1" "$3" "$2"
    exit "$2"
}

clean() {
    if [ -n "$half" ]; then rm -rf "$half"; fi
}
trap clean EXIT
trap 'exit 130' HUP INT TERM

digest_of() {
    if command -v sha256sum >/dev/null 2>&1; then
        checked=sha256
        sum=$(sha256sum <"$1")
        sum=${sum%% *}
    elif [ -n "$python" ]; then
        checked=sha256
        sum=$("$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())' <"$1")
    else
        # Nothing here can compute it before a Python is in place; what follows is checked with that.
        sum=
    fi
}

check() {
    digest_of "$1"
    if [ -n "$sum" ] && [ "$sum" != "$2" ]; then
        fail toolchain-corrupt 5 'a tool arrived damaged: its sha256 differs'
    fi
}

# name, sha256, folder, first block, number of blocks, file, tree or folder, file name
put() {
    final=$tools/$3
    # A name that holds a digest is no digest: a file is read. Of what was unpacked, the owner of its folder counts.
    if [ -d "$final" ] && [ "$6" = file ]; then
        sum=
        if [ -f "$final/$7" ]; then digest_of "$final/$7"; else sum=missing; fi
        if [ -n "$sum" ] && [ "$sum" != "$2" ]; then rm -rf "$final"; fi
    fi
    if [ -d "$final" ]; then
        present="$present${present:+, }\"$3\""
    else
        half=$tools/.$3.$(uname -n).$$
        rm -rf "$half"
        mkdir "$half" || fail toolchain-unwritable 75 'cannot make a folder for a tool'
        # shellcheck disable=SC2086 # two words on purpose
        dd if="$0" bs=65536 skip="$4" count="$5" 2>/dev/null | $unpack | tar -xof - -C "$half" ||
            fail toolchain-unpack 75 'cannot unpack a tool (is the disk full?)'
        check "$half/$7" "$2"
        if [ "$6" != file ]; then
            gzip -dc <"$half/$7" | tar -xof - -C "$half" ||
                fail toolchain-unpack 75 'cannot unpack the archive of a tool (is the disk full?)'
        fi
        if [ "$6" = tree ] && [ -z "$sum" ]; then
            python=$half/python/bin/python3
            check "$half/$7" "$2"
        fi
        if [ "$6" != file ]; then rm -f "$half/$7"; fi
        if [ "$6" = tree ]; then
            [ -x "$half/python/bin/python3" ] || fail toolchain-layout 5 'the standalone Python has no python/bin/python3'
        fi
        find "$half" -type f -exec sync {} + 2>/dev/null || sync || :
        mv "$half" "$final" || fail toolchain-unwritable 75 'cannot put a tool in its place'
        # Somebody else was faster: `mv` then moved ours into theirs.
        rm -rf "$final/${half##*/}"
        half=
        changed=true
        placed="$placed${placed:+, }\"$3\""
    fi
    if [ "$6" = tree ]; then python=$final/python/bin/python3; fi
}

for tool in dd tar @NEEDS@; do
    command -v "$tool" >/dev/null 2>&1 || fail "$tool-missing" 7 "this node has no $tool; install it, the toolchain cannot be unpacked without"
done
home=$(cd "${HOME:-/}" 2>/dev/null && pwd -P) || home=
if [ -n "$home" ] && [ "$(cd "$prefix" 2>/dev/null && pwd -P)" = "$home" ]; then
    fail prefix-invalid 2 'the prefix is a home folder; write {home}/envbuild'
fi
mkdir -p "$tools" || fail not-writable 7 'cannot make the tools folder in the prefix'
# What somebody else put there under the right name would be run.
case $(ls -ldn "$tools/.") in
    ????????w*) fail prefix-open-to-all 7 'everybody can write to the tools folder of the prefix' ;;
esac
@PUTS@
printf '{"ok": true, "changed": %s, "placed": [%s], "present": [%s], "checked": "%s"}\n' "$changed" "$placed" "$present" "$checked"
exit 0
