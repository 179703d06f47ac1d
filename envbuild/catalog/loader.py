"""Loads stacks and targets: shipped ones by name, a user's own by path."""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from envbuild import resources
from envbuild.catalog.validation import show_value, validated
from envbuild.catalog.yaml_load import YamlDocument, parse_yaml, read_yaml
from envbuild.errors import EnvbuildError
from envbuild.model.lock import canonical_json
from envbuild.model.stack import Profile, Stack
from envbuild.model.target import HostSource, Target
from envbuild.node.redact import learn
from envbuild.regular_file import read_manifest, refuse
from envbuild.text import did_you_mean, nearest

MAX_EXTENDS = 8
PLACEHOLDER_HOST = "<your-hosts>"
_PLACEHOLDER = re.compile(r"<your-[a-z-]+>")


class LoadedStack(NamedTuple):
    """A stack with where it came from: `ref` as it was asked for, the file, and whether it is one of the shipped."""

    ref: str
    stack: Stack
    path: Path
    shipped: bool


class LoadedTarget(NamedTuple):
    """A target with where it came from; `files` are its file and those it extends, the most specific first."""

    ref: str
    target: Target
    path: Path
    shipped: bool
    documents: tuple[YamlDocument, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of `documents`."""
        return tuple(Path(document.name) for document in self.documents)

    @property
    def lender(self) -> str:
        """The shipped target that its stack comes from; empty where a file of the user's names a stack."""
        for path, document in zip(self.files, self.documents, strict=True):
            if path.parent == resources.catalog() / "targets":
                return path.stem
            if "stack" in document.data:
                break
        return ""


def list_stacks() -> tuple[str, ...]:
    """Names of the shipped stacks."""
    return _names("stacks")


def list_targets() -> tuple[str, ...]:
    """Names of the shipped targets."""
    return _names("targets")


def is_path(ref: str) -> bool:
    """Whether a reference means a file (`./my.yaml`) and not a shipped name."""
    return "/" in ref or ref.endswith((".yaml", ".yml"))


def load_stack(ref: str) -> LoadedStack:
    """A stack by shipped name or by path; an `environment.yml` of conda stands for one.

    Raises EnvbuildError, exit 2: `stack-unknown`, `environment-yml`, `manifest-*`.
    """
    path = _find(ref, "stack")
    return LoadedStack(ref, _parsed(read_manifest(path), path), path, shipped=not is_path(ref))


@lru_cache(maxsize=8)
def _parsed(content: bytes, path: Path) -> Stack:
    """A stack, whose secrets are learned. Once a text: one command asks several times."""
    document = parse_yaml(content, str(path))
    _need_kind(document, "stack")
    data = document.data
    if isinstance(data, dict) and "dependencies" in data and "profiles" not in data:
        from envbuild.catalog.environment_yml import as_stack  # most stacks are no environment.yml

        data = as_stack(document, path)
    stack = validated(Stack, data, document)
    learn(data)
    return stack


def load_target(ref: str, overrides: Mapping[str, Any] | None = None, *, template: bool = False) -> LoadedTarget:
    """A target by shipped name or by path, its `extends:` resolved and `overrides` (plain data) merged on top.

    Mappings merge deeply, lists and single values replace, null takes an inherited value away. The path of a `stack`
    is relative to the target's file. `template`: also accept a target that is there only to be extended.
    Raises EnvbuildError, exit 2: `target-unknown`, `target-extends`, `target-template`, `manifest-*`.
    """
    path = _find(ref, "target")
    documents = _chain(path)
    data: dict[str, Any] = {}
    for document in reversed(documents):
        before, data = data.get("stack"), _merged(data, document.data)
        # A path is relative to its file: the same one is another stack in another folder.
        other = "stack" in document.data and (data.get("stack") != before or is_path(str(before)))
        if other and "profile" not in document.data:
            data.pop("profile", None)
        if isinstance(document.data.get("hosts"), Mapping):
            # Who names the hosts is one choice: a partition does not add to another target's node file.
            data["hosts"] = dict(document.data["hosts"])
    own = documents[0].data
    # A target is not its parent: what names it is never inherited.
    for key in ("name", "summary", "extends"):
        data.pop(key, None)
        if key in own:
            data[key] = own[key]
    learn(data)
    try:
        target = validated(Target, _merged(data, overrides or {}), *documents)
    except EnvbuildError:
        # What the files alone do not have is a mistake of the options, and is not looked for in a file.
        validated(Target, data, *documents)
        target = validated(Target, _merged(data, overrides or {}))
    if target.stack is not None and is_path(target.stack):
        target = target.model_copy(update={"stack": str(path.parent / Path(target.stack).expanduser())})
    loaded = LoadedTarget(ref, target, path, shipped=not is_path(ref), documents=tuple(documents))
    if not template:
        refuse_template(loaded)
    return loaded


def is_template(target: Target) -> bool:
    """Whether a target is there only to be extended."""
    return bool(placeholders(target))


def placeholders(target: Target) -> list[tuple[tuple[str, ...], str]]:
    """The fields (as paths) that still hold a placeholder such as `<your-hosts>`, each with its placeholder."""
    hosts = target.hosts
    texts: list[tuple[tuple[str, ...], str | None]] = [(("hosts",), host) for host in hosts if isinstance(host, str)]
    if isinstance(hosts, HostSource):
        texts = [(("hosts",), value) for value in hosts.given.values()]
    scheduler = target.scheduler
    texts += [(("scheduler", "queue"), scheduler.queue), (("scheduler", "account"), scheduler.account)]
    return [(path, text) for path, text in texts if text and _PLACEHOLDER.fullmatch(text)]


def pick_profile(loaded: LoadedStack, profile: str | None) -> str:
    """The profile asked for, or the default one. Raises EnvbuildError `profile-unknown`, exit 2."""
    name = profile or loaded.stack.default_profile
    if name not in loaded.stack.profiles:
        raise EnvbuildError(
            "profile-unknown",
            f"the stack {loaded.stack.name} has no profile {show_value(name)}",
            why=f"{loaded.path} has {', '.join(loaded.stack.profiles)}",
            hint=did_you_mean(name, loaded.stack.profiles),
        )
    return name


def lock_path(loaded: LoadedStack, profile: str) -> Path:
    """Where the lock of a stack and profile lies, whether it exists or not; of a shipped one the user's copy first."""
    if loaded.shipped:
        shipped, users = shipped_lock(loaded, profile)
        return users if users.is_file() else shipped
    named = loaded.path.with_name(f"{loaded.path.stem}.{profile}.lock.toml")
    if profile == loaded.stack.default_profile and not named.is_file():
        return loaded.path.with_name(f"{loaded.path.stem}.lock.toml")
    return named


def shipped_lock(loaded: LoadedStack, profile: str) -> tuple[Path, Path]:
    """The lock of a shipped stack, and where this user's copy of it lies, whether they exist or not."""
    name = f"{loaded.stack.name}.{profile}.lock.toml"
    return resources.lockfiles() / name, resources.user_locks() / name


def lock_command(loaded: LoadedStack, profile: str) -> str:
    """The command that makes the lock of a stack and profile."""
    more = "" if profile == loaded.stack.default_profile else f" --profile {profile}"
    return f"`envbuild lock create {loaded.ref}{more}`"


def manifest_text(stack: Stack, profile: str) -> bytes:
    """Canonical JSON of the stack's name and one profile: what a lock was made from.

    What equals its default counts as not said, so that a lock outlives a new optional field.
    """
    contents: Profile = stack.profiles[profile]
    plain = contents.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return canonical_json({"name": stack.name, "profile": profile, "contents": plain})


def manifest_digest(stack: Stack, profile: str) -> str:
    """sha256 (hex) over `manifest_text`."""
    return hashlib.sha256(manifest_text(stack, profile)).hexdigest()


def _names(folder: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (resources.catalog() / folder).glob("*.yaml")))


