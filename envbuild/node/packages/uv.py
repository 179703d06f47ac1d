"""Runs uv with a known environment, and turns what it says into coded errors; what it drops from wheels, too.

Addresses reach uv through environment variables, never through its argument list, so that a token in one is not in any
process list; every message is redacted.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envbuild.node import hashing, paths, pip_config, proc, variables
from envbuild.node.protocol import Exit, NodeError
from envbuild.node.redact import redact_text

_DROPPED = frozenset(
    "VIRTUAL_ENV CONDA_PREFIX PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE __PYVENV_LAUNCHER__".split()
)
_TRANSPORT = re.compile(
    r"client error \(Connect\)|dns error|error sending request|[Tt]imed? ?out|Connection (reset|refused)"
    r"|HTTP status server error|\(429 |connection closed|error decoding response body|request or response body error"
    r"|Network (is )?unreachable"
)
# What uv says, and nothing else does, of a member of a wheel that it leaves out.
_SKIPPED = re.compile(r"WARN Skipping unsafe file name: (.*)")
# The first four bytes of what should be a wheel, as a number of the machine's order.
_HEADER = re.compile(r"unexpected header \(actual: 0x([0-9a-f]{1,8}),")
_REFUSED = re.compile(r"HTTP status client error \((401|403|407)")
# The folders of `NAME.data` in a wheel.
_DATA = ("", "purelib", "platlib", "scripts", "headers", "data")
_TAIL = 20
_GREETING = re.compile(r"(?m)^Using Python .* environment at: .*\n?")
DEADLINE = 3600.0


@dataclass
class Uv:
    """uv at one path, with one cache and one folder for temporary files, absolute paths of folders that exist.

    A cache that is not kept is this object's alone.
    """

    program: str
    cache: str
    tmp: str
    config: pip_config.PipConfig
    keeps_cache: bool = True

    def check(self, sha256: str) -> None:
        """Raises NodeError `toolchain-hash-mismatch` (exit 5) unless the program is that very file."""
        digest = hashing.digest_if_readable(self.program)
        if digest != sha256:
            raise NodeError(
                "toolchain-hash-mismatch",
                f"{self.program} is not the uv that envbuild installed",
                why=f"its sha256 is {digest or 'not known: it cannot be read'}, expected {sha256}",
                hint=f"run `rm -r {os.path.dirname(self.program)}`, then the same command again",
            )

    def drop_cache(self) -> None:
        """Remove a cache that is not kept: the files linked to it have one name from then on."""
        if not self.keeps_cache:
            paths.remove_tree(self.cache)

    def environ(
        self, extra: dict[str, str | None] | None = None, may_see: Callable[[str, str], bool] = variables.for_build
    ) -> dict[str, str]:
        """The whole environment of a build or, with another `may_see`, of a uv process that fetches."""
        env = proc.clean_env()
        for name in list(env):
            if name in _DROPPED or not (variables.for_uv(name) and may_see(name, env[name])):
                del env[name]
        if may_see is variables.for_build:
            env.update(variables.own_home(self.tmp, env))
        env.update(
            UV_CACHE_DIR=self.cache,
            UV_PYTHON_DOWNLOADS="never",
            UV_NO_PROGRESS="1",
            # A file that has a second name in a cache changes with it; a cache that goes costs no second copy.
            UV_LINK_MODE="copy" if self.keeps_cache else "hardlink",
            TMPDIR=self.tmp,
            NO_COLOR="1",
            RUST_LOG="uv_extract=warn",
            PYTHONDONTWRITEBYTECODE="1",
            PYTHONNOUSERSITE="1",
            # What is built must not depend on the day or on the order of a set.
            SOURCE_DATE_EPOCH=str(paths.EPOCH),
            PYTHONHASHSEED="0",
        )
        pip_config.tell_certificates(env, self.config.cert)
        return proc.changed_env(env, extra or {})

    def run(
        self,
        args: Sequence[str],
        extra: dict[str, str | None] | None = None,
        cwd: str | None = None,
        timeout: float = DEADLINE,
        may_see: Callable[[str, str], bool] = variables.for_build,
        before: Sequence[str] = (),
    ) -> proc.Finished:
        """Run `uv ARGS` (in `tmp`, where no project file lies), the words `before` before it.

        Raises NodeError `uv-missing` (exit 4).
        """
        env = self.environ(extra, may_see)
        done = proc.run(list(before) + [self.program] + list(args), timeout=timeout, env=env, cwd=cwd or self.tmp)
        if done.missing:
            raise NodeError(
                "uv-missing",
                f"cannot run uv at {self.program}",
                why=done.err,
                hint="run `envbuild provision` again: its toolchain step installs uv",
                exit_code=Exit.BUILD_FAILED,
            )
        return done


def close_locks(cache: str, environment: str) -> None:
    """uv makes its lock files writable for every user; take from them what the umask takes from all other files."""
    locks = [os.path.join(environment, ".lock")]
    for folder, names, files in os.walk(cache):
        names[:] = [name for name in names if not name.startswith("archive-")]  # what uv has unpacked
        locks += [os.path.join(folder, name) for name in files if name.endswith(".lock")]
    for path in locks:
        with contextlib.suppress(OSError):  # there is none, or it is another user's
            os.chmod(path, 0o666 & ~paths.umask())


def skipped(done: proc.Finished) -> str:
    """The name of a member that uv left out of what it unpacked, since it would lie elsewhere; empty without one."""
    match = _SKIPPED.search(done.err)
    return match.group(1)[:200] if match else ""


def refuse_unsafe(path: str) -> None:
    """Raise NodeError `wheel-unsafe` (exit 5) when a member of the wheel would lie elsewhere or is no plain file.

    uv drops such members silently. What is no zip file at all is left to whoever reads its contents.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = [(member.filename, _why_unsafe(member)) for member in archive.infolist()]
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return
    for name, why in members:
        if why:
            raise unsafe(os.path.basename(path), name, why)


