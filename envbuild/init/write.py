"""A draft as the text of a stack file: every value with its line, and marks where no file says anything. Pure."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuild.init.assemble import LocalProject, Result
from envbuild.init.draft import AS_ASKED, DraftSource, Origin, Wanted
from envbuild.init.findings import DraftFinding
from envbuild.init.known import exact_version
from envbuild.init.statement import Statement
from envbuild.model.common import settable
from envbuild.model.finding import Severity
from envbuild.node.redact import looks_secret, redact_text
from envbuild.node.variables import is_of_stacks
from envbuild.text import plural, visible

_SEVERITY: Mapping[str, Severity] = {
    "unpinned": "unpinned", "git-unpinned": "unpinned", "git-branch": "unpinned", "torch-floating": "unpinned",
    "python-open": "unpinned", "short-sha": "unpinned", "torch-absent": "unpinned", "flavour-by-default": "unpinned",
    "conflict": "wrong", "contradiction": "wrong", "shell-slip": "wrong", "flavour-missing": "wrong",
    "version-missing": "wrong", "index-missing": "wrong", "rank-slip": "wrong", "platform-mismatch": "wrong",
    "package-homonym": "wrong", "import-open": "wrong", "pip-global-option": "stale", "legacy-build": "stale",
    "repo-moved": "stale", "duplicate": "note", "conda-torch": "note", "torch-below-catalog": "note",
    "torch-above-catalog": "note", "alternatives": "note", "stale-service": "stale",
    "file-elsewhere": "note", "editable-install": "note",
}  # fmt: skip
_SCRATCH = re.compile(
    r"DEBIAN_FRONTEND|PIP_\w+|TZ|LANG|LC_ALL|CMD|LAUNCHER|MASTER_\w+|WORLD_SIZE|RANK|CUDA_VISIBLE_DEVICES"
)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_GUESS = re.compile(r'^( +)- "([A-Za-z0-9._-]+)[^"]*"  # from imports: ([^\n]*)$', re.MULTILINE)
_REQUIREMENT = re.compile(r'^ +- "([^"]+)"  # ([^\n;]*)', re.MULTILINE)
_HEAD = "# Drafted by `envbuild init` from"
IMPORTS = "# imports:"
NOT_SAID = "# not said: what brings"
_MOST_PLACES = 2
_MOST_EQUAL = 100  # as many as `nth` takes
_FULL = 40


def text(result: Result, name: str, beside: Path, folder: Path | None) -> str:
    """The stack file; `beside` is the folder that it will lie in, `folder` that of the input where it is one."""
    # Names of files, too, are text of strangers: here nothing ends its line, and no secret stays.
    return "".join(f"{redact_text(visible(line))}\n" for line in _lines(result, name, beside, folder))


def head(origin: Origin, *, any_commit: bool = False) -> str:
    """The first line of a draft, or its beginning for any commit."""
    of = f" at {origin.commit[:12]} of {origin.day}." if origin.commit else "."
    return f"{_HEAD} {_safe(origin.url or origin.name)}" + ("" if any_commit else of)


def relaxed(text: str, was: str, becomes: str, why: str = "") -> str:
    """A draft with a requirement or torch's flavour relaxed, the old one beside it; as it was where it lacks that.

    What stands in a file that is no draft, or was asked for, stays.
    """
    for form, usual in ((f"- {json.dumps('%s')}  #", "which excluded others"), ("flavours: [%s]}  #", "out of reach")):
        before, after = form % was, f"{form % becomes} relaxed from {was}, {why or usual};"
        line = next((line for line in text.splitlines() if before in line), "")
        if line and text.startswith(_HEAD) and not line.endswith(AS_ASKED):
            return text.replace(before, after, 1)
    return text


def bounds_of(text: str, package: str) -> tuple[str, str]:
    """A draft's requirement of a package that has bounds, and where it is said; empty for none."""
    for match in _REQUIREMENT.finditer(text) if text.startswith(_HEAD) else ():
        with suppress(InvalidRequirement):
            requirement = Requirement(match[1])
            if canonicalize_name(requirement.name) == package and requirement.specifier:
                return match[1], match[2]
    return "", ""


