"""What changed between two locks, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from envbuild.model.lock import Lock, LockedPackage, LockedPatch, LockedSource, Variant
from envbuild.text import grouped

_FIELDS = ("engine", "platform", "python", "torch", "flavour")
_CONDA = {"provides", "link_scripts", "unrecorded"}


@dataclass(frozen=True)
class Change:
    """One difference. `before` is None for what was added, `after` for what was removed."""

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
        said = {variant: tuple(change.line() for change in changes) for variant, changes in changed.items()}
        blocks = [
            "\n".join([f"{', '.join(names)}:", *(f"  {line}" for line in lines)])
            for lines, names in grouped(said, lambda variant: said[variant]).items()
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
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new:
            changes.append(Change(name, "variant", name, old[name].digest[:12], None))
        elif name not in old:
            changes.append(Change(name, "variant", name, None, new[name].digest[:12]))
        else:
            changes += _variant(old[name], new[name])
    return LockDiff(tuple(changes))


def _variant(a: Variant, b: Variant) -> list[Change]:
    name = a.id
    return [
        *_maps(name, "field", _fields(a), _fields(b)),
        *_maps(name, "package", _packages(a.packages, b.packages), _packages(b.packages, a.packages)),
        *_maps(name, "conda package", _archives(a, b), _archives(b, a)),
        *_maps(name, "base package", a.provided, b.provided),
        *_sources(name, a.sources, b.sources),
        *_maps(name, "working tree", _trees(a), _trees(b)),
        *_maps(name, "variable", _variables(a), _variables(b)),
        *_maps(name, "smoke item", _smoke(a), _smoke(b)),
    ]


def _fields(variant: Variant) -> dict[str, str]:
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


def _pin(pin: LockedPatch) -> str:
    hits = f"{pin.least}" if pin.least == pin.most else f"{pin.least} to {pin.most}"
    return f"digest {pin.digest[:12]}, {hits} {'hit' if hits == '1' else 'hits'}"


def _variables(variant: Variant) -> dict[str, str]:
    return {
        key: value if isinstance(value, str) else f"{value.path} (if it exists)"
        for key, value in variant.environment.items()
    }


def _smoke(variant: Variant) -> dict[str, str]:
    items = (item.to_json_dict() for item in variant.smoke)
    return {str(item.pop("name")): _flat(item) for item in items}


def _packages(own: tuple[LockedPackage, ...], other: tuple[LockedPackage, ...]) -> dict[str, str]:
    """Name to version; where only the files or the index differ, what differs is said behind the version."""
    others = {package.name: package for package in other}
    out = {}
    for package in own:
        twin = others.get(package.name)
        same_version = twin is not None and twin.version == package.version
        files = " ".join(f"{item.file} sha256 {item.sha256[:12]}" for item in package.files)
        out[package.name] = f"{package.version} ({package.index}: {files})" if same_version else package.version
    return out


def _archives(own: Variant, other: Variant) -> dict[str, str]:
    """The same for conda; of one version, the build and where it is from are said."""
    others = {each.name: each for each in other.archives}
    out = {}
    for each in own.archives:
        twin = others.get(each.name)
        place = f"{each.build} ({each.channel}/{each.subdir}: {each.file} sha256 {each.sha256[:12]})"
        out[each.name] = f"{each.version} {place}" if twin and twin.version == each.version else each.version
    return out


def _sources(name: str, a: tuple[LockedSource, ...], b: tuple[LockedSource, ...]) -> list[Change]:
    old, new = ({source.name: source for source in sources} for sources in (a, b))
    changes = _maps(
        name,
        "source",
        {key: source.commit for key, source in old.items()},
        {key: source.commit for key, source in new.items()},
    )
    for key in sorted(old.keys() & new.keys()):
        before, after = (_source_fields(source[key]) for source in (old, new))
        changes += _maps(name, f"source {key}", before, after)
    return changes


def _trees(variant: Variant) -> dict[str, str]:
    return {tree.name: tree.install for tree in variant.trees}


def _source_fields(source: LockedSource) -> dict[str, str]:
    data = source.to_json_dict()
    plain = [key for key in data if key not in ("name", "commit", "submodules", "build", "patches", "patch_pins")]
    out = {key: _words(data[key]) for key in plain}
    out["build"] = _flat(source.build.to_json_dict()) if source.build else "none"
    pins = {pin.name: pin for pin in source.patch_pins}
    for patch in dict.fromkeys([*source.patches, *pins]):
        out[f"patch {patch}"] = _pin(pins[patch]) if patch in pins else "not pinned"
    return out | {f"submodule {sub.path}": f"{sub.git} {sub.commit} tree {sub.tree}" for sub in source.submodules}


def _maps(variant: str, what: str, a: Mapping[str, str], b: Mapping[str, str]) -> list[Change]:
    return [
        Change(variant, what, key, a.get(key), b.get(key))
        for key in sorted(a.keys() | b.keys())
        if a.get(key) != b.get(key)
    ]
