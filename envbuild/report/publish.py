"""Evidence without what names people, machines and places: for a reviewer who must not know whose it is.

Host names get pseudonyms that are the same all over one report; users, home folders, prefixes, addresses, e-mail and
ids of devices go; secrets are redacted in any case. What this knows nothing of (a name in a package of your own, say)
stays: look at what you publish.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from typing import Any

from envbuild.model import file_list
from envbuild.model.evidence import Attachment, Evidence
from envbuild.redact import redact_data, redactor

_MAC = re.compile(r"(?<![0-9A-Fa-f:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?!:?[0-9A-Fa-f])")
_MAIL = re.compile(r"[A-Za-z0-9._+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+")
_HOME = re.compile(r"/(?:home|Users|u|users)/[^/\s\"':;,]+|/root(?![A-Za-z0-9_-])")
_IPV6 = re.compile(r"(?<![\w.])(?=[0-9A-Fa-f]*:)[0-9A-Fa-f:.]++(?!\w)")
_IPV4 = re.compile(r"(?<![A-Za-z0-9.])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![A-Za-z0-9]|\.[0-9])")
_VERSION = re.compile(r'"?version"?\s{0,2}[=:]\s{0,2}"([^"\n]{1,80})"')
_REQUIRED = re.compile(r"[=<>~!]=\s?([0-9][0-9.]{1,80})")
_FILE_VERSION = re.compile(r"-([0-9]{1,3}(?:\.[0-9]{1,3}){3})(?![0-9])")
_DEVICE = re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{20,40}")
_ALONE = r"(?<![A-Za-z0-9])(?:%s)(?![A-Za-z0-9])"
_OF_GPU = re.compile(r"([\w.-]{1,253}): GPU [0-9]+ is ")  # the node of a job may stand nowhere else
_DOMAIN = r"(?:(?:\.[A-Za-z0-9-]{1,63}){1,9}\.[A-Za-z]{2,63})?"  # behind the short name of a host
_PLAIN = frozenset({"localhost", "local", "root", "user", "envbuild", "none", "linux"})
_EVERYBODYS = frozenset({"127.0.0.1", "::1"})
_MAY_GO = ("lock", "profile", "variant", "files")
# Options whose values are hosts, and what stands for those that are no node of the evidence.
_HOST_OPTIONS = ("--host", "--limit", "--exclude", "--master")
_STAND_INS = frozenset({"host", "hosts", "user"})
_FOLDED = re.compile(
    r"(?<![\w.-])[\w.-]{1,255}\[[0-9][0-9,-]{0,255}\](?:[\w.-]|\[[0-9,-]{1,255}\]){0,255}(?<=[\w\]])", re.ASCII
)
# The longest name of a host, path or user that is looked at where nobody knows who wrote it.
_LONGEST = 255
# What says nothing to a reader of the page and much about a machine.
_DROPPED = ("environments", "toolchain", "tmp", "modules", "visible_devices", "files_found", "reachable", "busy")


class Publisher:
    """Replaces what `evidence` shows to be names; the same text gives the same text."""

    def __init__(self, evidence: Evidence) -> None:
        """Collect the names."""
        from envbuild.catalog.loader import list_stacks, list_targets, load_stack

        self._redactor = redactor()
        facts = [node.facts for node in evidence.nodes if node.facts]
        machines = {found[1]: found[1] for text in evidence.warnings if (found := _OF_GPU.match(text))}
        machines |= {name: node.node for node in evidence.nodes if (f := node.facts) for name in (f.hostname, f.node)}
        machines |= {node.node: node.node for node in evidence.nodes}
        # What a shipped stack says of itself names nobody, also where a host or target is called as one of its words.
        stack = load_stack(evidence.stack).stack if evidence.stack in list_stacks() else None
        self._shipped = {text for each in stack.findings for text in (each.truth, each.does)} if stack else set[str]()
        self._shipped |= {text for each in stack.profiles.values() for text in each.deviations} if stack else set()
        self.versions = {
            each for node in evidence.nodes for each in (*node.packages.values(), *node.base_packages.values())
        }
        self.versions |= {row.version for variant in evidence.variants for row in variant.packages}
        self.versions |= {each.version for found in facts for each in found.compilers}
        self.versions |= {each.version for found in facts for each in found.pythons}
        taken = {evidence.stack, evidence.profile, *_PLAIN, *_fields()}
        taken |= {name for node in evidence.nodes for name in node.packages}
        self.pseudonyms = _pseudonyms({name: node for name, node in machines.items() if name})
        servers = {each.scheduler.job.partition(".")[2] for each in facts if each.scheduler.job}
        words = {server.split(".", 1)[0]: "host" for server in servers}
        lists = _given(evidence.command, _HOST_OPTIONS)
        given = [each.rpartition("@") for told in lists for each in re.split(r",(?![^\[]*\])", told)]
        named = {name for _, _, name in given} - _PLAIN - _STAND_INS
        named |= {name.split(".", 1)[0] for name in named}
        words |= dict.fromkeys(named, "host")
        words |= dict.fromkeys({evidence.target}.difference(list_targets()), "target") | self.pseudonyms
        self._stems = {_stem(name) for name in (*self.pseudonyms, *named)} - {""}
        homes = {each.home for each in facts if len(each.home) > 1}
        users = {each.user for each in facts} | {home.rsplit("/", 1)[-1] for home in homes}
        users |= {user for user, *_ in given}
        words |= dict.fromkeys(users, "user")
        words = {name: to for name, to in words.items() if len(name) > 1 and name.lower() not in taken}
        # A name that is a part of one that stays (of a package, of a field) is none there.
        words |= {name: "" for name in taken if any(word.lower() in name.lower() for word in words)}
        # Where a stack's own run writes here is the folder of who started it.
        own = re.escape(f"{evidence.stack}-{evidence.run}-")
        self._launch = re.compile(rf"(?<![\w~/.-])/(?!prefix/|path/|shared/)[^\s\"':;,]{{1,{_LONGEST}}}/(?={own})")
        hosts = machines.keys() | servers | named
        domains = {host.split(".", 1)[1] for host in hosts if "." in host and not _is_address(host)}
        self._domain = _alternatives(rf"(?:[A-Za-z0-9-]+\.)*{re.escape(each)}" for each in domains if "." in each)
        places = {path: "/prefix" for path in _given(evidence.command, ("--prefix",)) if "/" in path}
        places |= {each.prefix.path: "/prefix" for each in facts} | {each.shared: "/shared" for each in facts}
        self._places = {place: to for place, to in places.items() if len(place) > 1} | dict.fromkeys(homes, "~")
        longest = sorted(self._places, key=len, reverse=True)
        # With the rest of its name it is another place, beside it.
        self._place = re.compile(rf"({'|'.join(map(re.escape, longest)) or '(?!)'})([\w-]*)")
        whole = named | self.pseudonyms.keys()
        longest = sorted(words, key=len, reverse=True)
        self._word = _alternatives(re.escape(name) + _DOMAIN * (name in whole) for name in longest)
        self._lower = {name.lower(): to for name, to in words.items()}

    def text(self, text: str) -> str:
        """`text` without names, addresses and secrets."""
        if text in self._shipped:
            return text
        text = self._redactor.text(text)
        text = self._place.sub(lambda found: "/path" if found[2] else self._places[found[1]], text)
        text = self._launch.sub("/launches/", text)
        text = _MAIL.sub("someone", _HOME.sub("~", _DEVICE.sub("device", _MAC.sub("address", text))))
        text = _FOLDED.sub(lambda found: "hosts" if _stem(found[0]) in self._stems else found[0], text)
        if self._word is not None:
            text = self._word.sub(self._named, text)
        if self._domain is not None:
            text = self._domain.sub("host", text)
        return _IPV4.sub(self._address, _IPV6.sub(self._address, text))

    def _named(self, found: re.Match[str]) -> str:
        name = found[0].lower()
        while name not in self._lower:  # with its domain
            name = name.rpartition(".")[0]
        return self._lower[name] or found[0]

    def _address(self, found: re.Match[str]) -> str:
        if found[0] in self.versions or found[0] in _EVERYBODYS:
            return found[0]
        if _is_address(found[0]):
            return "address"
        rest, last = found[0][:-1], found[0][-1]
        return f"address{last}" if last in ":." and _is_address(rest) else found[0]

    def data(self, value: Any) -> Any:
        """`text` for every string of JSON-like data, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.data(item) for key, item in value.items()}
        return [self.data(item) for item in value] if isinstance(value, (list, tuple)) else value


