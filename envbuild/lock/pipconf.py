"""Reads what pip's own configuration says about find-links, because uv does not read it.

Precedence and places as pip documents them: PIP_* environment variables, PIP_CONFIG_FILE, then the user's and the
system's `pip.conf`. Only what a lock needs is read; nothing is written.
"""

from __future__ import annotations

import configparser
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

_SECTIONS = ("install", "download", "global")


def config_files(environ: Mapping[str, str]) -> list[Path]:
    """pip's configuration files that may exist, the strongest first; none when PIP_CONFIG_FILE is the null device."""
    explicit = environ.get("PIP_CONFIG_FILE")
    if explicit == os.devnull:
        return []
    home = Path(environ.get("HOME") or Path.home())
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    system = [Path(part) for part in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":") if part]
    files = [user / "pip" / "pip.conf", home / ".pip" / "pip.conf", Path("/etc/pip.conf")]
    files += [folder / "pip" / "pip.conf" for folder in system]
    return ([Path(explicit)] if explicit else []) + files


def _from_file(path: Path) -> list[str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error):
        # pip itself complains about a broken file; a lock needs it only as a hint where wheels may lie.
        return []
    for section in _SECTIONS:
        if parser.has_option(section, "find-links"):
            return parser.get(section, "find-links").split()
    return []


def find_links(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The find-links of pip's configuration (folders and URLs, as written), the strongest source only, as pip does."""
    named = environ.get("PIP_FIND_LINKS")
    if named:
        return tuple(shlex.split(named))
    for path in config_files(environ):
        found = _from_file(path)
        if found:
            return tuple(found)
    return ()


def local_folder(link: str) -> Path | None:
    """The folder that a find-links entry names, None when it is a web page or not there."""
    parts = urlsplit(link)
    if parts.scheme in ("http", "https"):
        return None
    path = Path(unquote(parts.path) if parts.scheme == "file" else link).expanduser()
    return path if path.is_dir() else None


def usable(link: str) -> str | None:
    """A find-links entry as uv can use it from any folder; None for a path that is not there (pip only warns)."""
    if urlsplit(link).scheme in ("http", "https"):
        return link
    folder = local_folder(link)
    return str(folder.resolve()) if folder else None