def without_guess(text: str, output: str, why: str = "does not fit") -> tuple[str, str]:
    """A draft without the first package that only imports suggest and `output` names, and its name.

    A finding of the draft says `why`.
    """
    named = {canonicalize_name(word) for word in re.findall(r"[a-z0-9][a-z0-9._-]*", output.lower())}
    for match in _GUESS.finditer(text) if text.startswith(_HEAD) else ():
        if canonicalize_name(match[2]) in named:
            truth = f"{match[2]} of the index {redact_text(_safe(why))}"
            line = f"{match[1]}# not said: what brings `{match[3]}`; {truth}"
            number = text.count("  - id: guess-left-out") + 1
            rows = [] if re.search(r"^findings:$", text, re.MULTILINE) else ["findings:"]
            rows += _finding(
                "guess-left-out",
                number,
                says=f"imports of {match[3]}",
                truth=f"only imports suggest {match[2]}, and {truth}",
                evidence=match[3],
                does="leaves it out: code that imports it fails",
            )
            without = text[: match.start()] + line + text[match.end() :]
            return without.rstrip("\n") + "".join(f"\n{row}" for row in rows) + "\n", match[2]
    return text, ""


def _lines(result: Result, name: str, beside: Path, folder: Path | None) -> Iterator[str]:
    draft, (known, every) = result.draft, result.understood
    origin = draft.origin
    yield head(origin)
    yield f"# from {plural(every, 'statement')}{f', {every - known} of them not understood' if known < every else ''}."
    for path, noun in result.collected.used.items():
        yield f"# read: {_safe(path)} ({noun}), sha256 {result.collected.contents[path]}"
    if folder is not None:
        yield f"{IMPORTS} {result.imports}"
    for path in result.collected.choices:
        yield f"# offered, not taken as a whole: {_safe(path)}"
    for path, why in list(result.left_out.items())[:20]:
        yield f"# left out: {_safe(path)}: {_safe(why)}"
    yield f"name: {name}"
    yield f"summary: {_quoted(f'drafted from {origin.url or origin.name}')}"
    yield from _document(result)
    yield "profiles:"
    yield "  exact:"
    yield from _python(result)
    if draft.as_of is not None:
        what = "commit" if draft.as_of == origin.day else "wheel with this commit's code"
        yield f'    as_of: "{draft.as_of}"  # the day of the {what}'
    yield from _torch(result)
    yield from _packages(result)
    yield from _sources(result, beside, folder)
    yield from _imports(result)
    yield from _environment(result)
    yield from _system(result)
    yield "    runs: imports"
    yield from _starts(result)
    yield from _findings(result)


def _safe(value: str) -> str:
    return " ".join(visible(value).split())


def _quoted(value: str) -> str:
    return json.dumps(_safe(value), ensure_ascii=False)


def _at(statements: Iterable[Statement]) -> str:
    places = list(dict.fromkeys(f"{statement.place.file}:{statement.place.line}" for statement in statements))
    more = f" and {len(places) - _MOST_PLACES} more" if len(places) > _MOST_PLACES else ""
    return _safe(", ".join(places[:_MOST_PLACES]) + more)


def _not_said(result: Result, what: str) -> str:
    return next((f"# not said: {question.why}" for question in result.missing if question.what == what), "")


def _python(result: Result) -> Iterator[str]:
    python = result.draft.python
    comment = _not_said(result, "python")
    if python.statements:
        text = f"{python.statements[0].text}"
        comment = f"# {_at(python.statements)}: {_safe(text)}" + (f"; {comment[2:]}" if comment else "")
    yield f'    python: ["{python.value}"]  {comment}'
    yield "    interpreters: [present, standalone]"


def _torch(result: Result) -> Iterator[str]:
    torch, flavour = result.draft.torch, result.draft.flavour
    if torch is None:
        return
    origin = f"# {_at(torch.statements)}" if torch.statements else "# from imports"
    notes = [_not_said(result, what)[2:] for what in ("torch", "flavour")]
    if flavour is not None and not flavour.default:
        apart = [statement for statement in flavour.statements[:1] if flavour.why or statement.via == "prose"]
        notes += [f"{_at([statement])}: {_safe(statement.text).rstrip('.')}" for statement in apart]
        notes.append(flavour.why)
    comment = "; ".join(filter(None, (origin, *notes)))
    version = torch.value
    if not re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", version):
        version = result.draft.torch_release
        note = ": no index has it, the release is taken" if version else ""
        yield f"    # torch: {_safe(torch.value) or 'not said'}{note}  {comment}"
        if not version:
            return
    yield f"    torch: {{version: {version}, flavours: [{flavour.value if flavour else 'cpu'}]}}  {comment}"