def _find(ref: str, noun: str, base: Path = Path()) -> Path:
    """The file that a reference means; relative paths are relative to `base`."""
    if is_path(ref):
        path = base / _expanded(ref)
        if not _is_there(path):
            begin = "`envbuild init FILE` writes one" if noun == "target" else "`envbuild init --from DIR` drafts one"
            known = f"{begin}; a shipped {noun} is named without a path: {', '.join(_names(noun + 's'))}"
            named = f"did you mean `{path.stem}`?" if path.stem in _names(f"{noun}s") else ""
            raise EnvbuildError(
                f"{noun}-unknown",
                f"there is no {noun} file {show_value(ref)}",
                why=f"{path} does not exist",
                hint=named or file_meant(ref, path, "yaml", "yml") or known,
            )
        return path
    names = _names(f"{noun}s")
    if ref not in names:
        beside = f"./{ref}.yaml"
        hint = f"did you mean {beside}?" if _is_there(Path(beside)) else did_you_mean(ref, names)
        if ref and _is_there(base / ref):
            raise EnvbuildError(
                f"{noun}-unknown",
                f"{show_value(ref)} is no {noun} file",
                why=f"it is there, and a {noun} file ends in .yaml",
                hint=hint,
            )
        raise EnvbuildError(
            f"{noun}-unknown",
            f"there is no {noun} named {show_value(ref)}",
            why=f"neither shipped nor a path (a path has a '/' or ends in .yaml): {show_value(ref)}",
            hint=hint,
        )
    return resources.catalog() / f"{noun}s" / f"{ref}.yaml"


