"""Installs a variant's locked packages with uv: hashes required, dependencies never resolved, files copied."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from envbuild.node import hashing, pip_config, proc, variables
from envbuild.node.build import diagnose
from envbuild.node.build import environment as build_environ
from envbuild.node.logs import progress
from envbuild.node.packages import installed, uv
from envbuild.node.probe.processes import at_work, written
from envbuild.node.protocol import Exit, Json, NodeError, log, plural
from envbuild.node.read_text import names

UNRECORDED = "unrecorded"
BYTES_PER_FETCHED = 3  # unpacked wheels take two to four times their size
HERE = ("local", "offline")  # groups whose files lie on this machine
FETCHED = "envbuild: fetched, to be built without a network"
_STOP = "import os\nos.write(2, b%r)\nos._exit(1)\n" % (FETCHED + "\n")


class Group(NamedTuple):
    """Locked packages of one place: `extra` are uv's variables for it, `args` its options, `urls` its indexes."""

    name: str
    packages: list[Json]
    extra: dict[str, str | None]
    args: list[str]
    urls: list[str]


def check_recorded(packages: list[Json], stack: str) -> None:
    """Raise NodeError `hash-unrecorded` (exit 5) when the lock has no hash for any file of a package."""
    for package in packages:
        if all(file["sha256"] == UNRECORDED for file in package["files"]):
            reasons = [file.get("reason") or "" for file in package["files"]]
            raise NodeError(
                "hash-unrecorded",
                f"the lock lacks a hash of {package['name']} {package['version']}",
                why=next((reason for reason in reasons if reason), "the lock marks its files as unrecorded"),
                hint=f"`envbuild lock record {stack}` records it, on a machine that reaches its index",
            )


def check_required(
    environment: str, packages: list[Json], asked: list[str], base: set[str] | frozenset[str]
) -> dict[str, int]:
    """See that every locked package is `asked` for, or required by the base or by an installed package that is.

    The names are normal ones. Returns how many are `asked` and how many are `required`. Raises NodeError
    `package-not-required` (exit 5), which names the others: somebody wrote them into the lock.
    """
    edges = installed.requires(environment)
    locked = {installed.normal_name(package["name"]): package for package in packages}
    unwanted = installed.unwanted(locked, edges, set(asked) | (set(edges) - set(locked)), base)
    odd = [f"{name} {locked[name]['version']}" for name in unwanted]
    if odd:
        raise NodeError(
            "package-not-required",
            f"{odd[0]} is in the lock, and nothing requires it",
            why=f"neither the stack nor the metadata of an installed package names: {', '.join(odd)}",
            hint="list it under `packages` of the stack if you need it, then run `envbuild lock create STACK`",
        )
    count = len(set(locked) & set(asked))
    return {"asked": count, "required": len(locked) - count}


def is_sdist(package: Json) -> bool:
    """True when the lock names no wheel of the package."""
    return not any(file["file"].endswith(".whl") for file in package["files"])


def requirements(packages: list[Json]) -> str:
    """A requirements file: every package pinned, with the hash of every acceptable file.

    `===`, because `==1.0` would take 1.0+local where a find-links folder has it.
    """
    lines = []
    for package in packages:
        hashes = sorted({file["sha256"] for file in package["files"]} - {UNRECORDED})
        line = f"{package['name']}==={package['version']}"
        lines.append(" \\\n    ".join([line] + ["--hash=sha256:" + digest for digest in hashes]))
    return "\n".join(lines) + "\n"


def groups(packages: list[Json], artifacts: Json, config: pip_config.PipConfig) -> list[Group]:
    """Split packages by where they come from.

    A file that lies in a local find-links folder under its locked name is taken from there, without asking any index.
    The rest comes from the index that the lock names, where the request knows it, else from the configured ones.
    """
    links = _links(artifacts, config)
    folders = pip_config.folders(links)
    remote = [link for link in links if pip_config.local_path(link) is None]
    local_args = ["--no-index"] + [word for folder in folders for word in ("--find-links", folder)]
    if artifacts.get("offline"):
        return [Group("offline", packages, _no_index(), ["--offline"] + local_args, [])] if packages else []
    local_files = {name for folder in folders for name in names(folder)}
    split: dict[str, list[Json]] = {}
    indexes = artifacts.get("indexes") or {}
    for package in packages:
        local = any(file["file"] in local_files for file in package["files"])
        name = "local" if local else package.get("index", "pypi")
        split.setdefault(name if local or (name in indexes and name != "pypi") else "configured", []).append(package)
    return [
        Group(name, members, _no_index(), local_args, [])
        if name == "local"
        else _indexed(name, members, indexes.get(name), remote, config)
        for name, members in sorted(split.items())
    ]


