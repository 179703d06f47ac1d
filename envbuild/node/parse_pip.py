"""Which local find-links folders pip's configuration names. Pure functions: text in, data out, never raising."""

import configparser
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_SECTIONS = ("global", "install", "download", "wheel")


def split_links(value: "str") -> "list[str]":
    """The entries of a find-links setting: separated by blanks or lines."""
    return value.split()


def parse_find_links(text: "str") -> "list[str]":
    """`find-links` of a pip.conf, of every section that concerns installing; none where pip could not read it."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except (configparser.Error, ValueError):
        return []
    found = []
    for section in _SECTIONS:
        if not parser.has_section(section):
            continue
        for name, value in parser.items(section):
            if name.replace("_", "-") == "find-links" and value:
                found += split_links(value)
    return found


def local_folders(links: "Iterable[str]", home: "str") -> "list[str]":
    """The entries that are absolute local folders, as paths; URLs (which may carry credentials) are left out."""
    from urllib.parse import unquote

    found = []  # type: list[str]
    for link in links:
        path = link
        if link.startswith("file:"):
            local = re.match(r"file:(?://(?:localhost)?)?(/[^/].*)\Z", link)
            path = unquote(local.group(1)) if local else ""
        elif link == "~" or link.startswith("~/"):
            path = home + link[1:]
        if (
            path.startswith("/")
            and not path.startswith("//")
            and "\0" not in path
            and os.path.normpath(path) not in found
        ):
            found.append(os.path.normpath(path))
    return found
