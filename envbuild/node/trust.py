"""Whose files count, in a prefix and in a wheel store: what lies there is code that runs as us.

In a prefix nobody else's do: its folders, and what lies in `envs` and `tools`, are ours or root's, and no links out.

The sha256 of a wheel in a store must come from somebody we trust: ourselves, root, and the owner of the store, the
latter only where nobody else could have put the store there.
A store may be writable for a group (a setgid prefix, umask 002): then each entry counts by its own owner, and its
folder and files must be writable for that owner alone. That holds although others can rename whole entries in such a
store, because an entry says its key and the inputs that give it.
"""

import contextlib
import os
import stat
import sys

from envbuild.node.protocol import NodeError
from envbuild.node.read_text import integer, names, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    Trust = tuple[str, frozenset[int], str]

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def overflow_uid() -> int:
    """The user id that stands for every user whom this user namespace or file server does not know."""
    number = integer(read("/proc/sys/kernel/overflowuid").strip())
    return 65534 if number is None else number


def judge(path: str) -> "Trust":
    """For the store at the real path `path`: (why it must not be used at all or "", trusted user ids, a note or "")."""
    facts = os.lstat(path)
    if not stat.S_ISDIR(facts.st_mode):
        return "it is not a folder", frozenset(), ""
    if facts.st_mode & stat.S_IWOTH:
        return "every user can write it (mode %04o)" % stat.S_IMODE(facts.st_mode), frozenset(), ""
    mine = {os.geteuid(), 0}
    if facts.st_uid in mine:
        return "", frozenset(mine), ""
    if facts.st_uid == overflow_uid():
        return "", frozenset(mine), "its owner is not known here: only our own entries and those of root count"
    weak = _replaceable(path, mine | {facts.st_uid})
    if weak:
        note = "others can write %s and so put a store there: only our own entries and those of root count" % weak
        return "", frozenset(mine), note
    return "", frozenset(mine | {facts.st_uid}), ""


def ours() -> "frozenset[int]":
    """The user ids that we trust: ours, root's and, under sudo, that of whoever called it."""
    caller = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    mine = {os.geteuid(), 0, integer(caller) or 0}
    return frozenset(mine - ({overflow_uid()} - {os.geteuid()}))


def foreign(path: str) -> str:
    """Why `path`, followed, is not ours or root's alone, in words; empty when it is.

    A folder that everybody can write and that is sticky (/tmp) counts: what lies in it has an owner of its own.
    """
    for facts in (os.lstat(path), os.stat(path)):
        if facts.st_uid not in ours():
            return "%s belongs to user id %d" % (path, facts.st_uid)
    if facts.st_mode & stat.S_IWOTH and not (stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX):
        return "every user can write %s (mode %04o)" % (path, stat.S_IMODE(facts.st_mode))
    return ""


def home_problem(prefix: str) -> str:
    """Why `prefix` is no folder for envbuild alone, in words: it is the home folder of a user of `ours`; else empty."""
    import pwd

    homes = {os.path.realpath(os.path.expanduser("~"))}
    for number in ours():
        with contextlib.suppress(KeyError):
            homes.add(os.path.realpath(pwd.getpwuid(number).pw_dir))
    says = "it is a home folder, and a prefix is a folder for envbuild alone; write {home}/envbuild"
    return says if os.path.realpath(prefix) in homes else ""


def prefix_problem(prefix: str) -> str:
    """Why nothing below the real or planned `prefix` may be run or changed, in words; empty when it may."""
    if os.path.dirname(os.path.abspath(sys.argv[0])) == os.path.join(prefix, "image"):
        return ""  # we are in an image, which is trusted by its digest, whoever owns its files where it runs
    home = home_problem(prefix)
    if home:
        return home
    folders = [os.path.join(prefix, name) for name in ("envs", "tools", "current")]
    for path in [prefix] + folders + [os.path.join(top, name) for top in folders[:2] for name in names(top)]:
        if not os.path.lexists(path):
            continue
        inside = os.path.realpath(path) + os.sep
        if path != prefix and not inside.startswith(os.path.realpath(prefix) + os.sep):
            return "%s is a link out of the prefix" % path
        why = foreign(path) if os.path.exists(path) else ""
        if why:
            return why
    return ""


def refuse_prefix(prefix: str) -> None:
    """Raises NodeError `prefix-invalid` (exit 2) for a home folder.

    And `prefix-foreign` (exit 7) for a prefix in which somebody else could put programs.
    """
    why = prefix_problem(prefix)
    if why and why == home_problem(prefix):
        raise NodeError(
            "prefix-invalid",
            "%s is a home folder, which cannot be a prefix" % prefix,
            why="a prefix is a folder for envbuild alone",
            hint="write `{home}/envbuild`, or name another folder (--prefix)",
        )
    if why:
        raise NodeError(
            "prefix-foreign",
            "other users can change %s" % prefix,
            why="%s; envbuild runs programs from there as you" % why,
            hint="choose another prefix (--prefix), or have its owner run envbuild",
        )


def _replaceable(path: str, trusted: "set[int]") -> str:
    """The first folder above `path` in which somebody not trusted can rename, empty when there is none."""
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        facts = os.lstat(path)
        sticky = facts.st_mode & stat.S_ISVTX
        if facts.st_uid not in trusted or (facts.st_mode & _OTHERS and not sticky):
            return path
    return ""


def problem(facts: "os.stat_result", trusted: "frozenset[int]", folder: bool) -> str:
    """Why a file or folder of an entry does not count, in words; empty when it does."""
    if not (stat.S_ISDIR(facts.st_mode) if folder else stat.S_ISREG(facts.st_mode)):
        return "it is not a %s" % ("folder" if folder else "regular file")
    if facts.st_uid not in trusted:
        return "it belongs to user id %d" % facts.st_uid
    if facts.st_mode & _OTHERS:
        return "others can write it (mode %04o)" % stat.S_IMODE(facts.st_mode)
    return ""