def _links(artifacts: Json, config: pip_config.PipConfig) -> list[str]:
    return pip_config.alive(list(artifacts.get("find_links") or []) + config.find_links)


def _no_index() -> dict[str, str | None]:
    return dict.fromkeys(("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"))


def _indexed(
    name: str, packages: list[Json], index: dict[str, str] | None, links: list[str], config: pip_config.PipConfig
) -> Group:
    """Packages of the `index` that the lock names, or of the configured ones; `links` are looked at too."""
    extra: dict[str, str | None] = {}
    kind = (index or {}).get("kind")
    if index is not None and kind != "find-links":
        extra.update(_no_index(), UV_DEFAULT_INDEX=index["url"])
    else:
        if config.index_url and not any(os.environ.get(key) for key in ("UV_DEFAULT_INDEX", "UV_INDEX_URL")):
            extra["UV_DEFAULT_INDEX"] = config.index_url
        extras = pip_config.alive(config.extra_index_urls)
        if extras and not any(os.environ.get(key) for key in ("UV_INDEX", "UV_EXTRA_INDEX_URL")):
            extra["UV_EXTRA_INDEX_URL"] = " ".join(extras)
        links = [index["url"], *links] if index else links
    if links:
        extra["UV_FIND_LINKS"] = ",".join(links)
    if kind == "find-links":
        return Group(name, packages, extra, ["--no-index"], [])
    configured = config.index_url or os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL")
    url = index["url"] if index else configured
    return Group(name, packages, extra, [], [url] if url else [])


