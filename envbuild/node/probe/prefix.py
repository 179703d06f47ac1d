"""Which tools are under the prefix already, and which wanted files, indexes and repositories this node can get at."""

import os
import re
from collections.abc import Sequence
from functools import partial

from envbuild.node import hashing, pip_config, proc
from envbuild.node.read_text import names, read

_REACH_DEADLINE = 3.0
_PROGRAM = "envbuild-node"
# `user@host:path`, as git has it.
_SCP = re.compile(r"\A([^/:]+):")
_PORTS = {"http": 80, "https": 443, "ssh": 22}
# What uv.toml says of the default index; one that is switched off has no address.
_UV_INDEX = re.compile(r"^\s*(?:(?:index-url|url)\s*=\s*\"([^\"]*)\"|no-index\s*=\s*true)", re.MULTILINE)


def toolchain_names(prefix: str) -> "list[str]":
    """Folders under `<prefix>/tools`; the node program's only where it has the digest that its name says."""
    tools = os.path.join(prefix, "tools")
    folders = [name for name in names(tools) if os.path.isdir(os.path.join(tools, name)) and not name.startswith(".")]
    ours = [name for name in folders if name.startswith(_PROGRAM + "-")]
    digests = {name: hashing.digest_if_readable(os.path.join(tools, name, _PROGRAM + ".pyz")) for name in ours}
    return [name for name in folders if name not in ours or name.endswith("-%.12s" % (digests[name] or "/"))]


def files_found(wanted: "list[str]") -> "dict[str, str]":
    """Wanted file name -> its path in a local find-links folder of pip's (or uv's) configuration on this node."""
    folders = pip_config.folders(pip_config.read(os.environ).find_links) if wanted else []
    by_name = {}
    for name in wanted:
        if "/" in name or "\0" in name or name in ("", ".", ".."):
            continue
        for folder in folders:
            path = os.path.join(folder, name)
            if name not in by_name and os.path.isfile(path) and os.access(path, os.R_OK):
                by_name[name] = path
    return by_name


def reachable(targets: "dict[str, str]", repositories: "Sequence[str]" = ()) -> "dict[str, bool]":
    """Index name, or address of a repository -> a TCP connection to its host, or to the proxy for it, came up in time.

    A repository is where git's configuration (`insteadOf`) says it is; a file address is reached where it is there.
    """
    asked = {name: partial(_connects, targets[name]) for name in targets}
    asked.update({address: partial(_git_connects, address) for address in repositories})
    # Resolving a name has no deadline of its own, so late answers are given up here.
    answers = proc.by_name(asked, _REACH_DEADLINE + 1.0)
    return {name: bool(answers[name]) for name in sorted(asked)}


def configured_index(default: str) -> str:
    """The address of the index that uv asks when a lock names none: that of its or of pip's configuration, else
    `default`; empty where the configuration says that there is none.
    """
    named = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL")
    named = named or pip_config.read(os.environ).index_url
    if named:
        return named
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    places = (os.path.join(config, "uv", "uv.toml"), "/etc/uv/uv.toml")
    for path in [os.environ["UV_CONFIG_FILE"]] if os.environ.get("UV_CONFIG_FILE") else places:
        match = _UV_INDEX.search(read(path))
        if match is not None:
            return match.group(1) or ""
    return default


def _git_connects(address: str) -> bool:
    """Whether the host that git would ask for a repository takes connections; without git, the one that is named.

    Where it does not, git itself has the last word: its configuration may know a proxy, or `where` lack its `.git`.
    """
    answer = proc.run(["git", "ls-remote", "--get-url", "--", address], timeout=_REACH_DEADLINE)
    where = answer.out.strip() if answer.ok else address
    host = _SCP.match(where)
    if "://" in where or host:
        reached = _connects("ssh://" + host.group(1) if host and "://" not in where else where)
    else:
        reached = os.path.exists(where)
    if reached or not answer.ok:
        return reached
    words = ["git", "-c", "protocol.ext.allow=never", "ls-remote", "--", address, "HEAD"]
    return proc.run(words, timeout=_REACH_DEADLINE, env=proc.clean_env({"GIT_TERMINAL_PROMPT": "0"})).ok


def _connects(url: str) -> bool:
    import socket
    from urllib.parse import unquote, urlsplit
    from urllib.request import getproxies, proxy_bypass

    try:
        parts = urlsplit(url)
        if parts.scheme == "file":
            return os.path.exists(unquote(parts.path))
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
        proxies = getproxies()
        proxy = proxies.get(parts.scheme) or (proxies.get("all") if parts.scheme != "ssh" else None)
        if host and proxy and not proxy_bypass(host):
            via = urlsplit(proxy if "://" in proxy else "http://" + proxy)
            host, port = via.hostname, via.port or _PORTS.get(via.scheme) or 1080
        if not host or not port:
            return False
        socket.create_connection((host, port), timeout=_REACH_DEADLINE).close()
    except (OSError, ValueError, UnicodeError):
        return False
    return True