def _packages(result: Result) -> Iterator[str]:
    draft = result.draft
    listed = [package for package in draft.packages if package.name != "torch" and _usable(package)]
    left = dict(result.compiled)
    for finding in (finding for finding in result.findings if finding.rule == "two-owners"):
        left |= dict.fromkeys(finding.about[1:], f"{finding.about[0]} holds the same files")
    if any(package.name not in left for package in listed):
        yield "    packages:"
    for package in listed:
        mark, note = ("# ", f"; {left[package.name]}") if package.name in left else ("", "")
        yield f"      {mark}- {_quoted(package.index_text)}  # {_why(package, result)}{note}"
    optional = {
        closed.wanted.name: (closed.wanted.index_text, closed.imported.firmness, closed.place)
        for closed in result.closed
        if closed.wanted is not None and closed.imported.firmness != "required"
    }
    for name, (requirement, firmness, place) in sorted(optional.items()):
        if draft.package(name) is None and not (name == "torch" and draft.torch):
            kind = {"guarded": "in `try`", "aside": "by tests and examples"}[firmness]
            yield f"      # - {_quoted(requirement)}  # optional: imported {kind}, {place}"
    for closed in result.closed:
        if closed.how == "vendor":
            yield f"      # left out: {closed.imported.module}, another vendor's back end ({closed.place})"
        elif closed.how == "open":
            yield f"      {NOT_SAID} `import {closed.imported.module}` ({closed.where})"
    groups = {name: listed for name, listed in draft.extras.items() if not name.startswith("file:")}
    for name, members in groups.items():
        yield f"      # {_safe(name)}: {_safe(', '.join(member.index_text for member in members))}"


def _usable(wanted: Wanted) -> bool:
    if wanted.requirement.url:
        return False
    try:
        Requirement(wanted.index_text)
    except InvalidRequirement:
        return False
    return True


def _why(wanted: Wanted, result: Result) -> str:
    if not wanted.statements:
        return f"not said: {wanted.why}"
    statement = result.draft.from_imports.get(wanted.name)
    declared = [statement for statement in wanted.statements if statement.kind != "import"]
    if statement is not None:
        return f"from imports: {_at([statement])}" + (f", as {_at(declared)} has it" if declared else "")
    return _at(wanted.statements) + (" of conda" if wanted.conda else "") + (f"; {wanted.why}" if wanted.why else "")


def _sources(result: Result, beside: Path, folder: Path | None) -> Iterator[str]:
    lines: list[str] = []
    for project in result.projects:
        lines += _own(project, result, beside, folder)
    for source in result.draft.sources:
        if not source.own or not result.projects:
            nested = any(
                statement.value == "submodules" and statement.get("source") == source.url
                for statement in result.draft.statements
            )
            lines += _source(source, submodules=nested, left=result.compiled.get(source.name, ""))
    if any(not line.lstrip().startswith("#") for line in lines):
        yield "    sources:"
    yield from lines
    yield from _nested(result)


def _extensions(result: Result) -> dict[str, list[Statement]]:
    """CUDA modules by the nested folder of the input that compiles them."""
    built: dict[str, list[Statement]] = {}
    for statement in result.draft.statements:
        folder = statement.place.file.rpartition("/")[0]
        if statement.kind == "extension" and statement.get("cuda") and folder and _MODULE.fullmatch(statement.value):
            built.setdefault(folder, []).append(statement)
    return built


def _nested(result: Result) -> Iterator[str]:
    """Folders of the input that compile CUDA code: they are built after torch, where somebody wants them."""
    origin = result.draft.origin
    built = {project.folder for project in result.projects if project.cuda and result.compiles}
    for folder, extensions in _extensions(result).items():
        if folder in built:
            continue
        names = ", ".join(dict.fromkeys(_safe(extension.value) for extension in extensions))
        yield f"      # compiled with nvcc, after torch: {_safe(folder)} ({names}; {_at(extensions)})"
        if len(origin.commit) == _FULL and origin.url:
            name = re.sub(r"[^a-z0-9._-]+", "-", folder.lower()).strip("-._")[:63]
            yield f"      # - {_wheel(name, origin, folder, extensions)}"


