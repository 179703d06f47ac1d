"""Configuration: flags > `ENVBUILD_*` > project file > user file > system file > default, each value with its origin.

Files are TOML with the keys of `KEYS` at the top level. The project file is `envbuild.toml` in the working directory or
above it, up to the root of the git checkout; the user file `config.toml` in the user's configuration directory (XDG);
the system file `/etc/envbuild/config.toml`. Relative paths in a file are relative to that file. The default stack is
that of the working directory, if it has one with a lock.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from envbuild.errors import EnvbuildError
from envbuild.node import trust
from envbuild.node.read_text import names
from envbuild.regular_file import parse_toml, read_manifest
from envbuild.text import did_you_mean, seconds_of, unsafe

PROJECT_FILE = "envbuild.toml"
SYSTEM_FILE = Path("/etc/envbuild/config.toml")
SYSTEM_FILE_VARIABLE = "ENVBUILD_SYSTEM_CONFIG"
VARIABLE_PREFIX = "ENVBUILD_"
Value = str | bool | None
T = TypeVar("T")


class Key(NamedTuple):
    """One setting. `kind`: `path` is a file or folder, `ref` a shipped name or a path, `time` as `90s` or `5m`.

    `folder` is one on the nodes, whatever folder this is.
    """

    kind: Literal["text", "path", "folder", "ref", "time", "bool", "choice"]
    help: str
    default: Value = None
    choices: tuple[str, ...] = ()


KEYS: dict[str, Key] = {
    "target": Key("ref", "target of a command that names none", "local"),
    "stack": Key("ref", "stack instead of the target's (default: that of this folder, if only one has a lock)"),
    "profile": Key("text", "profile of the stack"),
    "prefix": Key("folder", "prefix instead of the target's; may contain {user}, {home} and {data}"),
    "cache": Key("folder", "folder on the nodes where uv keeps unpacked packages (default: the target's, or none)"),
    "toolchain": Key("path", "file of pinned interpreters that replaces the shipped one"),
    "runs": Key("path", "folder of the run directories"),
    "wait": Key("time", "how long to wait for another envbuild in the same prefix, as `90s` or `10m`", "10m"),
    "batch": Key("text", "how many nodes to change at a time, as `4` or `25%`"),
    "max_fail": Key("text", "how many nodes may fail before envbuild begins no more, as `4` or `25%`"),
    "color": Key("choice", "colour on the terminal", "auto", ("auto", "always", "never")),
    "quiet": Key("bool", "print only results, warnings and errors", False),
}


class Setting(NamedTuple):
    """One value and where it was said: a flag, a variable, a file, or `default`."""

    value: Value
    origin: str


class _Value(Generic[T]):
    """A setting as an attribute of `Config`, in the type that the program uses."""

    def __init__(self, key: str, read: Callable[[Value], T]) -> None:
        self.key, self.read = key, read

    def __get__(self, config: Config, _: type[Config]) -> T:
        return self.read(config.settings[self.key].value)


def _text(value: Value) -> str | None:
    return None if value is None else str(value)


@dataclass(frozen=True)
class Config:
    """All settings by key, and as attributes; `KEYS` says what they mean. `files`: that were read, the strongest first;
    `project` is the one that comes with the folder.

    `unknown_variables` are `ENVBUILD_*` variables that are no setting (the environment is shared, so no error).
    """

    settings: Mapping[str, Setting]
    files: tuple[Path, ...]
    unknown_variables: tuple[str, ...]
    project: Path | None = None

    target = _Value("target", str)
    stack = _Value("stack", _text)
    profile = _Value("profile", _text)
    prefix = _Value("prefix", _text)
    cache = _Value("cache", _text)
    toolchain = _Value("toolchain", lambda value: None if value is None else Path(str(value)))
    runs_root = _Value("runs", lambda value: Path(str(value)))
    wait = _Value("wait", lambda value: seconds_of(str(value)) or 0.0)
    batch = _Value("batch", _text)
    max_fail = _Value("max_fail", _text)
    color = _Value("color", str)
    quiet = _Value("quiet", bool)


def load_config(flags: Mapping[str, Value] | None = None) -> Config:
    """Read every layer. `flags` are values given on the command line (None means not given).

    Raises EnvbuildError, exit 2: `config-invalid`, `manifest-*` for an unreadable file; exit 7:
    `project-foreign`.
    """
    import platformdirs

    try:
        folder = Path.cwd()
    except OSError as error:
        raise EnvbuildError(
            "file-unreadable", "the current folder is not there any more", why=error.strerror or "",
            hint="change to a folder that is there: `cd`",
        ) from error  # fmt: skip
    system = Path(os.environ.get(SYSTEM_FILE_VARIABLE) or SYSTEM_FILE)
    project = find_project_file(folder)
    candidates = (project, platformdirs.user_config_path("envbuild") / "config.toml", system)
    files = tuple(path for path in candidates if path is not None and path.is_file())
    settings = {key: Setting(entry.default, "default") for key, entry in KEYS.items()}
    settings["runs"] = Setting(str(platformdirs.user_state_path("envbuild") / "runs"), "default")
    if own := _stack_of(folder):
        settings["stack"] = Setting(f"./{own}", "this folder (the only stack with a lock)")
    sources: list[tuple[str, Any, str, Path]] = [  # key, value, origin and folder, the weakest first
        *((key, value, str(path), path.parent) for path in reversed(files) for key, value in _read(path).items()),
        *([("color", "never", "NO_COLOR", folder)] if os.environ.get("NO_COLOR") else []),
        # An empty variable is how a shell says "not set".
        *((key, _parsed(os.environ[_variable(key)], entry), _variable(key), folder)
          for key, entry in KEYS.items() if os.environ.get(_variable(key))),
        *((key, value, f"--{key.replace('_', '-')}", folder)
          for key, value in (flags or {}).items() if value is not None),
    ]  # fmt: skip
    settings |= {key: Setting(_checked(key, value, origin, at), origin) for key, value, origin, at in sources}
    known = {_variable(key) for key in KEYS} | {SYSTEM_FILE_VARIABLE}
    unknown = tuple(sorted(n for n in os.environ if n.startswith(VARIABLE_PREFIX) and n not in known))
    return Config(settings, files, unknown, project)


def find_project_file(folder: Path) -> Path | None:
    """`envbuild.toml` here or above, up to the root of the git checkout; only here when there is no checkout.

    Without that limit, a file that somebody put into a shared parent folder (`/tmp`) would steer other people's builds.
    Raises EnvbuildError `project-foreign` (exit 7) for a file, folder or checkout of another user.
    """
    folder = folder.resolve()
    project, git = None, None
    for place in (folder, *folder.parents):
        if project is None and (place / PROJECT_FILE).is_file():
            project = place / PROJECT_FILE
        if (place / ".git").exists():
            git = place / ".git"
            break
    here = folder / PROJECT_FILE
    project = project if git is not None else here if here.is_file() else None
    if project is None:
        return None
    # What another user owns or can replace is refused, as git refuses a repository outside its safe.directory.
    for path in filter(None, (project, project.parent, git)):
        why = trust.foreign(str(path))
        if why:
            raise EnvbuildError(
                "project-foreign",
                f"{project} is not used: other users can change {path}",
                why=f"{why}; a project file chooses the target, and a target runs programs as you",
                hint=f"read it, then copy it: `cp -r {shlex.quote(str(project.parent))} ~/`; or run envbuild elsewhere "
                "with `--target FILE`",
            )
    return project


def _stack_of(folder: Path) -> str:
    """The stack file of a folder that alone has a lock beside it; none that another user can change."""
    there = names(str(folder))
    locks = [name for name in there if name.endswith(".lock.toml")]
    files = (name for name in there if locks and name.endswith((".yaml", ".yml")) and (folder / name).is_file())
    stacks = [name for name in files if any(lock.startswith(f"{Path(name).stem}.") for lock in locks)]
    places = (str(folder), *(str(folder / name) for name in stacks))
    return stacks[0] if len(stacks) == 1 and not any(map(trust.foreign, places)) else ""


def _read(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(read_manifest(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise EnvbuildError("config-invalid", f"{path} is not valid TOML", why=f"{path}: {error}") from None


def _parsed(text: str, entry: Key) -> Value:
    """A variable's text as the type of its key; what does not fit stays text and is refused with its origin."""
    if entry.kind == "bool":
        return {"1": True, "true": True, "0": False, "false": False}.get(text.lower(), text)
    return text


