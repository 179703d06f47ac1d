"""Files that list packages: requirements, environment.yml, Pipfile, pyproject.toml, setup.cfg and lock files."""

from __future__ import annotations

import configparser
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Any

from envbuild.catalog.environment_yml import entries
from envbuild.catalog.yaml_load import parse_yaml
from envbuild.errors import EnvbuildError
from envbuild.init.readers.installers import conda_facts
from envbuild.init.readers.requirement import conda_spec, git_address, is_git, is_local, requirement, wheel
from envbuild.init.readers.shell import Shell
from envbuild.init.statement import Kind, Place, Statement, quoted, without_credentials
from envbuild.regular_file import parse_toml

_CARET = re.compile(r"\^\s*([0-9]{1,9})(?:\.([0-9]{1,9}))?(?:\.([0-9]{1,9}))?([^\s0-9]\S*)?")
_TILDE = re.compile(r"~\s*([0-9]{1,9})(?:\.([0-9]{1,9}))?(?:\.([0-9]{1,9}))?$")
_CONDA_FILE = re.compile(r"/(?:linux-64|noarch)/([\w.-]+)-([^-/\s]+)-[^-/\s]+\.(?:conda|tar\.bz2)(?=#|\s|$)")
_EXPORT = re.compile(r"([A-Za-z0-9_.-]+)=([^=\s]+)=([A-Za-z0-9_.]+)")


@dataclass
class Lines:
    """Makes statements about lines of a file; `extra` names the extra or group that they stand in."""

    file: str
    text: str
    via: str
    extra: str = ""
    _quoted: Callable[[str], str] = field(default_factory=lambda: cache(quoted), init=False)  # one line may say much

    def make(self, kind: Kind, value: str, needle: str = "", *, line: int = 0, **options: str) -> Statement:
        """A statement about the line `line`, or the first that holds `needle`."""
        number = line or self._line(needle)
        shown = self.lines[number - 1] if number <= len(self.lines) else ""
        column = shown.find(needle) + 1 if needle and needle in shown else len(shown) - len(shown.lstrip()) + 1
        kept = {name: option for name, option in (options | {"extra": self.extra}).items() if option}
        place, text = Place(self.file, number, column), self._quoted(shown.strip())
        return Statement(kind, value, place, text, self.via, bool(self.extra), kept)

    def within(self, extra: str) -> Lines:
        """The same lines in an extra or group."""
        return Lines(self.file, self.text, self.via, extra)

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the file."""
        return self.text.splitlines()

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(map(len, self.text.splitlines(keepends=True))))

    def _line(self, needle: str) -> int:
        """The number of the first line with a text, 1 where none has it."""
        place = self.text.find(needle)
        return bisect_right(self._ends, place) + 1 if needle and place >= 0 else 1

    def wanted(self, text: str, *, line: int = 0) -> Iterator[Statement]:
        """What one requirement says, whatever its form."""
        text = text.strip()
        name, _, address = text.partition(" @ ") if " @ " in text else ("", "", text)
        if is_git(text) or address.startswith("git+"):
            git = git_address(text) or git_address(address)
            if git:
                marks = {"ssh": "yes" if git.ssh else "", "pinned_by": "ref" if git.ref else ""}
                yield self.make(
                    "source", git.url, address[:40], line=line, ref=git.ref, how="pip",
                    name=git.name or name.partition("[")[0].strip(), subdirectory=git.subdirectory, **marks,
                )  # fmt: skip
        elif built := (wheel(address) if address.partition(";")[0].strip().endswith(".whl") else None):
            at = without_credentials(address) if "://" in address else address
            package = f"{built.name}=={built.version}"
            yield self.make("package", package, address[:40], line=line, wheel=at, local=built.local)
            if built.python:
                yield self.make("python", f"=={built.python}.*", address[:40], line=line, inferred="wheel")
        elif name:  # `name @ file:///…` of a frozen list, or an archive
            yield self.make("package", name.strip(), name, line=line, address=without_credentials(address))
        elif is_local(text):
            yield self.make("local", text, text, line=line)
        elif (parsed := requirement(text)) is not None:
            needle = next((form for form in (f'"{text}"', f"'{text}'", text) if form in self.text), parsed.name)
            yield self.make("package", str(parsed), needle, line=line)
        else:
            yield self.make("unknown", self.via, text[:40], line=line)


def requirements(text: str, file: str) -> Iterator[Statement]:
    """A requirements file of pip, or what conda exports under that name."""
    lines = Lines(file, text, "requirements")
    for number, line in _logical(text):
        words = line.split()
        option = words[0].partition("=")[0]
        value = line[len(option) :].lstrip("= ").strip()
        if export := _EXPORT.fullmatch(line):
            yield from _conda(lines, f"{export[1]}={export[2]}", number, "")
        elif option in ("-r", "--requirement", "-c", "--constraint"):
            yield lines.make("file", str(PurePosixPath(PurePosixPath(file).parent, value)), line=number, by=option[:2])
        elif line.startswith("-r"):
            yield lines.make("file", str(PurePosixPath(PurePosixPath(file).parent, line[2:])), line=number, by="-r")
        elif option in ("-e", "--editable"):
            yield from _editable(lines, value, number)
        elif option in ("-i", "--index-url", "--extra-index-url", "-f", "--find-links"):
            place = "find-links" if option in ("-f", "--find-links") else "extra" if "extra" in option else "index"
            yield lines.make("index", without_credentials(value), line=number, place=place)
        elif not line.startswith("-"):
            yield from lines.wanted(re.split(r"\s+--(?:hash|config-settings|global-option)\b", line)[0], line=number)


def _editable(lines: Lines, value: str, number: int) -> Iterator[Statement]:
    for statement in lines.wanted(value if is_git(value) else value.partition("[")[0] or ".", line=number):
        kind: Kind = "local" if statement.kind in ("package", "unknown", "local") else statement.kind
        yield lines.make(kind, statement.value, line=number, **{**statement.options, "editable": "yes"})


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; those that end in a backslash go on, comments and blank ones are left out."""
    joined, first = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*$", "", raw.lstrip("\ufeff")).strip()
        first = first or number
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        joined = (joined + line).strip()
        if joined:
            yield first, joined
        joined, first = "", 0
    if joined.strip():
        yield first, joined.strip()


