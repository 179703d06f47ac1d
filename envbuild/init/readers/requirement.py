"""One argument of an installer: a requirement, a wheel by its address, a git repository, or a folder."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from envbuild.init.statement import without_credentials
from envbuild.model.common import git_url

_GIT = re.compile(
    r"(?:(?P<name>[A-Za-z0-9._-]+(?:\[[^\]]*\])?)\s*@\s*)?git\+(?P<url>[^\s;#]+)(?:#(?P<fragment>[^\s;]*))?(?:\s*;.*)?"
)
_SCP = re.compile(r"(?:ssh://)?git@(?P<host>[A-Za-z0-9.-]+)[:/](?P<path>[A-Za-z0-9._/~-]+)")
_SCHEMES = ("https", "http", "ssh", "git")
_LOCAL = re.compile(r"(?:\.{1,2}(?:/|$|\[)|/|~|\$|file:)|.*(?:\.whl|\.tar\.gz|\.zip)$")
_CONDA = re.compile(
    r"(?:(?P<channel>[A-Za-z0-9_./-]+)::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)"
    r"\s*(?P<version>(?:===?|>=|<=|!=|~=|=|>|<)\s*[^\s=].*)?"
)
_LONGEST = 500


class GitAddress(NamedTuple):
    """A repository: its address without credentials, and what the words around it say."""

    url: str
    ref: str = ""
    name: str = ""
    subdirectory: str = ""
    ssh: bool = False


def git_address(text: str) -> GitAddress | None:
    """`git+URL@REF#egg=NAME`, also with `NAME @` before it, a plain address of a repository, or `git@HOST:PATH`."""
    match = _GIT.fullmatch(text.strip())
    name, url, fragment = (match["name"] or "", match["url"], match["fragment"] or "") if match else ("", text, "")
    named = dict(item.partition("=")[::2] for item in fragment.split("&"))
    name = (name or named.get("egg", "")).partition("[")[0]
    if scp := _SCP.match(url):
        path, ref = scp["path"].removesuffix("/").removesuffix(".git"), url[scp.end() :].removeprefix("@")
        return _usable(GitAddress(f"https://{scp['host']}/{path}", ref, name, ssh=True))
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme not in _SCHEMES or not parts.hostname or not parts.path.strip("/"):
        return None
    path, _, ref = parts.path.partition("@")
    parts = parts._replace(path=path.removesuffix("/").removesuffix(".git"), query="", fragment="")
    clean = without_credentials(parts.geturl())
    if parts.scheme in ("git", "http"):
        clean = "https" + clean[len(parts.scheme) :]
    return _usable(GitAddress(clean, unquote(ref), name, named.get("subdirectory", ""), parts.scheme == "ssh"))


def _usable(address: GitAddress) -> GitAddress | None:
    """The address, if a stack may have it: git is asked about no other."""
    try:
        git_url(address.url)
    except ValueError:
        return None
    return None if address.ref.startswith("-") else address


def is_git(text: str) -> bool:
    """Whether a word of pip names a repository."""
    return bool(_GIT.fullmatch(text.strip()))


def is_local(text: str) -> bool:
    """Whether a word of pip names a file or folder."""
    return bool(_LOCAL.match(text)) or bool(re.fullmatch(r"[\w.-]+(?:/[\w.-]+)+/?(?:\[[\w,. -]*\])?", text))


def requirement(text: str) -> Requirement | None:
    """A requirement of an index; None for what is none."""
    text = text.strip().rstrip(",")
    if len(text) > _LONGEST:
        return None
    try:
        # `numpy>=1.20.*` and the like: what old pips took, packaging refuses.
        return Requirement(re.sub(r"(>=|<=|>|<)(\s*[0-9][0-9.]*)\.\*", r"\1\2", text))
    except InvalidRequirement:
        return None


def name_of(text: str) -> str:
    """The normal name of what a requirement asks for; empty for what is none."""
    parsed = requirement(text)
    return str(canonicalize_name(parsed.name)) if parsed else ""


class Wheel(NamedTuple):
    """What the name of a wheel says."""

    name: str
    version: str
    local: str
    python: str


def wheel(text: str) -> Wheel | None:
    """The facts in the name of a wheel, by its path or address; None for what is none."""
    try:
        file = unquote(PurePosixPath(urlsplit(text).path if "://" in text else text).name)
        name, version, _, tags = parse_wheel_filename(file)
    except (InvalidWheelFilename, ValueError):  # the second of what is no address
        return None
    pythons = {tag.interpreter for tag in tags if tag.interpreter.startswith("cp3") and not tag.abi.startswith("abi3")}
    python = f"3.{pythons.pop()[3:]}" if len(pythons) == 1 else ""
    return Wheel(str(name), version.public, version.local or "", python)


class Spec(NamedTuple):
    """A match spec of conda: `version` as PEP 440 has it."""

    name: str
    version: str
    channel: str

    @property
    def requirement(self) -> str:
        """The same of an index."""
        return f"{self.name}{self.version}"


def conda_spec(text: str) -> Spec | None:
    """`name=1.2`, `name==1.2=build`, `channel::name >=1`; None for what is none."""
    match = _CONDA.fullmatch(text.strip())
    if not match or is_local(text):
        return None
    version = re.sub(r"\s+", "", match["version"] or "")
    if re.match(r"=(?!=)", version):  # a prefix match; behind a second `=` stands the build
        version = "==" + version[1:].partition("=")[0].removesuffix("*").removesuffix(".")
    elif version.startswith("=="):
        version = "==" + version[2:].partition("=")[0]
    return Spec(match["name"].lower(), version, match["channel"] or "")
