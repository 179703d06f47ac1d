"""What pip's own configuration says about where packages are; uv does not read it.

Places and precedence as pip has them: a PIP_* variable; else the section of the command, of the strongest file that has
it; else the section `global`. Addresses may carry credentials.
"""

import configparser
import os
import re
from collections import ChainMap
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from envbuild.node.read_text import read as read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl

# The name of the index that is asked where a lock names no other.
NORMAL_INDEX = "pypi"
# What pip's `install` and `download` read, the strongest first.
_SECTIONS = ("install", "download", "global")
_LIMIT = 1 << 20
_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s'\"]+@")


class PipConfig(NamedTuple):
    """`index_url` and `cert` (text, empty when not set), `extra_index_urls` and `find_links` (lists), as written.

    `find_links` are pip's, then those of UV_FIND_LINKS. `no_index`: pip asks no index at all.
    """

    index_url: str
    extra_index_urls: "list[str]"
    find_links: "list[str]"
    cert: str
    no_index: bool = False


def without_credentials(url: str) -> str:
    """`url` without user and password."""
    return _CREDENTIALS.sub("", url)


def config_files(environ: "Mapping[str, str]") -> "list[str]":
    """pip's configuration files, the strongest first; none when PIP_CONFIG_FILE is the null device.

    The file of a virtual environment is not among them: on a node no pip of an environment takes part.
    """
    explicit = environ.get("PIP_CONFIG_FILE")
    if explicit == os.devnull:
        return []
    home = environ.get("HOME") or os.path.expanduser("~")
    user = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    system = [part for part in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":") if part]
    files = [os.path.join(user, "pip", "pip.conf"), os.path.join(home, ".pip", "pip.conf"), "/etc/pip.conf"]
    files += [os.path.join(folder, "pip", "pip.conf") for folder in reversed(system)]
    return ([explicit] if explicit else []) + files


def parse(text: str) -> "dict[str, dict[str, str]]":
    """Section -> option (as pip spells it: `find-links`) -> value; empty where pip could not read the text."""
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
    except (configparser.Error, ValueError):
        # pip itself complains about a broken file; here it only says where packages may lie.
        return {}
    sections: dict[str, dict[str, str]] = {}
    for section in parser.sections():
        items = parser.items(section)
        sections[section] = {name.replace("_", "-").lstrip("-"): value for name, value in items if value}
    return sections


def read(environ: "Mapping[str, str]") -> "PipConfig":
    """Each option from the strongest place that sets it; a file that cannot be parsed counts as not there."""
    files = [parse(read_text(path, _LIMIT)) for path in config_files(environ)]
    strongest = ChainMap(*(options.get(section, {}) for section in _SECTIONS for options in files))

    def option(name: str) -> str:
        return environ.get("PIP_" + name.upper().replace("-", "_")) or strongest.get(name, "")

    links = option("find-links").split()
    links += [link for link in environ.get("UV_FIND_LINKS", "").split(",") if link and link not in links]
    no_index = option("no-index").strip().lower() in ("1", "true", "yes", "on", "y", "t")
    extra = option("extra-index-url").split()
    return PipConfig(option("index-url").strip(), extra, links, option("cert").strip(), no_index)


def tell_certificates(env: "dict[str, str]", cert: str) -> None:
    """Name pip's certificates in the variables of a uv, which does not read them; others that are named there stay."""
    if cert and "SSL_CERT_FILE" not in env and os.path.exists(cert):
        env["SSL_CERT_FILE"] = cert


def trusting(cert: str) -> "ssl.SSLContext":
    """What Python trusts by itself (SSL_CERT_FILE counts), and pip's certificates besides.

    Raises OSError, ssl.SSLError among them, where the file of pip's cannot be used.
    """
    import ssl

    context = ssl.create_default_context()
    if cert and os.path.exists(cert):
        folder = os.path.isdir(cert)
        context.load_verify_locations(cafile=None if folder else cert, capath=cert if folder else None)
    return context


def local_path(link: str) -> "str | None":
    """The absolute path that a location names, None for one on the network or on another host."""
    if link.startswith("file:"):
        from urllib.parse import unquote, urlsplit

        try:
            parts = urlsplit(link)
        except ValueError:
            return None
        path = unquote(parts.path) if parts.netloc in ("", "localhost") else ""
        return os.path.normpath(path) if path.startswith("/") and "\0" not in path else None
    if "://" in link or not link or "\0" in link:
        return None
    return os.path.abspath(os.path.expanduser(link))


def alive(links: "Iterable[str]") -> "list[str]":
    """The locations that can work: uv stops at a local one that does not exist, where pip goes on."""
    kept = []
    for link in links:
        path = local_path(link)
        if os.path.exists(path) if path is not None else "://" in link and not link.startswith("file:"):
            kept.append(link)
    return kept


def folders(links: "Iterable[str]") -> "list[str]":
    """The folders on this machine among the locations, each once, as absolute paths."""
    paths = (path for path in map(local_path, links) if path is not None and os.path.isdir(path))
    return list(dict.fromkeys(paths))