def _conda(lines: Lines, text: str, number: int, channels: str) -> Iterator[Statement]:
    spec = conda_spec(text)
    if spec is None:
        yield lines.make("unknown", "conda", line=number)
        return
    yield lines.make(
        "conda", text, line=number, name=spec.name, version=spec.version, channels=spec.channel or channels
    )
    for kind, value, by in conda_facts(spec):
        yield lines.make(kind, value, line=number, by=by)


def environment_yml(text: str, file: str) -> Iterator[Statement]:
    """conda's environment.yml, whatever keys it has."""
    lines = Lines(file, text, "environment.yml")
    document = _yaml(text, file)
    if document is None or not isinstance(document.data, dict):
        return
    listed = list(entries(document))
    channels = " ".join(entry.text for entry in listed if entry.kind == "channel" and entry.text)
    for entry in listed:
        number = document.locate(entry.where)[0]
        if entry.kind == "pip":
            for _, wish in _logical(entry.text):
                for statement in requirements(wish, file):
                    yield lines.make(statement.kind, statement.value, line=number, **statement.options)
        elif entry.kind == "conda" and entry.text:
            yield from _conda(lines, entry.text, number, channels)
        elif entry.kind == "channel" and entry.text:
            yield lines.make("channel", entry.text, line=number)
        elif entry.kind == "variable":
            yield lines.make("environment", entry.text, line=number)


