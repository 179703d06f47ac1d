"""How this machine logs in to conda channels: what conda's and rattler's files and ~/.netrc say of an address.

As rattler does it: what the address carries, an entry of the host itself, ~/.netrc, an entry `*.<domain>`, the nearest
first. What is read here is told to the redactor, and is never sent to another host.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from envbuild.node import pip_config, redact
from envbuild.node.packages import index_client
from envbuild.node.protocol import Json, NodeError

_TOKEN = re.compile(r"/t/([^/]+)(?=/|\Z)")
_ADDRESS = re.compile(r"https?://[^\s'\",\]}]+")
_COMMENT = re.compile(r"(^|\s)#.*", re.M)


def condarc_files(environ: Mapping[str, str]) -> list[Path]:
    """The `.condarc` files that are there, the strongest first."""
    home = Path(environ.get("HOME") or Path.home())
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    named = [Path(environ[name]).expanduser() for name in ("CONDARC", "MAMBARC") if environ.get(name)]
    own = [home / ".condarc", home / ".mambarc", home / ".conda/condarc", home / ".conda/.condarc"]
    system = [Path("/etc/conda/condarc"), Path("/etc/conda/.condarc")]
    return [path for path in (*named, *own, config / "conda/condarc", config / "conda/.condarc", *system)
            if path.is_file()]  # fmt: skip


def rattler_files(environ: Mapping[str, str]) -> list[Path]:
    """rattler's configuration files that are there, the strongest first."""
    home = Path(environ.get("HOME") or Path.home())
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    places = (config / "rattler/config.toml", Path("/etc/rattler/config.toml"))
    return [path for path in places if path.is_file()]


def without_login(url: str) -> str:
    """An address without user, password and `/t/TOKEN`, for other machines; no message shows the token from now on."""
    redact.learn([{"token": token} for token in _TOKEN.findall(url)])
    return _TOKEN.sub("", pip_config.without_credentials(url))


def login(url: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """The address to ask for one `without_login`, and the value of its `Authorization` header, empty for none.

    Raises NodeError `conda-config-invalid` (exit 2).
    """
    url = _configured(url, environ)
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.username is not None:
        return pip_config.without_credentials(url), index_client.login(url)
    files = list(_files(environ))
    labels = host.split(".")
    for name in [host] + ["*." + ".".join(labels[first:]) for first in range(len(labels))]:
        entry = next((file[name] for file in files if name in file), None)
        if entry is not None:
            return parts._replace(path=entry[0] + parts.path).geturl(), entry[1]
        if name == host and index_client.login(url):
            break
    return url, index_client.login(url)


def _configured(url: str, environ: Mapping[str, str]) -> str:
    """The address with the user, password or token that a configuration file gives to the beginning of it."""
    texts = [environ.get("CONDA_CHANNEL_ALIAS") or ""]
    for path in condarc_files(environ) + rattler_files(environ):
        texts.append(_COMMENT.sub("", _text(path)))
    best, full = "", ""
    for address in (match.rstrip("/") for text in texts for match in _ADDRESS.findall(text)):
        plain = without_login(address)
        if plain != address and len(plain) > len(best) and url.startswith(plain + "/"):
            best, full = plain, address
    return full + url[len(best) :]


def _files(environ: Mapping[str, str]) -> Iterator[dict[str, tuple[str, str]]]:
    """rattler's files, the strongest first: host or `*.<domain>` to the path to put before, and the header."""
    home = environ.get("HOME") or os.path.expanduser("~")
    for path in (environ.get("RATTLER_AUTH_FILE"), os.path.join(home, ".rattler", "credentials.json")):
        if path and os.path.isfile(path):
            try:
                hosts = json.loads(_text(Path(path)))
                redact.learn(hosts)
                yield {host: _entry(hosts[host]) for host in hosts}
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                raise _invalid(path, error) from error


def _entry(entry: Json) -> tuple[str, str]:
    if "CondaToken" in entry:
        return "/t/" + entry["CondaToken"], ""
    if "BearerToken" in entry:
        return "", "Bearer " + entry["BearerToken"]
    pair = entry.get("BasicHTTP")
    return "", index_client.basic(pair["username"], pair["password"]) if pair else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _invalid(str(path), error) from error


def _invalid(path: str, error: Exception) -> NodeError:
    return NodeError(
        "conda-config-invalid",
        f"{path} cannot be read for the credentials of conda's channels",
        why="%s: %s" % (type(error).__name__, getattr(error, "strerror", None) or "it is not what rattler writes"),
    )