def file_meant(ref: str, path: Path, *ends: str) -> str:
    """A hint: the file beside `path`, which is not there and was named as `ref`, that resembles it; empty for none."""
    by_stem = {file.stem: file.name for end in ends for file in path.parent.glob(f"*.{end}")}
    near = nearest(path.stem, by_stem)
    return f"did you mean `{ref.removesuffix(path.name)}{by_stem[near]}`?" if near else ""


def _expanded(ref: str) -> Path:
    try:
        return Path(ref).expanduser()
    except RuntimeError:
        # `~name` of nobody is a file name like any other.
        return Path(ref)


def _is_there(path: Path) -> bool:
    """True also for what cannot be looked at: reading it says why."""
    try:
        return path.exists() or path.is_symlink()
    except OSError as error:
        return error.errno != errno.ENAMETOOLONG


def _need_kind(document: YamlDocument, noun: str) -> None:
    if not isinstance(document.data, dict):
        problem = "the file is empty" if document.data is None else "is not a mapping of keys"
        draft = "; `envbuild init STACK.yaml --from FOLDER` drafts one" if noun == "stack" else ""
        raise refuse("manifest-invalid", document.name, 1, 1, problem, f"a {noun} begins with `name:`{draft}")
    other = "stack" if "profiles" in document.data else "target" if {"extends", "hosts"} & set(document.data) else noun
    if other != noun:
        way = {"target": f"--target {document.name}", "stack": document.name}
        hint = f"commands take it as `{way[other]}`; `envbuild {other} check {document.name}` looks for mistakes"
        raise refuse("manifest-invalid", document.name, 1, 1, f"is a {other} file, not a {noun} file", hint)


def _chain(path: Path) -> list[YamlDocument]:
    """The document of a target and of those it extends, the most specific first."""
    documents: list[YamlDocument] = []
    seen: set[Path] = set()
    while True:
        real = path.resolve()
        if real in seen or len(documents) >= MAX_EXTENDS:
            problem = "extends itself" if real in seen else f"extends more than {MAX_EXTENDS} targets in a row"
            raise _extends_error(documents[-1], problem)
        seen.add(real)
        document = read_yaml(path)
        _need_kind(document, "target")
        documents.append(document)
        parent = document.data.get("extends")
        if parent is None:
            return documents
        if not isinstance(parent, str):
            raise _extends_error(document, "`extends` must be the name or the path of one target")
        try:
            path = _find(parent, "target", path.parent)
        except EnvbuildError as error:
            near = error.hint.startswith("did you mean")
            hint = error.hint if near else "a file is named with its path: `extends: ./FILE.yaml`; " + error.hint
            raise _extends_error(document, f"extends an unknown target: {show_value(parent)}", hint) from None


def _extends_error(document: YamlDocument, problem: str, hint: str = "") -> EnvbuildError:
    line, column = document.locate(("extends",))
    return refuse("target-extends", document.name, line, column, problem, hint)


def refuse_template(loaded: LoadedTarget, *, contacted: bool = True) -> None:
    """Raises EnvbuildError `target-template` (exit 2): a template such as `ssh` leaves `hosts` to be said.

    Where no node is `contacted`, a shipped template is accepted: it stands for its machine in a plan or explanation.
    """
    target, documents = loaded.target, loaded.documents
    matches = placeholders(target)
    if not matches or (loaded.shipped and not contacted):
        return
    line, column = next((documents[0].locate(path) for path, _ in matches if documents[0].holds(path)), (1, 1))
    hosts = "[...]" if (("hosts",), PLACEHOLDER_HOST) in matches else f"{{{target.scheduler.kind}: PARTITION}}"
    wanted = " and ".join(
        f"`hosts: {hosts}`" if path == ("hosts",) else f"your own `{'.'.join(path)}`" for path, _ in matches
    )
    held = ", ".join(f"`{'.'.join(path)}: {placeholder}`" for path, placeholder in matches)
    own = f"`envbuild init my-{target.name}.yaml --extends {target.name}` writes a target of your own, with {wanted}"
    raise refuse(
        "target-template",
        documents[0].name,
        line,
        column,
        f"still holds placeholders: {held}",
        own if loaded.shipped else f"add {wanted} to {loaded.ref}",
    )


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`: mappings deeply, lists and single values replace, null removes."""
    out = dict(base)
    for key, value in over.items():
        if value is None and key in out:
            del out[key]
        elif isinstance(value, Mapping) and isinstance(out.get(key), Mapping):
            out[key] = _merged(out[key], value)
        else:
            out[key] = dict(value) if isinstance(value, Mapping) else value
    return out