def meta_yaml(text: str, file: str) -> Iterator[Statement]:
    """A recipe of conda: what its packages need to run, on Linux; what Jinja would fill in is left out."""
    kept = [
        re.sub(r"\{\{.{0,200}?\}\}", "", line) if not re.search(r"\{%|#\s*\[(?!linux)", line) else ""
        for line in text.splitlines()
    ]
    document, lines = _yaml("\n".join(kept), file), Lines(file, text, "meta.yaml")
    data = document.data if document is not None and isinstance(document.data, dict) else {}
    places = {line.strip(" -"): n for n, line in reversed(list(enumerate(kept, 1)))}
    outputs = data.get("outputs")
    for part in [data, *(outputs if isinstance(outputs, list) else ())]:
        needs = part.get("requirements") if isinstance(part, dict) else None
        run = needs.get("run") if isinstance(needs, dict) else None
        for entry in run if isinstance(run, list) else ():
            if isinstance(entry, str) and entry.strip():
                spec = re.sub(r"\s+(?=[0-9])", "=", entry.strip(), count=1)
                yield from _conda(lines, spec, places.get(entry.strip(), 1), "")


def _yaml(text: str, file: str) -> Any:
    try:
        return parse_yaml(text.encode("utf-8", "replace"), file)
    except EnvbuildError:
        return None


def workflow(text: str, file: str) -> Iterator[Statement]:
    """A workflow of GitHub: what its steps run, all of it optional: it installs what tests need."""
    document = _yaml(text, file)
    jobs = document.data.get("jobs") if document is not None and isinstance(document.data, dict) else None
    for job, body in (jobs if isinstance(jobs, dict) else {}).items():
        steps = body.get("steps") if isinstance(body, dict) else None
        shell = Shell(file, optional=True)
        for place, step in enumerate(steps if isinstance(steps, list) else ()):
            script = step.get("run") if isinstance(step, dict) else None
            if isinstance(script, str):
                line = document.locate(("jobs", job, "steps", place, "run"))[0]
                yield from shell.read(script, line + ("\n" in script.rstrip("\n")))


def pyproject(text: str, file: str) -> Iterator[Statement]:
    """pyproject.toml: PEP 621, groups, poetry, uv, hatch and pixi."""
    data = _toml(text)
    if data is None:
        yield Lines(file, text, "pyproject").make("unknown", "pyproject", line=1)
        return
    lines = Lines(file, text, "pyproject")
    project, tool = _table(data, "project"), _table(data, "tool")
    backend = _table(data, "build-system")
    if backend:
        wanted = _strings(backend.get("requires"))
        named = str(backend.get("build-backend", ""))
        yield lines.make("trait", "build-backend", "build-system", backend=named, requires="\n".join(wanted))
    if isinstance(project.get("name"), str):
        yield lines.make("trait", "project", str(project["name"]), name=str(project["name"]))
    if isinstance(project.get("requires-python"), str):
        yield lines.make("python", str(project["requires-python"]), "requires-python", by="requires-python")
    for text_ in _strings(project.get("dependencies")):
        yield from lines.wanted(text_)
    for place in _strings(project.get("dynamic")):
        if place == "dependencies":
            yield from _dynamic(lines, tool)
    yield from _extras(lines, _table(project, "optional-dependencies"), "extra")
    yield from _extras(lines, _table(data, "dependency-groups"), "group")
    yield from _poetry(lines, _table(tool, "poetry"))
    yield from _uv(lines, _table(tool, "uv"))
    for name, environment in _table(_table(tool, "hatch"), "envs").items():
        group = lines.within(f"hatch:{name}")
        for wish in _strings(environment.get("dependencies") if isinstance(environment, dict) else None):
            yield from group.wanted(wish)
    yield from _pixi(lines, _table(tool, "pixi"))


def _toml(text: str) -> dict[str, Any] | None:
    try:
        return parse_toml(text)
    except (ValueError, RecursionError):
        return None


