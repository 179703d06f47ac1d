"""What pip's own configuration on this node says about indexes, because uv does not read it.

Precedence and places as pip documents them: PIP_* variables, PIP_CONFIG_FILE, the user's files, the system's files.
Addresses may carry credentials: `redact` takes them out of every text that is shown.
"""

import configparser
import os
import re
import shlex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_SECTIONS = ("install", "download", "global")
_CREDENTIALS = re.compile(r"(?<=://)[^/\s'\"@]+@")


class PipConfig:
    """`index_url` and `cert` (text, empty when not set), `extra_index_urls` and `find_links` (lists), as written."""

    def __init__(self, index_url: "str", extra_index_urls: "list[str]", find_links: "list[str]", cert: "str") -> "None":
        """Plain data."""
        self.index_url = index_url
        self.extra_index_urls = extra_index_urls
        self.find_links = find_links
        self.cert = cert


def redact(text: "str") -> "str":
    """`text` with the user and password of every URL replaced by `***`."""
    return _CREDENTIALS.sub("***@", text)


def without_credentials(url: "str") -> "str":
    """`url` without user and password."""
    return _CREDENTIALS.sub("", url)


def config_files(environ: "Mapping[str, str]") -> "list[str]":
    """pip's configuration files, the strongest first; none when PIP_CONFIG_FILE is the null device."""
    explicit = environ.get("PIP_CONFIG_FILE")
    if explicit == os.devnull:
        return []
    home = environ.get("HOME") or os.path.expanduser("~")
    user = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    system = [part for part in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":") if part]
    files = [os.path.join(user, "pip", "pip.conf"), os.path.join(home, ".pip", "pip.conf"), "/etc/pip.conf"]
    return ([explicit] if explicit else []) + files + [os.path.join(folder, "pip", "pip.conf") for folder in system]


def read(environ: "Mapping[str, str]") -> "PipConfig":
    """Each option from the strongest place that sets it; a file that cannot be parsed counts as not there."""
    parsers = []
    for path in config_files(environ):
        parser = configparser.RawConfigParser()
        try:
            with open(path, encoding="utf-8") as stream:
                parser.read_string(stream.read())
        except (OSError, UnicodeDecodeError, configparser.Error):
            continue
        parsers.append(parser)

    def option(name: "str") -> "str":
        value = environ.get("PIP_" + name.upper().replace("-", "_"), "")
        if value:
            return value
        for parser in parsers:
            for section in _SECTIONS:
                if parser.has_option(section, name):
                    return parser.get(section, name)
        return ""

    return PipConfig(
        option("index-url").strip(), _words(option("extra-index-url")), _words(option("find-links")), option("cert")
    )


def _words(text: "str") -> "list[str]":
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def local_path(link: "str") -> "str | None":
    """The folder or file that a location names, None for one on the network."""
    if link.startswith("file:"):
        from urllib.parse import unquote, urlsplit

        return unquote(urlsplit(link).path)
    return None if "://" in link else os.path.expanduser(link)


def alive(links: "list[str]") -> "list[str]":
    """The locations that can work: uv stops at a local one that does not exist, where pip goes on."""
    kept = []
    for link in links:
        path = local_path(link)
        if path is None or os.path.exists(path):
            kept.append(link)
    return kept