def published(evidence: Evidence) -> Evidence:
    """Evidence for everybody to see; its attachments are those that can go with it as they are (`may_go`)."""
    clean = Publisher(evidence)
    data = redact_data(evidence.to_json_dict())
    for node in data["nodes"]:
        for key in _DROPPED:
            node.get("facts", {}).pop(key, None)
        node.get("facts", {}).get("scheduler", {}).pop("job", None)
        for nic in node.get("facts", {}).get("nics", ()):
            nic["addresses"] = []
        for gpu in node.get("facts", {}).get("gpus", ()):
            gpu["uuid"] = ""
    kept = [item for item in data.pop("attachments", ()) if item["kind"] in _MAY_GO]
    return Evidence.from_plain({**clean.data(data), "attachments": kept})


def is_published(evidence: Evidence) -> bool:
    """Whether what it says of its nodes may be what `published` leaves of it. Quick, whoever made the evidence."""
    facts = [node.facts for node in evidence.nodes if node.facts]
    names = {evidence.target, *evidence.command} | {node.node for node in evidence.nodes}
    names |= {name for f in facts for name in (f.node, f.hostname, f.user, f.home, f.prefix.path, f.shared)}
    gone = [getattr(each, key) for each in facts for key in _DROPPED] + [each.scheduler.job for each in facts]
    gone += [nic.addresses for each in facts for nic in each.nics] + [gpu.uuid for each in facts for gpu in each.gpus]
    kinds = {item.kind for item in evidence.attachments}
    if any(gone) or not kinds <= {*_MAY_GO} or any(len(name) > _LONGEST for name in names):
        return False
    clean = Publisher(evidence)
    return all(clean.text(name) == name for name in names)