def unsafe(wheel: str, member: str, why: str) -> NodeError:
    """The error `wheel-unsafe` (exit 5) about a member of `wheel` (its name, or words for it)."""
    return NodeError(
        "wheel-unsafe",
        f"{wheel} holds {member[:200]!r}, {why}",
        hint="do not use this file or its index or mirror: the file looks like an attack",
    )


def _why_unsafe(member: zipfile.ZipInfo) -> str:
    """What is wrong with a member; empty when nothing is."""
    # `orig_filename` is as written: ZipInfo cuts a name at NUL.
    name = member.orig_filename
    parts = name.split("/")
    if name.startswith("/") or "\\" in name or "\0" in name or re.match(r"[A-Za-z]:", name):
        return "which is not a relative path"
    if ".." in parts:
        return "which leads out of its folder"
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "which is a link or a device"
    if parts[0].endswith(".data") and len(parts) > 1 and parts[1] not in _DATA:
        return "which belongs to no scheme of a wheel"
    return ""


def tail(text: str, lines: int = _TAIL) -> str:
    """The last lines of a program's output, redacted."""
    return "\n".join(redact_text(text).strip().splitlines()[-lines:])


def failure(done: proc.Finished, doing: str, where: str) -> NodeError:
    """The coded error for a uv run that failed while `doing` (words), working at the path `where`."""
    text = _GREETING.sub("", done.err + "\n" + done.out)
    why = tail(text)
    if done.timed_out:
        return _error("network-unreachable", f"uv did not finish {doing} in time", why)
    if paths.says_full(text):
        return paths.full_disk(where, why)
    mismatch = re.search(r"Hash mismatch for `([^`]+)`", text)
    if mismatch is not None:
        return _error(
            "hash-mismatch",
            f"{mismatch.group(1)} is not the file that the lock names",
            why,
            "the index or mirror has other contents; do not use it, or re-create the lock if the change is meant",
        )
    if re.search(r"Failed to extract archive|invalid Zip archive|ZIP file contains", text):
        header = _HEADER.search(text)
        if header and int(header.group(1), 16).to_bytes(4, "little").lstrip().startswith(b"<"):
            page = "open the address of the index in a browser: it may be a login page; or set the proxy"
            return _error("html-instead-of-file", f"the index answered a web page for a file ({doing})", why, page)
        hint = "fetch it again; if it stays so, open its address: a proxy may answer with its login page"
        return _error("artifact-damaged", f"a file is damaged ({doing})", why, hint)
    if _REFUSED.search(text):
        return _error(
            "index-refused",
            f"the package index denied access ({doing})",
            why,
            "check the credentials in ~/.netrc, or pip's and uv's configuration",
        )
    if _TRANSPORT.search(text):
        return _error(
            "network-unreachable",
            f"cannot reach what is needed ({doing})",
            why,
            "check the network and the proxy, configure a mirror in pip's configuration, or use `delivery: controller`",
        )
    if "No solution found" in text or "not found in the package registry" in text:
        return _error(
            "package-not-found",
            f"a locked package is not available ({doing})",
            why,
            "check that the configured index or mirror has it; offline, check the bundle",
        )
    return _error("install-failed", f"uv failed ({doing})", why)


def _error(code: str, what: str, why: str, hint: str = "") -> NodeError:
    return NodeError(code, what, why=why, hint=hint)
