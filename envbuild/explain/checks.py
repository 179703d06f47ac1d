"""Runs the checks of findings: against compatibility data, upstream repositories and the package index."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from packaging.specifiers import SpecifierSet

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock.readers.git import GitReader, resolve_ref
from envbuild.model import finding as f
from envbuild.model.stack import Stack
from envbuild.node import proc
from envbuild.resolve.artifacts import numbers

if TYPE_CHECKING:
    from envbuild.resolve.compat import Compat

Outcome = Literal["holds", "broken", "not-run"]


class CheckResult(NamedTuple):
    """The result of one check of one finding.

    `holds`: the finding is still true; `broken`: it is not, and the catalog is out of date; `not-run`: something could
    not be reached; `detail` says what, `error` is its code. `question`: the check in words.
    """

    finding: str
    kind: str
    question: str
    outcome: Outcome
    detail: str
    error: str = ""

    def as_dict(self) -> dict[str, str]:
        """For `--json`."""
        data = self._asdict()
        if not self.error:
            del data["error"]
        return data


class _NotRun(Exception):  # noqa: N818 - not an error: the answer could not be had
    pass


_Answer = tuple[bool, str]


def run_checks(stack: Stack, compat: Compat, git: GitReader | None = None) -> tuple[CheckResult, ...]:
    """Run every check of every finding, in the order of the file. Unreachable sources make a check `not-run`.

    Without `git` nothing outside is asked, so the checks that need sources or the index are `not-run`, too.
    """
    return tuple(_run(stack, finding.id, check, compat, git) for finding in stack.findings for check in finding.check)


def _run(stack: Stack, finding: str, check: f.Check, compat: Compat, git: GitReader | None) -> CheckResult:
    question = describe(check)
    if git is None and isinstance(check, (*_GIT_KINDS, f.IndexCheck)):
        why = "sources and the index are asked with --run-checks only"
        return CheckResult(finding, check.kind, question, "not-run", why)
    try:
        if isinstance(check, f.IndexCheck):
            holds, detail = _ask_index(check)
        elif git is not None and isinstance(check, _GIT_KINDS):
            holds, detail = _ask_git(stack, check, git)
        else:
            holds, detail = _ask_catalog(check, compat)
    except _NotRun as reason:
        return CheckResult(finding, check.kind, question, "not-run", str(reason))
    except EnvbuildError as error:
        if error.exit_code != ExitCode.TRY_AGAIN:
            detail = f"{error.what}: {error.why}" if error.why else error.what
            return CheckResult(finding, check.kind, question, "broken", detail.splitlines()[0])
        return CheckResult(finding, check.kind, question, "not-run", error.what, error.code)
    return CheckResult(finding, check.kind, question, "holds" if holds else "broken", detail)


_GIT_KINDS = (f.AtCommit, f.RefCheck)


def _ask_git(stack: Stack, check: Any, git: GitReader) -> _Answer:
    pinned = stack.pinned(check.at)
    if pinned is None:
        raise _NotRun(f"nothing is named {check.at}")
    url, commit = pinned
    if isinstance(check, f.RefCheck):
        now = resolve_ref(url, check.ref)
        state = "missing" if now is None else "pinned" if now == commit else "moved"
        return state == check.expected, f"{check.ref} is {'not there' if now is None else 'at ' + now[:8]}"
    commit = check.commit or commit
    if isinstance(check, f.PathCheck):
        present = git.has_path(url, commit, check.path)
        return present == check.present, f"{check.path} is {'there' if present else 'not there'} at {commit[:8]}"
    if isinstance(check, f.ContainsCheck):
        contained = git.contains(url, commit, check.ancestor)
        return contained == check.expected, f"{commit[:8]} {'contains' if contained else 'does not contain'} the commit"
    if isinstance(check, f.SubmoduleCheck):
        count = len(git.submodules(url, commit))
        return count == check.expected, f"{count} submodules at {commit[:8]}"
    if isinstance(check, f.TreeTextCheck):
        count = len(git.grep(url, commit, check.text, check.under or "", "-F"))
        return count == check.expected, f"in {count} files at {commit[:8]}"
    text = git.read(url, commit, check.path)
    if text is None:
        return False, f"{check.path} is not there at {commit[:8]}"
    return _TEXT_CHECKS[type(check)](check, text)


def _text(check: f.TextCheck, text: str) -> _Answer:
    count = text.count(check.text)
    return count >= 1 if check.expected is None else count == check.expected, f"{_times(count)} in {check.path}"


def _sed(check: f.SedCheck, text: str) -> _Answer:
    # grep reads the same basic regular expressions as sed; writing that translation ourselves would prove nothing.
    env = proc.clean_env({"LC_ALL": "C"})
    done = proc.run(["grep", "-o", "-e", check.pattern], env=env, stdin=text.encode())
    if done.missing:
        raise _NotRun("the grep program is not installed")
    if done.rc not in (0, 1):  # 1: nothing matches
        raise _NotRun(f"grep could not search: {done.err.strip() or 'it did not end in time'}")
    count = len(done.out.splitlines())
    return count == check.expected, f"matches {_times(count)} in {check.path}"


def _comment(check: f.CommentCheck, text: str) -> _Answer:
    lines = text.splitlines()
    if check.last > len(lines):
        return False, f"{check.path} has {len(lines)} lines only"
    for place in range(check.first - 1, check.last):
        lines[place] = "# " + lines[place]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile("\n".join(lines) + "\n", check.path, "exec", dont_inherit=True)
    except SyntaxError as error:
        return not check.compiles, f"{type(error).__name__}: {error.msg} (line {error.lineno})"
    return check.compiles, "the file still compiles"


_TEXT_CHECKS: dict[type, Callable[[Any, str], _Answer]] = {
    f.TextCheck: _text,
    f.SedCheck: _sed,
    f.CommentCheck: _comment,
}


def _ask_index(check: f.IndexCheck) -> _Answer:
    from envbuild.lock.readers.uvtool import run_uv

    with tempfile.TemporaryDirectory(prefix="envbuild-index-") as folder:
        wish = Path(folder) / "wish.in"
        wish.write_text(check.requirement + "\n", encoding="utf-8")
        command = ["pip", "compile", "--no-deps", "--no-header", "--quiet", "--no-cache"]
        command += ["--python-version", check.python, "--python-platform", "x86_64-manylinux_2_28"]
        command += ["--only-binary", ":all:"] if check.wheel else []
        try:
            answer = run_uv([*command, str(wish)], cwd=Path(folder))
        except EnvbuildError as error:
            if error.code == "package-not-found":
                # An index that knows nothing of the name may as well be a login page; that proves nothing.
                raise _NotRun(error.what) from error
            # With wheels alone, "only a source distribution" is "no wheel".
            if error.code not in ("resolution-failed", "build-not-allowed"):
                raise
            return True, "the index has none"
    return False, f"the index has {answer.split()[0]}" if answer.split() else "the index has one"


def _ask_catalog(check: Any, compat: Compat) -> _Answer:
    if isinstance(check, f.SpecifierCheck):
        fits = SpecifierSet(check.against).contains(check.pinned, prereleases=True)
        return not fits, f"{check.pinned} is {'inside' if fits else 'outside'} {check.against}"
    if isinstance(check, f.ZeroCheck):
        most = compat.max_pipeline_zero_stage
        return check.stage > most, f"a pipeline engine takes ZeRO up to stage {most}"
    if isinstance(check, f.PackageRuleCheck):
        return _package_rule(check, compat)
    if isinstance(check, f.ToolkitCheck):
        return _toolkit(check, compat)
    release = compat.torch.get(check.torch)
    if release is None:
        return False, f"the catalog does not know torch {check.torch}"
    if isinstance(check, f.FlavourCheck):
        return check.flavour not in release.builds, f"torch {check.torch} has {', '.join(release.builds)}"
    if isinstance(check, f.NotOnPypiCheck):
        return not release.on_pypi, f"the catalog says pypi: {str(release.on_pypi).lower()}"
    if isinstance(check, f.TorchPythonCheck):
        tags = release.tags.get("x86_64", ())
        return f"cp{check.python.replace('.', '')}" not in tags, f"torch {check.torch} has {', '.join(tags)}"
    return _gpu(check, compat)


def _gpu(check: f.GpuCheck, compat: Compat) -> _Answer:
    build = compat.torch[check.torch].builds.get(check.flavour)
    if build is None:
        return False, f"the catalog has no {check.flavour} build of torch {check.torch}"
    wanted = numbers(check.capability)
    runs = any(a[0] == wanted[0] and a <= wanted for a in build.archs) or any(a <= wanted for a in build.ptx)
    shown = " ".join(".".join(map(str, arch)) for arch in build.archs)
    return runs == check.expected, f"torch {check.torch}+{check.flavour} has code for {shown}"


def _toolkit(check: f.ToolkitCheck, compat: Compat) -> _Answer:
    capability, cuda = numbers(check.capability), numbers(check.cuda)
    first, last = compat.cuda.first_cuda.get(capability), compat.cuda.last_cuda.get(capability)
    knows = first is not None and cuda >= first and (last is None or cuda <= last)
    shown = f"{check.capability} from CUDA {'.'.join(map(str, first or ()))}"
    return knows == check.expected, shown + (f" to {'.'.join(map(str, last))}" if last else "")


def _package_rule(check: f.PackageRuleCheck, compat: Compat) -> _Answer:
    rule = next((r for r in compat.package_rules if r.id == check.rule), None)
    if rule is None:
        return False, f"the catalog has no package rule {check.rule}"
    return rule.breaks.specifier.contains(check.version, prereleases=True), rule.says


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def describe(check: f.Check) -> str:  # noqa: C901 - one line a kind
    """What a check asks, in words."""
    match check:
        case f.PathCheck():
            return f"{check.at}: {check.path} is {'there' if check.present else 'not there'}"
        case f.TextCheck():
            often = "occurs" if check.expected is None else f"occurs {_times(check.expected)}"
            return f"{check.at}: `{check.text.strip()}` {often} in {check.path}"
        case f.TreeTextCheck():
            return f"{check.at}: `{check.text}` is in {check.expected} files of {check.under or 'the tree'}"
        case f.SedCheck():
            return f"{check.at}: the sed pattern matches {_times(check.expected)} in {check.path}"
        case f.CommentCheck():
            verb = "compiles" if check.compiles else "does not compile"
            return f"{check.at}: {check.path} {verb} with lines {check.first} to {check.last} commented out"
        case f.ContainsCheck():
            verb = "contains" if check.expected else "does not contain"
            return f"{check.at}: the commit {verb} {check.ancestor[:8]}"
        case f.RefCheck():
            where = {"pinned": "still at the pinned commit", "moved": "no longer there", "missing": "gone"}
            return f"{check.at}: {check.ref} is {where[check.expected]}"
        case f.SubmoduleCheck():
            return f"{check.at}: {check.expected} submodules"
        case f.FlavourCheck():
            return f"torch {check.torch} has no {check.flavour} build"
        case f.NotOnPypiCheck():
            return f"torch {check.torch} is not on PyPI"
        case f.TorchPythonCheck():
            return f"torch {check.torch} has no wheel for Python {check.python}"
        case f.GpuCheck():
            verb = "runs" if check.expected else "does not run"
            return f"torch {check.torch}+{check.flavour} {verb} on compute capability {check.capability}"
        case f.ToolkitCheck():
            verb = "compiles" if check.expected else "does not compile"
            return f"CUDA {check.cuda} {verb} for compute capability {check.capability}"
        case f.PackageRuleCheck():
            return f"rule {check.rule} breaks with version {check.version}"
        case f.ZeroCheck():
            return f"ZeRO stage {check.stage} is refused in a pipeline engine"
        case f.SpecifierCheck():
            return f"{check.package}: {check.pinned} is outside {check.against}"
        case f.IndexCheck():
            return f"the index has no {'wheel' if check.wheel else 'file'} of {check.requirement} for {check.python}"