def _wheel(name: str, origin: Origin, folder: str, extensions: Sequence[Statement]) -> str:
    """A nested folder as a source whose CUDA modules are compiled, and not fetched or skipped."""
    where = f"git: {_quoted(origin.url)}, commit: {origin.commit}, path: {_quoted(folder)}"
    names = ", ".join(dict.fromkeys(_safe(extension.value) for extension in extensions))
    forced = dict.fromkeys(variable for extension in extensions for variable in extension.get("forced").split())
    values = ", ".join(f"{variable}: {_quoted('1' if variable == 'FORCE_CUDA' else 'TRUE')}" for variable in forced)
    variables = f", environment: {{{values}}}" if values else ""
    return f"{{name: {name}, {where}, build: {{kind: wheel, extensions: [{names}]{variables}}}}}"


def _own(project: LocalProject, result: Result, beside: Path, folder: Path | None) -> list[str]:
    origin = result.draft.origin
    path = f", path: {_quoted(project.code)}" if project.code else ""
    if folder is not None:
        place = os.path.relpath(folder / project.code, beside)
        place = place if place.startswith(".") else f"./{place}"
        line = f"{{name: {project.name}, path: {_quoted(place)}, install: {project.install}}}"
    elif len(origin.commit) == _FULL and origin.url:
        if result.compiles and project.cuda and (extensions := _extensions(result).get(project.folder)):
            wheel = _wheel(project.name, origin, project.folder, extensions)
            return [f"      - {wheel}  # the input's own code, compiled with nvcc"]
        where = f"git: {_quoted(origin.url)}, commit: {origin.commit}"
        nested = ", submodules: true" if origin.submodules else ""
        line = f"{{name: {project.name}, {where}, install: {project.install}{path}{nested}}}"
    else:
        return []
    note = "; its CUDA code is not compiled: `build:` does that, with nvcc" if project.cuda else ""
    return [f"      - {line}  # the input's own code{note}"]


def _source(source: DraftSource, *, submodules: bool, left: str) -> list[str]:
    at = _at(source.statements)
    if not source.install or source.optional:
        return [f"      # cloned, not installed: {source.url} {source.ref}  ({at})".rstrip()]
    keys = [f"name: {source.name}", f"git: {_quoted(source.url)}"]
    commit = source.ref if source.pinned else source.commit
    keys.append(f"commit: {commit or 'COMMIT'}")
    if source.ref and not source.pinned:
        keys.append(f"ref: {_quoted(source.ref)}")
    keys.append(f"install: {source.install}")
    keys += [f"path: {_quoted(subdirectory)}" for subdirectory in source.subdirectories[:1]]
    keys += ["submodules: true"] if submodules or (source.built and source.built.submodules) else []
    build = [f"flags: [{', '.join(map(_quoted, source.flags))}]"] if source.flags else []
    if source.built:
        build += ["kind: wheel", f"extensions: [{', '.join(source.built.extensions)}]"]
        build += [f'environment: {{{source.built.forced}: "TRUE"}}']
        build += [f"memory_per_job: {source.built.memory_per_job}"] if source.built.memory_per_job else []
    if build:
        keys.append(f"build: {{{', '.join(build)}}}")
    mark = "# " if left or not commit else ""
    line = f"      {mark}- {{{', '.join(keys)}}}  # {at}{f'; {left}' if left else ''}"
    if source.pinned:
        return [line]
    if commit and source.release is not None:
        note = "" if exact_version(source.release) else "; not said: the version, this is the newest of the day"
        return [f"{line}; compiled with nvcc{note}"]
    if commit:
        return [f"{line}; not said: the commit, this is that of the day"]
    return [f"      # not said: the commit; `{source.ref or 'the default branch'}` moves", line]


def _imports(result: Result) -> Iterator[str]:
    ours = [module for project in result.projects if result.compiles or not project.cuda for module in project.modules]
    own = [module for module in ours if module not in result.blocked]
    tested = [statement.value for statement in result.draft.of("import")]
    modules = list(dict.fromkeys([*(["torch"] if result.draft.torch else []), *own, *tested]))
    valid = [module for module in modules if _MODULE.fullmatch(module)]
    if valid:
        yield f"    imports: [{', '.join(valid)}]"
    for module in ours:
        if module in result.blocked:
            yield f"    # not imported as a test: {_safe(module)}, which needs {result.blocked[module]}"


