"""Differences between two locks, for people and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from envbuild.model.lock import Lock, LockedSource, Variant
from envbuild.text import grouped

_FIELDS = ("engine", "platform", "python", "torch", "flavour")
_CONDA = {"provides", "link_scripts", "unrecorded"}


@dataclass(frozen=True)
class Change:
    """One difference. `before` is None for an addition, `after` for a removal."""

    variant: str
    what: str
    name: str
    before: str | None
    after: str | None

    def line(self) -> str:
        """For people: `+ package six 1.17.0`, `~ package numpy 2.0.1 -> 2.0.2`."""
        if self.before is None:
            return f"+ {self.what} {self.name} {self.after}".rstrip()
        if self.after is None:
            return f"- {self.what} {self.name} {self.before}".rstrip()
        return f"~ {self.what} {self.name} {self.before} -> {self.after}"


@dataclass(frozen=True)
class LockDiff:
    """All differences, in the order of the variants."""

    changes: tuple[Change, ...]

    def text(self) -> str:
        """Lines for people, grouped by variant; variants with the same changes share one group."""
        changed = grouped(self.changes, lambda change: change.variant)
        texts = {variant: tuple(change.line() for change in changes) for variant, changes in changed.items()}
        blocks = [
            "\n".join([f"{', '.join(names)}:", *(f"  {line}" for line in lines)])
            for lines, names in grouped(texts, lambda variant: texts[variant]).items()
        ]
        return "\n".join(blocks) if blocks else "the same contents"

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"same": not self.changes, "changes": [asdict(change) for change in self.changes]}


def diff_locks(a: Lock, b: Lock) -> LockDiff:
    """Differences in contents from `a` to `b`; what does not change an environment (witnesses, sizes) is left out."""
    changes = [
        Change("lock", "field", field, str(before), str(after))
        for field in ("stack", "profile", "as_of")
        if (before := getattr(a, field)) != (after := getattr(b, field))
    ]
    old, new = ({variant.id: variant for variant in lock.variants} for lock in (a, b))
    pairs = {name: name for name in old if name in new}
    if a.profile != b.profile:
        # The variants of another profile have other names: each is compared with the first of its kind.
        for name in old:
            alike = [other for other in new if other not in pairs.values() and _kind(new[other]) == _kind(old[name])]
            if name not in pairs and alike:
                pairs[name] = alike[0]
    for name in [*old, *(name for name in new if name not in pairs.values())]:
        if name in pairs:
            changes += _variant(old[name], new[pairs[name]])
        elif name in old:
            changes.append(Change(name, "variant", name, old[name].digest[:12], None))
        else:
            changes.append(Change(name, "variant", name, None, new[name].digest[:12]))
    return LockDiff(tuple(changes))


def _kind(variant: Variant) -> tuple[str, ...]:
    return variant.engine, variant.platform, variant.base.kind, variant.interpreter.kind


def _variant(a: Variant, b: Variant) -> list[Change]:
    views: tuple[tuple[str, Callable[[Variant, Variant], Mapping[str, str]]], ...] = (
        ("field", _fields), ("package", _packages), ("conda package", _archives),
        ("base package", lambda own, _: own.provided),
        ("source", lambda own, _: {source.name: source.commit for source in own.sources}),
        ("working tree", lambda own, _: {tree.name: tree.install for tree in own.trees}),
        ("variable", _variables), ("smoke item", _smoke),
    )  # fmt: skip
    changes = []
    name = a.id if a.id == b.id else f"{a.id} -> {b.id}"
    for what, view in views:
        changes += _maps(name, what, view(a, b), view(b, a))
        if what == "source":
            old, new = ({source.name: source for source in variant.sources} for variant in (a, b))
            for key in sorted(old.keys() & new.keys()):
                changes += _maps(name, f"source {key}", _source_fields(old[key]), _source_fields(new[key]))
    return changes


def _fields(variant: Variant, _: Variant) -> dict[str, str]:
    return {field: str(getattr(variant, field)) for field in _FIELDS} | {
        "base": _flat(variant.base.to_json_dict()),
        "interpreter": _flat(variant.interpreter.to_json_dict()),
        "imports": " ".join(variant.imports),
        "smoke": " ".join(item.name for item in variant.smoke),
        "training": _flat(variant.training.to_json_dict()) if variant.training else "",
        "conda": _flat(variant.conda.model_dump(include=_CONDA, exclude_none=True)) if variant.conda else "",
    }


def _flat(data: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={_words(value)}" for key, value in data.items() if value not in ([], {}))


def _words(value: object) -> str:
    """A JSON value as people write it: lists and maps without brackets and quotes."""
    if isinstance(value, Mapping):
        return f"({_flat(value)})"
    return ",".join(map(_words, value)) if isinstance(value, (list, tuple)) else str(value)


def _variables(variant: Variant, _: Variant) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else f"{value.path} (if it exists)"
        for name, value in variant.environment.items()
    }


def _smoke(variant: Variant, _: Variant) -> dict[str, str]:
    return {item.name: _flat(item.model_dump(exclude_none=True, exclude={"name"})) for item in variant.smoke}


def _packages(own: Variant, other: Variant) -> dict[str, str]:
    """Name to version; where only the files or the index differ, what differs is said behind the version."""
    same = {(package.name, package.version) for package in other.packages}
    rows = {}
    for package in own.packages:
        files = " ".join(f"{item.file} sha256 {item.sha256[:12]}" for item in package.files)
        place = f" ({package.index}: {files})" if (package.name, package.version) in same else ""
        rows[package.name] = f"{package.version}{place}"
    return rows


def _archives(own: Variant, other: Variant) -> dict[str, str]:
    """The same for conda; of one version, the build and where it is from are said."""
    same = {(archive.name, archive.version) for archive in other.archives}
    rows = {}
    for archive in own.archives:
        place = f" {archive.build} ({archive.channel}/{archive.subdir}: {archive.file} sha256 {archive.sha256[:12]})"
        rows[archive.name] = f"{archive.version}{place if (archive.name, archive.version) in same else ''}"
    return rows


def _source_fields(source: LockedSource) -> dict[str, str]:
    data = source.to_json_dict()
    plain = [key for key in data if key not in ("name", "commit", "submodules", "build", "patches", "patch_pins")]
    out = {key: _words(data[key]) for key in plain}
    out["build"] = _flat(source.build.to_json_dict()) if source.build else "none"
    out |= {f"patch {patch}": "not pinned" for patch in source.patches}
    for pin in source.patch_pins:
        hits = f"{pin.least}" if pin.least == pin.most else f"{pin.least} to {pin.most}"
        out[f"patch {pin.name}"] = f"digest {pin.digest[:12]}, {hits} {'hit' if hits == '1' else 'hits'}"
    return out | {f"submodule {sub.path}": f"{sub.git} {sub.commit} tree {sub.tree}" for sub in source.submodules}


def _maps(variant: str, what: str, a: Mapping[str, str], b: Mapping[str, str]) -> list[Change]:
    return [
        Change(variant, what, key, a.get(key), b.get(key))
        for key in sorted(a.keys() | b.keys())
        if a.get(key) != b.get(key)
    ]