def may_go(evidence: Evidence, item: Attachment, data: bytes) -> bool:
    """Whether an attachment names nobody: it goes as it is, because of its digest, or not at all."""
    if item.kind not in _MAY_GO:
        return False
    try:
        # No path in a list of files is that of a home or prefix: all begin below the environment.
        text = (file_list.text(data).replace(b"/", b" ") if item.kind == "files" else data).decode()
    except ValueError:
        return False
    versions = {each for each in _FILE_VERSION.findall(text) if _is_public(each)} if item.kind == "files" else set()
    return names_nobody(evidence, text, versions)


def names_nobody(evidence: Evidence, text: str, versions: Iterable[str] = ()) -> bool:
    """Whether a text beside the evidence has nothing in it that would be replaced; `versions` are no addresses."""
    clean = Publisher(evidence)
    clean.versions |= {*_VERSION.findall(text), *_REQUIRED.findall(text), *versions}
    return clean.text(text) == text


def _is_public(address: str) -> bool:
    """Whether four numbers in the name of a file are more likely a version: no address of a site's own network."""
    return _is_address(address) and ipaddress.ip_address(address).is_global


@cache
def _fields() -> frozenset[str]:
    """The names and fixed values of evidence, whoever it is of: a schema takes as long as all the rest."""
    return frozenset(_vocabulary(Evidence.model_json_schema()))


def _vocabulary(schema: Any) -> Iterator[str]:
    """The names of fields and the fixed values of a JSON schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
        yield from schema.get("enum", ())
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _vocabulary(each)


def _pseudonyms(machines: Mapping[str, str]) -> dict[str, str]:
    """`node-1` and so on in the order of the names, of which each has its node; a name and its first part are one."""
    out: dict[str, str] = {}
    known: dict[str, str] = {}
    # By number, so that `node-10` comes after `node-9` and a pseudonym is its own.
    for host in sorted(machines, key=lambda host: re.sub("[0-9]+", lambda digits: digits[0].zfill(_LONGEST), host)):
        short = host if _is_address(host) else host.split(".", 1)[0]
        if host not in _PLAIN:
            own = out.get(short) or known.get(machines[host]) or f"node-{len(set(out.values())) + 1}"
            out[host] = out[short] = known[machines[host]] = own
    return out


def _given(command: Sequence[str], options: Sequence[str]) -> Iterator[str]:
    """The values that a command gives to one of the options, as they stand."""
    for word, following in zip_longest(command, command[1:], fillvalue=""):
        name, sign, value = word.partition("=")
        if name in options:
            yield value if sign else following


def _stem(name: str) -> str:
    """What the names of a list have in common: `gpu` of `gpu01` and of `gpu[01-04].example.org`."""
    return re.sub(r"\[[^\]]*\]|[0-9]+", "", name.split(".", 1)[0]).lower()


def _alternatives(patterns: Iterable[str]) -> re.Pattern[str] | None:
    every = [*patterns]
    return re.compile(_ALONE % "|".join(every), re.IGNORECASE) if every else None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