def _environment(result: Result) -> Iterator[str]:
    kept: list[str] = []
    for name, statement in result.draft.environment.items():
        value = statement.value.partition("=")[2]
        if _SCRATCH.fullmatch(name) or looks_secret(name) or redact_text(value) != value or "$" in value:
            continue
        try:
            settable(name)
        except ValueError:
            kept.append(f"      # left out: {name}, which chooses what programs run ({_at([statement])})")
            continue
        if not is_of_stacks(name):  # it would stand in the shell of whoever activates the environment
            kept.append(f"      # left out: {name}={_safe(value)}, which is of one run ({_at([statement])})")
            continue
        if re.match(r"/(?!usr|opt|tmp|dev)\w", value):
            kept.append(f"      # left out: {name}, a path of one machine ({_at([statement])})")
            continue
        kept.append(f"      {name}: {_quoted(value)}  # {_at([statement])}")
    if any(not line.lstrip().startswith("#") for line in kept):
        yield "    environment:"
        yield from kept


def _system(result: Result) -> Iterator[str]:
    whys = {name: f"{package} is compiled against it" for name, package in result.system.items()}
    installed = [statement for statement in result.draft.statements if statement.kind == "system"]
    whys |= {statement.value: f"{_at([statement])} installs it" for statement in installed}
    kept = {name: why for name, why in whys.items() if re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", name)}
    if kept:
        yield "    system_packages:"
    for name, why in kept.items():
        yield f"      - {{name: {_quoted(name)}, why: {_quoted(why)}}}"


def _starts(result: Result) -> Iterator[str]:
    for start in [statement for statement in result.draft.statements if statement.kind == "run"][:12]:
        yield f"    # starts: {_safe(start.text)}  ({_at([start])})"


def _anchor(finding: DraftFinding, page: tuple[str, str]) -> Iterator[str]:
    """The lines of the page that a finding rests on, as its annotation wants them: exact, and which of equal ones."""
    path, text_ = page
    rows = text_.split("\n")
    places = {statement.place.line: rows[statement.place.line - 1].strip() for statement in finding.statements
              if statement.place.file == path and statement.place.line <= len(rows)}  # fmt: skip
    usable = {line: row for line, row in places.items() if row and row.isprintable() and redact_text(row) == row}
    for line, row in list(usable.items())[:1]:
        before = "\n".join(rows[: line - 1]).count(row)
        yield f"    anchor: {json.dumps(row, ensure_ascii=False)}"
        if 0 < before < _MOST_EQUAL:
            yield f"    nth: {before + 1}"
        others = [other for other in dict.fromkeys(usable.values()) if other != row]
        if others:
            yield f"    also: [{', '.join(json.dumps(other, ensure_ascii=False) for other in others)}]"


def _document(result: Result) -> Iterator[str]:
    """The page by its commit, which `explain` annotates."""
    origin, (path, _) = result.draft.origin, result.page
    if origin.url.startswith("https://") and len(origin.commit) == _FULL and path:
        yield "document:"
        yield f"  title: {_quoted(f'{path} of {origin.name}')}"
        yield f"  url: {_quoted(origin.url)}"
        yield f"  commit: {origin.commit}"
        yield f"  path: {_quoted(path)}"


def _findings(result: Result) -> Iterator[str]:
    if result.findings:
        yield "findings:"
    numbers = Counter[str]()
    for finding in result.findings:
        numbers[finding.rule] += 1
        quotes = "; ".join(dict.fromkeys(item.text for item in finding.statements[:3])) or "(nothing)"
        about = ", ".join(name for name in finding.about[:12] if name.lower() not in finding.truth.lower())
        truth = f"{finding.truth}: {about}" if about else finding.truth
        evidence = _at(finding.statements) or "no file names it"
        yield from _finding(
            finding.rule, numbers[finding.rule], says=quotes, truth=truth, evidence=evidence, does=finding.does
        )
        yield from _anchor(finding, result.page)


def _finding(rule: str, number: int, **texts: str) -> Iterator[str]:
    """A finding as a stack file has it; from the second of a rule on its name has a number."""
    yield f"  - id: {rule}" + (f"-{number}" if number > 1 else "")
    yield from (f"    {key}: {_quoted(text)}" for key, text in texts.items())
    yield f"    severity: {_SEVERITY.get(rule, 'trap')}"
    yield "    unverified: true"