@dataclass(frozen=True)
class Installer:
    """uv at work on one environment: `artifacts` says where the files of locked packages are."""

    tool: uv.Uv
    environment: str
    artifacts: Json

    def install(self, packages: list[Json]) -> None:
        """Install every locked package into `environment`, wheels first, then source distributions without isolation.

        Raises NodeError: `hash-mismatch`, `artifact-damaged` (exit 5), `network-unreachable`,
        `disk-full` (75), `index-not-an-index`, `index-refused`, `package-not-found`, `install-failed`,
        `build-failed` (4).
        """
        wheels = [package for package in packages if not is_sdist(package)]
        self._install_wheels(wheels, [])
        self._build_archives([package for package in packages if is_sdist(package)])
        both = {name for owners in installed.shared(self.environment).values() for name in owners}
        again = [package for package in wheels if installed.normal_name(package["name"]) in both]
        if len(again) > 1:
            # uv installs in parallel: whose contents stay would differ from node to node. In order it is the last's.
            python = os.path.join(self.environment, "bin", "python")
            self.tool.run(["pip", "uninstall", "--python", python, *(package["name"] for package in again)])
            for package in again:
                self._install_wheels([package], [])

    def archived(self, packages: list[Json], doubtful: list[Json]) -> dict[str, str]:
        """What the archives of the lock hold of files that are not as RECORD says: path to sha256 (hex).

        A RECORD may be wrong (torch's wheels were renamed after theirs was written), an archive with the lock's sha256
        cannot: it is unpacked once more, past uv's cache. `doubtful`: mismatches of `installed.check`. Raises as
        `install`.
        """
        known = {}
        for package in packages:
            name = installed.normal_name(package["name"])
            rows = [row for row in doubtful if installed.normal_name(row["package"]) == name]
            changed = [row["path"] for row in rows if row["kind"] == "changed" and "/site-packages/" in row["path"]]
            if not changed or is_sdist(package):
                continue
            with tempfile.TemporaryDirectory(prefix="archive-", dir=self.tool.tmp) as folder:
                # Linked to a cache of this one call, which nobody else sees: no second copy.
                options = ["--no-cache", "--link-mode", "hardlink", "--target", folder]
                self._install_wheels([package], options)
                for path in changed:
                    file = os.path.join(folder, path.partition("/site-packages/")[2])
                    if os.path.isfile(file):
                        known[path] = hashing.digest_of(file)
        return known

    def _build_archives(self, archives: list[Json]) -> None:
        """Build what has no wheel, as sources are: without a network, and with the variables that a build may see.

        Build tools are packages of the lock themselves, so nothing unhashed takes part.
        """
        before, network = build_environ.no_network() if archives else ([], "")
        for number, package in enumerate(archives):
            options = ["--no-build-isolation", "--no-binary", package["name"]]
            what = f"{package['name']} {package['version']}"
            progress(f"building {what}", "", number, len(archives), "packages", at_work)
            for group in groups([package], self.artifacts, self.tool.config):
                with tempfile.TemporaryDirectory(prefix="archive-", dir=self.tool.tmp) as folder:
                    # A cache of its own: uv's knows the archive, and not the packages beside which its wheel was built.
                    extra = dict(group.extra, UV_CACHE_DIR=folder)
                    places = "" if group.name in HERE else self._fetch(group._replace(extra=extra), options)
                    alone = group._replace(extra=dict(extra, UV_OFFLINE="1", **_no_index()))
                    log(f"building {what} (network {network})")
                    done = self._run_uv(alone, options, variables.for_build, before, places)
                    if done.ok:
                        continue
                    error = self._failure(alone, done)
                    # There is nothing to reach: who tried was its own build.
                    if error.code not in ("install-failed", "network-unreachable"):
                        raise error
                    raise diagnose.of_output(f"package {what}", error.why)

    def _fetch(self, group: Group, options: list[str]) -> str:
        """Have uv fetch an archive into its cache, by its hash and with every login that uv knows; none of it is run.

        uv cannot fetch alone: it builds too. Here each Python that it would build with ends as it starts, and the build
        fails; the one that uv asks about itself (`-I`) reads no PYTHONPATH. Returns `_places`: uv's key to its cache.
        """
        with tempfile.TemporaryDirectory(prefix="stop-", dir=self.tool.tmp) as folder:
            with open(os.path.join(folder, "sitecustomize.py"), "w", encoding="utf-8") as stream:
                stream.write(_STOP)
            stopped = group._replace(extra=dict(group.extra, PYTHONPATH=folder))
            done = self._run_uv(stopped, options)
        if FETCHED not in done.err:
            raise self._failure(group, done)
        return self._places(group)

    def _places(self, group: Group) -> str:
        """Lines of a requirements file that say where uv looks: its own indexes, the group's, and lists of links."""
        args = ["pip", "compile", "--quiet", "--no-header", "--offline", "--emit-index-url", "--emit-find-links"]
        args += ["--python", os.path.join(self.environment, "bin", "python")] + group.args
        done = self.tool.run(args + [os.devnull], group.extra, may_see=variables.for_fetch)
        return "".join(line + "\n" for line in done.out.splitlines() if line.startswith("--"))

    def _install_wheels(self, packages: list[Json], options: list[str]) -> None:
        options = ["--no-build"] + options
        for folder in pip_config.folders(_links(self.artifacts, self.tool.config)):
            for name in _files(packages):
                uv.refuse_unsafe(os.path.join(folder, name))
        for group in groups(packages, self.artifacts, self.tool.config):
            log(f"installing {plural(len(group.packages), 'package')} ({group.name})")
            fetching = f"fetching {plural(len(group.packages), 'package')}, unpacked so far"
            progress(fetching, ask=partial(self._moved, group))
            try:
                self._install_group(group, options)
            except NodeError as error:
                self._try_mirror(group, options, error)

    def _try_mirror(self, group: Group, options: list[str], error: NodeError) -> None:
        """Ask the user's own indexes for packages whose named index cannot be had; hashes make any place as good.

        Raises `error`, or what a mirror with other contents gives (exit 5).
        """
        mirror = bool(self.tool.config.index_url or pip_config.alive(self.tool.config.extra_index_urls))
        mirror = mirror or any(os.environ.get(name) for name in _no_index())
        named = group.name in (self.artifacts.get("indexes") or {})
        if error.exit_code == Exit.INTEGRITY or error.code == "disk-full" or not (named and mirror):
            raise error
        log(f"the index `{group.name}` cannot be used ({error.code}); trying the configured ones")
        try:
            for other in groups(group.packages, dict(self.artifacts, indexes={}), self.tool.config):
                self._install_group(other, options)
        except NodeError as second:
            raise (second if second.exit_code == Exit.INTEGRITY else error) from second

    def _install_group(self, group: Group, options: list[str]) -> None:
        """Raises NodeError."""
        done = self._run_uv(group, options)
        if not done.ok:
            raise self._failure(group, done)

    def _run_uv(
        self,
        group: Group,
        options: list[str],
        may_see: Callable[[str, str], bool] = variables.for_fetch,
        before: Sequence[str] = (),
        places: str = "",
    ) -> proc.Finished:
        """Have uv install a group. Raises NodeError `uv-missing`, `wheel-unsafe`; `places`: see `_places`."""
        args = ["pip", "install", "--python", os.path.join(self.environment, "bin", "python"), "--no-deps"]
        args += ["--require-hashes", "--no-compile-bytecode", "--index-strategy", "unsafe-best-match"]
        with tempfile.TemporaryDirectory(prefix="listing-", dir=self.tool.tmp) as folder:
            listing = os.path.join(folder, "requirements.txt")
            with open(listing, "w", encoding="utf-8") as stream:
                stream.write(places + requirements(group.packages))
            words = args + options + group.args + ["-r", listing]
            done = self.tool.run(words, group.extra, may_see=may_see, before=before)
        self._refuse_skipped(group, done)
        return done

    def _failure(self, group: Group, done: proc.Finished) -> NodeError:
        """Why uv could not install a group."""
        diagnose.write_down(f"packages from `{group.name}`", done.out + done.err)
        error = uv.failure(done, f"installing packages from `{group.name}`", self.environment)
        if error.code in ("package-not-found", "install-failed"):
            _check_index(group, error)
        return error

    def _moved(self, group: Group) -> Json:
        """For `progress`: what uv has fetched and unpacked, then how many of the packages are in the environment."""
        folders = map(os.path.basename, installed.dist_infos(self.environment))
        present = {installed.normal_name(name.split("-")[0]) for name in folders}
        count = sum(installed.normal_name(package["name"]) in present for package in group.packages)
        if count:
            return {"phase": "installing packages", "done": count, "total": len(group.packages), "unit": "packages"}
        total = sum(max(map(_unpacked, package["files"])) for package in group.packages)
        done = written(self.tool.program)
        return {"done": min(done, total) if total else done, "total": total or None, "unit": "bytes"}

    def _refuse_skipped(self, group: Group, done: proc.Finished) -> None:
        """Raise `wheel-unsafe` where uv left out a member of what it fetched and unpacked itself: no file shows it."""
        member = uv.skipped(done)
        if member:
            if self.tool.keeps_cache:  # a copy that is unpacked there is taken again silently
                forget_cached(self.tool, [package["name"] for package in group.packages])
            files = _files(group.packages)
            one = files[0] if len(files) == 1 else f"one of {plural(len(files), 'file')} from `{group.name}`"
            raise uv.unsafe(one, member, "which leads out of its folder")


