"""Evidence without what names people, machines and places: for a reviewer who must not know whose it is.

Host names get pseudonyms that are the same all over one report; users, home folders, prefixes, addresses, e-mail and
ids of devices go; secrets are redacted in any case. What this knows nothing of (a name in a package of your own, say)
stays: look at what you publish.
"""

from __future__ import annotations

import gzip
import ipaddress
import re
from collections.abc import Iterable
from typing import Any

from envbuild.model.evidence import Attachment, Evidence
from envbuild.redact import redact_data, redact_text

_MAC = re.compile(r"(?<![0-9A-Fa-f:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![0-9A-Fa-f:])")
_MAIL = re.compile(r"[A-Za-z0-9._+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+")
_HOME = re.compile(r"/(?:home|Users|u|users)/[^/\s\"':;,]+|/root(?![A-Za-z0-9_-])")
_ADDRESS = re.compile(r"(?<![\w.:])(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+)(?![\w.:]*[\w:])")
_VERSION = re.compile(r'"?version"?\s{0,2}[=:]\s{0,2}"([^"\n]{1,80})"')
_DEVICE = re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{20,40}")
_ALONE = r"(?<![A-Za-z0-9_-])(?:%s)(?![A-Za-z0-9_-])"
_PLAIN = frozenset({"localhost", "local", "root", "user", "envbuild", "none", "linux"})
# What says nothing to a reader of the page and much about a machine.
_DROPPED = ("environments", "toolchain", "tmp", "modules", "visible_devices", "files_found", "reachable", "busy")


class Publisher:
    """Replaces what `evidence` shows to be names; the same text gives the same text."""

    def __init__(self, evidence: Evidence) -> None:
        """Collect the names."""
        facts = [node.facts for node in evidence.nodes if node.facts]
        hosts = {node.node for node in evidence.nodes} | {name for each in facts for name in (each.hostname, each.node)}
        self.versions = {version for node in evidence.nodes for version in node.packages.values()}
        self.versions |= {row.version for variant in evidence.variants for row in variant.packages}
        self.versions |= {each.version for found in facts for each in found.compilers}
        self.versions |= {each.version for found in facts for each in found.pythons}
        taken = {evidence.stack, evidence.profile, *_PLAIN}
        taken |= {name for node in evidence.nodes for name in node.packages}
        self.pseudonyms = _pseudonyms(host for host in hosts if host)
        self._words = {name: to for name, to in self.pseudonyms.items() if name.lower() not in taken}
        homes = {each.home for each in facts if len(each.home) > 1}
        users = {each.user for each in facts} | {home.rsplit("/", 1)[-1] for home in homes}
        self._words |= {user: "user" for user in users if len(user) > 1 and user.lower() not in taken}
        domains = {host.split(".", 1)[1] for host in hosts if "." in host and not _is_address(host)}
        self._domain = _alternatives(rf"(?:[A-Za-z0-9-]+\.)*{re.escape(each)}" for each in domains if "." in each)
        places = {each.prefix.path: "/prefix" for each in facts} | {each.shared: "/shared" for each in facts}
        self._places = {place: to for place, to in places.items() if len(place) > 1} | dict.fromkeys(homes, "~")
        self._word = _alternatives(map(re.escape, sorted(self._words, key=len, reverse=True)))
        self._lower = {name.lower(): to for name, to in self._words.items()}

    def text(self, text: str) -> str:
        """`text` without names, addresses and secrets."""
        text = redact_text(text)
        for place in sorted(self._places, key=len, reverse=True):
            text = text.replace(place, self._places[place])
        text = _MAIL.sub("someone", _HOME.sub("~", _DEVICE.sub("device", _MAC.sub("address", text))))
        if self._word is not None:
            text = self._word.sub(lambda found: self._lower[found[0].lower()], text)
        if self._domain is not None:
            text = self._domain.sub("host", text)
        return _ADDRESS.sub(self._address, text)

    def _address(self, found: re.Match[str]) -> str:
        return "address" if found[0] not in self.versions and _is_address(found[0]) else found[0]

    def data(self, value: Any) -> Any:
        """`text` for every string of JSON-like data, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.data(item) for key, item in value.items()}
        return [self.data(item) for item in value] if isinstance(value, (list, tuple)) else value


def published(evidence: Evidence) -> Evidence:
    """Evidence for everybody to see; its attachments are those that can go with it as they are (`may_go`)."""
    from envbuild.catalog.loader import list_targets

    clean = Publisher(evidence)
    data = redact_data(evidence.to_json_dict())
    for node in data["nodes"]:
        for key in _DROPPED:
            node.get("facts", {}).pop(key, None)
        for nic in node.get("facts", {}).get("nics", ()):
            nic["addresses"] = []
        for gpu in node.get("facts", {}).get("gpus", ()):
            gpu["uuid"] = ""
    if data["target"] not in list_targets():
        data["command"] = ["target" if word == data["target"] else word for word in data.get("command", ())]
        data["target"] = "target"
    kept = [item for item in data.pop("attachments", ()) if item["kind"] in ("lock", "variant", "files")]
    return Evidence.from_plain({**clean.data(data), "attachments": kept})


def may_go(evidence: Evidence, item: Attachment, data: bytes) -> bool:
    """Whether an attachment names nobody: it goes as it is, because of its digest, or not at all."""
    if item.kind not in ("lock", "variant", "files"):
        return False
    try:
        text = (gzip.decompress(data) if item.kind == "files" else data).decode()
    except (OSError, EOFError, ValueError):
        return False
    clean = Publisher(evidence)
    clean.versions |= set(_VERSION.findall(text))
    return clean.text(text) == text


def _pseudonyms(hosts: Iterable[str]) -> dict[str, str]:
    """`node-1` and so on in the order of the names; a name and its first part are one machine."""
    out: dict[str, str] = {}
    for host in sorted(hosts):
        short = host if _is_address(host) else host.split(".", 1)[0]
        if host in _PLAIN:
            continue
        out[host] = out.setdefault(short, f"node-{len(set(out.values())) + 1}")
    return out


def _alternatives(patterns: Iterable[str]) -> re.Pattern[str] | None:
    every = [*patterns]
    return re.compile(_ALONE % "|".join(every), re.IGNORECASE) if every else None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