def _table(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _dynamic(lines: Lines, tool: Mapping[str, Any]) -> Iterator[Statement]:
    named = _table(_table(_table(tool, "setuptools"), "dynamic"), "dependencies").get("file")
    for name in [named] if isinstance(named, str) else _strings(named):
        yield lines.make("file", str(PurePosixPath(PurePosixPath(lines.file).parent, name)), name, by="-r")


def _extras(lines: Lines, table: Mapping[str, Any], noun: str) -> Iterator[Statement]:
    for name, listed in table.items():
        inside = lines.within(f"{noun}:{name}")
        for text in _strings(listed):
            yield from inside.wanted(text)


def _poetry(lines: Lines, table: Mapping[str, Any]) -> Iterator[Statement]:
    if isinstance(table.get("name"), str):
        yield lines.make("trait", "project", str(table["name"]), name=str(table["name"]))
    yield from _poetry_table(lines, _table(table, "dependencies"))
    yield from _poetry_table(lines.within("group:dev"), _table(table, "dev-dependencies"))
    for name, group in _table(table, "group").items():
        inside = lines.within(f"group:{name}")
        yield from _poetry_table(inside, _table(group, "dependencies") if isinstance(group, dict) else {})


def _poetry_table(lines: Lines, table: Mapping[str, Any]) -> Iterator[Statement]:
    for name, entry in table.items():
        first = entry[0] if isinstance(entry, list) and entry else entry
        detail = first if isinstance(first, dict) else {}
        version = str(detail.get("version", "")) if detail else str(first)
        if name == "python":
            yield lines.make("python", specifier(version), name, by="requires-python")
        elif isinstance(detail.get("git"), str):
            yield from lines.wanted(_of_git(name, detail))
        elif isinstance(detail.get("path"), str):
            yield lines.make("local", str(detail["path"]), name, editable="yes" if detail.get("develop") else "")
        elif isinstance(detail.get("url"), str):
            yield from lines.wanted(f"{name} @ {detail['url']}")
        else:
            extra = "poetry:optional" if detail.get("optional") else lines.extra
            extras = f"[{','.join(_strings(detail.get('extras')))}]" if detail.get("extras") else ""
            inside = lines.within(extra)
            wish = requirement(f"{name}{extras}{specifier(version)}")
            if wish:
                yield inside.make("package", str(wish), f"{name} " if f"\n{name} " in lines.text else name)


def _of_git(name: str, detail: Mapping[str, Any]) -> str:
    ref = str(detail.get("rev") or detail.get("tag") or detail.get("branch") or "")
    return f"{name} @ git+{detail['git']}{'@' + ref if ref else ''}"


def specifier(text: str) -> str:
    """A version of poetry or Pipfile as PEP 440 has it: `^1.2` is `>=1.2,<2`."""
    text = text.strip()
    if text in ("*", ""):
        return ""
    if match := _CARET.fullmatch(text):
        parts = [int(part) for part in match.groups()[:3] if part is not None]
        place = next((n for n, part in enumerate(parts) if part), len(parts) - 1)
        upper = [*parts[:place], parts[place] + 1]
        return f">={text.lstrip('^ ')},<{'.'.join(map(str, upper))}"
    if match := _TILDE.fullmatch(text):
        parts = [int(part) for part in match.groups() if part is not None]
        upper = parts[:1] if len(parts) == 1 else parts[:2]
        return f">={text.lstrip('~ ')},<{'.'.join(map(str, [*upper[:-1], upper[-1] + 1]))}"
    if re.match(r"[0-9]", text):
        return f"=={text}"
    return text.replace(" ", "")


def _uv(lines: Lines, table: Mapping[str, Any]) -> Iterator[Statement]:
    for text in _strings(table.get("dev-dependencies")):
        yield from lines.within("group:dev").wanted(text)
    for entry in table.get("index", ()) if isinstance(table.get("index"), list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("url"), str):
            yield lines.make("index", without_credentials(entry["url"]), entry["url"], place="uv")
    for name, entry in _table(table, "sources").items():
        first = entry[0] if isinstance(entry, list) and entry else entry
        if isinstance(first, dict) and isinstance(first.get("git"), str):
            yield from lines.wanted(_of_git(name, first))
        elif isinstance(first, dict) and isinstance(first.get("path"), str):
            yield lines.make("local", first["path"], name, editable="yes" if first.get("editable") else "")
    for name in _strings(table.get("no-build-isolation-package")):
        yield lines.make("trait", "no-build-isolation", name, name=name)


def _pixi(lines: Lines, table: Mapping[str, Any]) -> Iterator[Statement]:
    for name, entry in _table(table, "dependencies").items():
        yield from _conda(lines, f"{name}{_pixi_version(entry)}", 0, "")
    yield from _poetry_table(lines, _table(table, "pypi-dependencies"))


def _pixi_version(entry: Any) -> str:
    version = str(entry.get("version", "")) if isinstance(entry, dict) else str(entry)
    return "" if version == "*" else f"={version}" if re.match(r"[0-9]", version) else version


def pixi(text: str, file: str) -> Iterator[Statement]:
    """pixi.toml."""
    yield from _pixi(Lines(file, text, "pixi"), _toml(text) or {})


def pipfile(text: str, file: str) -> Iterator[Statement]:
    """Pipfile of pipenv."""
    data, lines = _toml(text) or {}, Lines(file, text, "pipfile")
    yield from _poetry_table(lines, _table(data, "packages"))
    yield from _poetry_table(lines.within("group:dev"), _table(data, "dev-packages"))
    yield from _pipenv_python(lines, data)


def _pipenv_python(lines: Lines, data: Mapping[str, Any]) -> Iterator[Statement]:
    if isinstance(version := _table(data, "requires").get("python_version"), str):
        yield lines.make("python", f"=={version}.*", "python_version")


def setup_cfg(text: str, file: str) -> Iterator[Statement]:
    """setup.cfg of setuptools."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return
    lines = Lines(file, text, "setup.cfg")
    if name := parser.get("metadata", "name", fallback=""):
        yield lines.make("trait", "project", name, name=name)
    for _, wish in _logical(parser.get("options", "install_requires", fallback="")):
        yield from lines.wanted(wish)
    if needs := parser.get("options", "python_requires", fallback=""):
        yield lines.make("python", needs, "python_requires", by="requires-python")
    if parser.has_section("options.extras_require"):
        for extra, listed in parser.items("options.extras_require"):
            for _, wish in _logical(listed):
                yield from lines.within(f"extra:{extra}").wanted(wish)


def locked(text: str, file: str) -> Iterator[Statement]:
    """Locks of uv, poetry, pip, pipenv, pixi and conda-lock, lists of `conda list --explicit`: what authors had."""
    lines = Lines(file, text, "lock")
    listed = list(_CONDA_FILE.finditer(text)) if re.search(r"(?m)^@EXPLICIT\s*$", text) else []
    for match in listed:
        yield from _conda(lines, f"{match[1]}={match[2]}", text.count("\n", 0, match.start()) + 1, "")
    document = None if listed else _yaml(text, file)  # JSON is YAML
    data = _toml(text) or (document.data if document is not None and isinstance(document.data, dict) else {})
    yield from _pipenv_python(lines, _table(data, "_meta"))
    yield from _poetry_table(lines, _table(data, "default"))
    yield from _poetry_table(lines.within("group:dev"), _table(data, "develop"))
    entries = data.get("package") or data.get("packages")
    for entry in entries if isinstance(entries, list) else ():
        yield from _locked_entry(lines, entry) if isinstance(entry, dict) else ()


def _locked_entry(lines: Lines, entry: Mapping[str, Any]) -> Iterator[Statement]:
    """One package of a lock, where it is for Linux on x86_64."""
    name, version, file = entry.get("name"), entry.get("version"), entry.get("conda")
    if isinstance(file, str) and (match := _CONDA_FILE.search(file)):
        name, version = match[1], match[2]
    if not isinstance(name, str) or not isinstance(version, str) or entry.get("platform", "linux-64") != "linux-64":
        return
    if file or entry.get("manager") == "conda" or entry.get("kind") == "conda":
        yield from _conda(lines, f"{name}={version}", 1, "")
    else:
        yield lines.make("package", f"{name}=={version}", line=1)