def _unpacked(file: Json) -> int:
    """Bytes that one file takes unpacked, by what the lock says or by its size; 0 where neither is known."""
    unpacked = file.get("unpacked") or {}
    return int(unpacked.get("bytes") or (file.get("size") or 0) * BYTES_PER_FETCHED)


def _files(packages: list[Json]) -> list[str]:
    return [file["file"] for package in packages for file in package["files"]]


def _check_index(group: Group, error: NodeError) -> None:
    """Raise `index-not-an-index` when the index answers with a page that is no package list, a login form say.

    uv reads such a page as an empty list and says only that there is no such version.
    """
    import http.client
    import urllib.request

    for url in group.urls:
        if not url.startswith(("http://", "https://")):
            continue
        index, name = pip_config.without_credentials(url).rstrip("/"), group.packages[0]["name"]
        page = f"{index}/{installed.normal_name(name)}/"
        try:
            with urllib.request.urlopen(page, timeout=10) as answer:  # noqa: S310 - the scheme was checked
                kind = answer.headers.get("Content-Type", "")
                body = answer.read(65536).decode("utf-8", "replace").lower()
        except (OSError, ValueError, http.client.HTTPException):
            continue
        if ("html" in kind and "<a " not in body) or "<form" in body:
            raise NodeError(
                "index-not-an-index",
                "the package index answers with a web page, not with packages",
                why=f"{page} has no package links{', it has a form' if '<form' in body else ''}",
                hint="log in to the network's portal, or check the proxy and the index in pip's or uv's configuration",
            ) from error


def forget_cached(tool: uv.Uv, packages: list[str]) -> bool:
    """Remove packages from uv's cache, so that a damaged copy is not used again; True when uv did it."""
    return tool.run(["cache", "clean", "--"] + packages, timeout=60.0).ok if packages else False
