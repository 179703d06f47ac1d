"""The toolchain payload: one self-extracting POSIX sh file that puts tools into a prefix, no Python needed there.

A tool lies in `<prefix>/tools/<name>-<first 12 hex of its sha256>/`. The file begins with `payload.sh`, filled in and
padded to one block; then come the tools, each a tar archive (packed with gzip on request) padded to whole blocks, so
that plain `dd` finds them and the padding is harmless.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import IO, Any, cast

from envbuild.plan.tools import Tool
from envbuild.regular_file import sha256_of
from envbuild.resources import uv_bin

BLOCK = 65536


@cache
def uv_tool() -> Tool:
    """The uv binary that envbuild itself depends on.

    Its digest is the one in uv's RECORD where the file is the installed one, because hashing it costs more than a run
    that has nothing to do; the node checks the file against it before it is used.
    Raises EnvbuildError `uv-missing` (exit 2).
    """
    path = Path(uv_bin())
    return Tool("uv", path, _recorded_digest(path) or sha256_of(path))


def _recorded_digest(path: Path) -> str | None:
    """sha256 (hex) that the installed uv records for one of its files; None when it does not name the file."""
    try:
        files = metadata.files("uv") or ()
    except metadata.PackageNotFoundError:  # its program and module lie here without a record of what was installed
        return None
    for file in files:
        if file.name == path.name and file.hash is not None and Path(file.locate()).resolve() == path.resolve():
            digest = base64.urlsafe_b64decode(file.hash.value + "=" * (-len(file.hash.value) % 4))
            return digest.hex() if file.hash.mode == "sha256" else None
    return None


def write_payload(path: Path, tools: Sequence[Tool], *, prefix: str, packed: bool) -> None:
    """Write the payload for one prefix (absolute) to `path`, mode 0700.

    `packed`: compress with gzip level 1, for a network; not for this machine. A standalone Python goes first, because
    it can check the others where there is no `sha256sum`.
    """
    if not prefix.startswith("/") or "\n" in prefix or "\0" in prefix:
        raise ValueError(f"not a usable prefix: {prefix!r}")
    ordered = sorted(tools, key=lambda tool: tool.kind != "tree")
    puts: list[str] = []
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o700)
    with os.fdopen(fd, "wb") as out:
        out.write(b"\n" * BLOCK)
        for tool in ordered:
            first = out.tell() // BLOCK
            _append(out, tool, packed=packed)
            blocks = -(-out.tell() // BLOCK)
            out.write(b"\0" * (blocks * BLOCK - out.tell()))
            place = (str(first), str(blocks - first))
            puts.append(shlex.join(["put", tool.name, tool.sha256, tool.folder, *place, tool.kind, tool.file_name]))
        head = _head(prefix, puts, packed=packed, gzip_needed=packed or any(tool.kind != "file" for tool in tools))
        out.seek(0)
        out.write(head)


def refuse_constant(text: str) -> Any:
    """For `json.loads`: NaN and the infinities of Python's are no JSON. Raises ValueError."""
    raise ValueError(f"{text} is not JSON")


def read_answer(stdout: str) -> dict[str, Any] | None:
    """What a payload or the node program answered: `ok`, `changed`, and `error` or the results.

    It is the last line that is a JSON object (a terminal on the way mixes stderr in); None when there is none.
    """
    # Not `splitlines`: names of files in an answer may have what else Python takes for the end of a line.
    for line in reversed(stdout.split("\n")):
        if line.startswith("{"):
            try:
                data = json.loads(line, parse_constant=refuse_constant)
            except (ValueError, RecursionError):
                return None
            if not isinstance(data, dict) or not isinstance(data.get("ok"), bool):
                return None
            return data if all(isinstance(data.get(part, {}), dict) for part in ("result", "error")) else None
    return None


def _head(prefix: str, puts: Iterable[str], *, packed: bool, gzip_needed: bool) -> bytes:
    text = Path(__file__).with_name("payload.sh").read_text(encoding="utf-8")
    values = {
        "@PREFIX@": shlex.quote(prefix.rstrip("/")),
        "@UNPACK@": "'gzip -dc'" if packed else "cat",
        "@NEEDS@": "gzip" if gzip_needed else "cat",
        "@PUTS@": "\n".join(puts),
    }
    head = re.sub("|".join(values), lambda match: values[match[0]], text).encode()
    if len(head) > BLOCK:
        raise ValueError("too many tools for one payload")
    return head


def _append(out: IO[bytes], tool: Tool, *, packed: bool) -> None:
    """One tar archive with the tool's file."""
    if not packed:
        write_tar(out, [(tool.file_name, tool.source)], 0o755)
    elif tool.kind == "file":
        out.write(_squeezed(tool))
    else:  # it is compressed already
        with gzip.GzipFile(filename="", mode="wb", compresslevel=0, fileobj=out, mtime=0) as stream:
            write_tar(stream, [(tool.file_name, tool.source)], 0o755)


@lru_cache(maxsize=4)
def _squeezed(tool: Tool) -> bytes:
    """Seconds of work for uv, the same for every prefix."""
    out = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=out, mtime=0) as stream:
        write_tar(stream, [(tool.file_name, tool.source)], 0o755)
    return out.getvalue()


def write_tar(out: IO[bytes] | gzip.GzipFile, files: Iterable[tuple[str, Path]], mode: int) -> None:
    """A tar archive of files, by names in it; owner, time and mode are fixed, so that equal files give equal bytes."""
    import tarfile

    stream = cast(IO[bytes], out)
    with tarfile.TarFile(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT, copybufsize=1 << 20) as archive:
        for name, path in files:
            with path.open("rb") as content:
                member = tarfile.TarInfo(name)
                member.size, member.mode = os.fstat(content.fileno()).st_size, mode
                archive.addfile(member, content)
