"""What archives would put where, decided before one of them is unpacked: nothing outside, nothing twice.

In: what `rattle` read in them. Out: a plan of paths, or the refusal that names the package.
"""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass, field

from envbuild.node.conda import meta
from envbuild.node.protocol import Json, NodeError

_OURS = ("conda-meta", ".envbuild", "__clobbers__")
_ENTRY = re.compile(r"\A\s*([A-Za-z0-9][A-Za-z0-9._+-]*)\s*=\s*[A-Za-z0-9_.]+\s*:\s*[A-Za-z0-9_.]+\s*\Z")
_SCRIPT = re.compile(r"\Abin/\.(.+)-(post|pre)-link\.sh\Z")


@dataclass
class Layout:
    """What an installation will hold: `owners` (path -> label of its package) and link `scripts` (package -> path).

    `shared` are paths that several packages hold with equal contents.
    """

    owners: dict[str, str] = field(default_factory=dict)
    shared: list[str] = field(default_factory=list)
    scripts: dict[str, str] = field(default_factory=dict)
    _sha256: dict[str, str] = field(default_factory=dict)

    def add(self, label: str, path: str, sha256: str) -> None:
        """One file or link; raises NodeError `conda-clobber` (exit 7) where another package has it otherwise."""
        other = self.owners.get(path)
        if other is not None and other != label:
            if not sha256 or sha256 != self._sha256[path]:
                raise _clobber(path, other, label)
            self.shared.append(path)
            return
        self.owners[path], self._sha256[path] = label, sha256

    def check_folders(self) -> None:
        """Raise `conda-clobber` where what is a file of one package is a folder of another."""
        for path, label in self.owners.items():
            above = posixpath.dirname(path)
            while above:
                if above in self.owners:
                    raise _clobber(above, self.owners[above], label)
                above = posixpath.dirname(above)

    def check_case(self) -> None:
        """Raise `conda-clobber` where two names differ in case alone; for file systems that do not tell them apart."""
        seen: dict[str, str] = {}
        for path in sorted(self.owners):
            other = seen.setdefault(path.lower(), path)
            if other != path:
                raise _clobber(path, self.owners[other], self.owners[path], f"here {other} is the same file")


def _clobber(path: str, one: str, other: str, why: str = "their contents differ") -> NodeError:
    return NodeError(
        "conda-clobber",
        f"{path} belongs to {one} and to {other}",
        why=why,
        hint="remove one of the packages, or lock versions that do not share the file",
    )


def unsafe(package: Json, member: str, why: str) -> NodeError:
    """The error `conda-package-unsafe` (exit 5) about a member of an archive."""
    return NodeError(
        "conda-package-unsafe",
        f"{package['file']} holds {member[:200]!r}, {why}",
        hint="do not use this file or its channel or mirror: the file looks like an attack",
    )


def plan(packages: list[Json], contents: Json, python: str, environment: str) -> Layout:
    """Check every archive of `packages`; `contents`: name of the package -> what was read in it. `python`: `3.11`.

    Raises NodeError: `artifact-damaged`, `record-mismatch`, `conda-package-unsafe` (exit 5), `conda-clobber`,
    `conda-prefix-too-long` (7).
    """
    layout = Layout()
    for package in packages:
        content = contents[package["name"]]
        _check_whole(package, content)
        _check_identity(package, content.get("index") or {})
        noarch = (content.get("link") or {}).get("noarch") or {}
        site = f"lib/python{python}/site-packages" if noarch.get("type") == "python" else ""
        _check_members(package, content["members"], site)
        _add_paths(layout, package, content, site, environment)
        for line in noarch.get("entry_points") or []:
            entry = _ENTRY.match(str(line))
            if entry is None:
                raise unsafe(package, str(line), "which is no entry point")
            layout.add(meta.label(package), "bin/" + entry.group(1), "")
    layout.check_folders()
    return layout


def _check_whole(package: Json, content: Json) -> None:
    error = content.get("error")
    if error and "archive path" in error:
        raise unsafe(package, error.partition(": ")[2], "which is not a relative path inside")
    if error or not isinstance(content.get("index"), dict):
        raise NodeError(
            "artifact-damaged",
            f"invalid conda package {package['file']}",
            why=(error or "it has no info/index.json")[:300],
            hint="fetch it again",
        )


def _check_identity(package: Json, index: Json) -> None:
    for key in ("name", "version", "build", "subdir"):
        if str(index.get(key) or package[key]) != package[key]:
            raise NodeError(
                "record-mismatch",
                f"{package['file']} says that its {key} is {str(index[key])[:100]}",
                why=f"the lock asks for {meta.label(package)} of {package['subdir']}",
                hint="use another channel or mirror",
            )


def _relative(package: Json, path: str) -> str:
    if not path or path.startswith("/") or "\0" in path or "\\" in path or ".." in path.split("/"):
        raise unsafe(package, path, "which is not a relative path inside")
    return path


def _installed(path: str, site: str) -> str:
    """Where a path of an archive goes; `site` is where noarch packages have their modules."""
    if site and path.startswith("site-packages/"):
        return site + path[len("site-packages") :]
    if site and path.startswith("python-scripts/"):
        return "bin" + path[len("python-scripts") :]
    return path


def _check_members(package: Json, members: list[list[str]], site: str) -> None:
    names: set[str] = set()
    for name, kind, target in members:
        _relative(package, name)
        if kind == "other":
            raise unsafe(package, name, "which is a device, a pipe or a socket")
        if kind != "folder" and name in names:
            raise unsafe(package, name, "and holds it twice")
        if kind == "link":
            place = posixpath.dirname(_installed(name, site))
            leads = posixpath.normpath(posixpath.join(place, target))
            if target.startswith("/") or leads.split("/")[0] == "..":
                raise unsafe(package, name, f"a link that leads out of the prefix ({target[:200]})")
        if kind == "hardlink" and posixpath.normpath(target) not in names:
            raise unsafe(package, name, f"a link to what it does not hold ({target[:200]})")
        names.add(name)


def _add_paths(layout: Layout, package: Json, content: Json, site: str, environment: str) -> None:
    members = {name for name, kind, _ in content["members"] if kind != "folder"}
    rows = (content.get("paths") or {}).get("paths")
    if rows is None:  # packages of before 2017
        rows = [{"_path": line} for line in content.get("files", "").splitlines() if line]
    room = len(os.fsencode(environment))
    for row in rows:
        path = _relative(package, str(row["_path"]))
        if row.get("path_type") == "directory" or path.endswith(".pyc"):
            continue
        if path.split("/")[0] in _OURS:
            raise unsafe(package, path, "which is not for packages to write")
        if path not in members:
            raise unsafe(package, path, "which it lists and does not have")
        if row.get("file_mode") == "binary" and len(str(row.get("prefix_placeholder"))) < room:
            most = len(str(row["prefix_placeholder"]))
            raise NodeError(
                "conda-prefix-too-long",
                f"the path of the environment is too long for {meta.label(package)}",
                why=f"{environment} has {room} bytes, its files have room for {most}",
                hint="choose a shorter prefix (--prefix)",
            )
        place = _installed(path, site)
        layout.add(meta.label(package), place, str(row.get("sha256") or ""))
        script = _SCRIPT.match(place)
        if script is not None:
            layout.scripts[package["name"]] = place