def _checked(key: str, value: Any, origin: str, folder: Path) -> Value:
    """The value in the form of its key; relative paths become absolute. Raises EnvbuildError."""
    entry = KEYS.get(key)
    if entry is None:
        raise EnvbuildError(
            "config-invalid",
            f"there is no setting {key!r}",
            why=f"set by {origin}",
            hint=did_you_mean(key, KEYS),
        )
    if entry.kind == "bool":
        if isinstance(value, bool):
            return value
        raise _invalid(key, origin, "must be true or false")
    if not isinstance(value, str) or not value or unsafe(value):
        raise _invalid(key, origin, "must be text on one line")
    if entry.kind == "time" and seconds_of(value) is None:
        raise _invalid(key, origin, "must be a time such as 90s, 5m or 2h")
    if entry.kind == "choice" and value not in entry.choices:
        raise _invalid(key, origin, f"must be one of {', '.join(entry.choices)}", did_you_mean(value, entry.choices))
    if entry.kind == "folder" and not value.startswith(("/", "{home}", "{data}")):
        from envbuild.model.target import with_placeholders

        meant = with_placeholders(value)
        whole = meant if meant.startswith(("{home}", "{data}")) else folder / meant
        raise _invalid(key, origin, "must be absolute, or begin with {home} or {data}", f"write {whole}")
    if entry.kind == "path" or (entry.kind == "ref" and ("/" in value or value.endswith((".yaml", ".yml")))):
        return str(folder / _expanded(value, key, origin))
    return value


def _expanded(value: str, key: str, origin: str) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise _invalid(key, origin, str(error)) from None


def _invalid(key: str, origin: str, says: str, hint: str = "") -> EnvbuildError:
    return EnvbuildError("config-invalid", f"the setting `{key}` {says}", why=f"set by {origin}", hint=hint)


def _variable(key: str) -> str:
    return VARIABLE_PREFIX + key.upper()
