"""Builds one source into a wheel: in a clean copy at one path, its extensions in parallel, and proves what came out.

Two routes: our driver runs setup.py (which delivers flags for certain, whatever pip would do with them), everything
else goes through PEP 517. Torch and all build tools are packages of the environment; nothing is isolated or fetched.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import shutil
import time
import zipfile
from collections.abc import Callable, Mapping
from typing import NamedTuple

from envbuild.node import git_source, hashing, paths, proc, program_files
from envbuild.node.build import build_dir, diagnose, job_server, proof
from envbuild.node.build import environment as build_environ
from envbuild.node.build.programs import editable
from envbuild.node.logs import progress
from envbuild.node.packages import installed, uv
from envbuild.node.protocol import Json, NodeError, log, plural

DEADLINE = 4 * 3600.0  # seconds; an old Apex takes 45 minutes on two cores
_PROGRAMS = "envbuild.node.build.programs"
# What gcc and clang, nvcc, ninja and distutils say when a program below them was killed.
_KILLED = re.compile(
    r"Killed signal terminated program|internal compiler error: Killed|died due to signal 9"
    r"|command failed due to signal.*[Kk]illed|fatal error: Killed|\[code=137\]"
    r"|terminated by signal 9|exit (?:code|status) (?:-9|137)\b|Signals\.SIGKILL"
)
_TIME = time.gmtime(paths.EPOCH)[:6]
_STRIP_DEADLINE = 300.0


class Options(NamedTuple):
    """How to build, and with what.

    `tool`: uv with its caches and folders. `budget`: the compile jobs, which other builds may share. `variables`: the
    variant's environment. `arch_list`: TORCH_CUDA_ARCH_LIST as a list. `cuda_home`: the toolkit. `view`: makes, in the
    folder that it is given, what the build sees of the environment, and returns its interpreter (None: it sees all).
    `anew`: without ccache, which gives back what an earlier build has compiled.
    """

    tool: uv.Uv
    budget: job_server.Budget
    variables: Json = {}
    arch_list: list[str] = []
    cuda_home: str | None = None
    view: Callable[[str], str] | None = None
    anew: bool = False


def build_wheel(python: str, source: Json, project: str, out: str, options: Options) -> Json:
    """Build `source`, whose checked and patched tree holds the folder `project`, into a wheel in the folder `out`.

    `python`: the environment's interpreter, by the path in the environment. The tree is copied and left as it is.
    Result: `wheel` (path), `sha256`, `route` (`setup.py` or `pep517`), `seconds`, `jobs` (compile jobs at once),
    `extensions` (import names), `arch` (as `proof.architectures`), `network` (`off` or `on: why`), `ccache`,
    `retried` (something of this source was killed for memory and ran once more), `canonical` (built at the canonical
    path).

    Raises NodeError `build-failed`, `extensions-missing`, `arch-missing` (exit 4), `disk-full` (75).
    """
    return _Build(python, source, project, out, options).run()


def build_all(calls: Mapping[str, Callable[[job_server.Budget], object]], jobs: int | None = None) -> None:
    """Run one call for each source at once, under one budget that each gets.

    A call builds with `Options(budget=...)`, or takes a wheel from the store. All end before this returns; raises what
    the first one that failed raised.
    """
    with job_server.Budget(jobs) as budget:

        def run(name: str) -> None:
            try:
                calls[name](budget)
            finally:
                budget.forget(name)

        budget.expect(calls)
        progress(f"compiling {', '.join(calls)}", ask=budget.progress)
        proc.pool_map(run, list(calls), len(calls))


def route(project: str) -> str:
    """`setup.py` (there is one and no backend but setuptools) or `pep517`."""
    if not os.path.isfile(os.path.join(project, "setup.py")):
        return "pep517"
    backend, in_tree = editable.backend(project)
    return "setup.py" if backend.split(":")[0] == "setuptools.build_meta" and not in_tree else "pep517"


class _Build:
    """One build, from its request to its result."""

    def __init__(self, python: str, source: Json, project: str, out: str, options: Options) -> None:
        self.python, self.source, self.name = python, source, source["name"]
        self.what = f"source {self.name}"
        self.inside = os.path.normpath(source["path"]) if source.get("path") else ""
        self.tree = os.path.normpath(project)
        for _ in self.inside.split("/") if self.inside else ():
            self.tree = os.path.dirname(self.tree)
        self.out, self.options, self.budget = out, options, options.budget
        self.build = source.get("build") or {}
        self.flags = git_source.option_flags(self.build.get("flags") or [])
        self.jobs = options.budget.limit(float(self.build.get("memory_per_job") or job_server.MEMORY_PER_JOB))
        self.route = route(project)
        self.environment = os.path.dirname(os.path.dirname(os.path.abspath(python)))
        self.retried = False

    def run(self) -> Json:
        begun = time.monotonic()
        self.prefix, network = build_environ.no_network()
        jobs = self.jobs
        log(f"building {self.name} ({self.route}, {plural(jobs, 'job')})")
        os.makedirs(self.out, exist_ok=True)
        wheel, report, canonical = self._once()
        seconds = time.monotonic() - begun
        sites = [os.path.join(self.environment, site) for site in installed.site_packages(self.environment)]
        result = {
            "wheel": wheel,
            "sha256": hashing.digest_of(wheel),
            "route": self.route,
            "seconds": round(seconds, 2),
            "jobs": jobs,
            "extensions": self._prove(wheel, report),
            "arch": proof.architectures(wheel, self.options.arch_list, self.options.cuda_home, sites),
            "network": network,
            "ccache": self.ccache,
            "retried": self.retried,
            "canonical": canonical,
        }
        log(f"built {os.path.basename(wheel)} in {seconds:.1f} s")
        return result

    def _once(self) -> tuple[str, Json, bool]:
        """The wheel, the report of setup.py, and whether it was built at the canonical path."""
        name = f"{self.name}-{self.source['commit'][:12]}"
        with build_dir.folder(name, paths.size_of(self.tree), self.options.tool.tmp) as (folder, canonical):
            work = _Work(folder)
            build_dir.copy(self.tree, work.tree)
            build_dir.date_headers(self.environment)
            if self.options.view is None:
                os.symlink(self.environment, work.environment)
                self.interpreter = os.path.join(work.environment, "bin", os.path.basename(self.python))
            else:
                self.interpreter = self.options.view(work.environment)
            env = self._environ(work)
            done = self._run(work, env)
            if _killed(done):
                # All of it once more, on top of what is compiled: alone, and with half as many jobs.
                self.jobs, self.retried = max(1, self.jobs // 2), True
                log(f"the build of {self.name} was killed for memory: once more, with fewer jobs")
                done = self._run(work, env)
                if _killed(done):
                    raise diagnose.failure(self.what, "a compiler was killed again: there is too little memory")
            report = paths.read_json(work.report) or {}
            diagnose.write_down(self.what, done.out + done.err)
            if not done.ok:
                raise self._failed(done, report)
            wheels = [name for name in sorted(os.listdir(work.out)) if name.endswith(".whl")]
            if len(wheels) != 1:
                raise diagnose.failure(self.what, f"the build made {len(wheels)} wheels")
            wheel = _settle(os.path.join(work.out, wheels[0]), self.out, self.tools.strip, work.tmp)
            return wheel, report, canonical

    def _environ(self, work: _Work) -> dict[str, str]:
        own, options = self.build.get("environment") or {}, self.options
        programs = os.path.dirname(self.interpreter) if options.view else None
        given = (options.variables, own, options.arch_list, options.cuda_home)
        extra = build_environ.variables(self.environment, *given, programs=programs)
        env = options.tool.environ(dict(extra, TMPDIR=work.tmp, **build_environ.no_repository(work.path)))
        self.tools = build_environ.look(env, options.cuda_home)
        places = {os.path.realpath(work.tree): "src/" + self.name, self.environment: "env", work.environment: "env"}
        env.update(build_environ.equal_files(env, self.tools, places))
        env.update(build_environ.shared_runtime(env, work.runtime))
        if options.anew:
            env["CCACHE_DISABLE"] = "1"
        cached = build_environ.cached(env, self.tools, os.path.join(work.path, "ccache"))
        self.ccache = bool(cached)
        env.update(cached)
        return env

    def _run(self, work: _Work, env: dict[str, str]) -> proc.Finished:
        project, jobs = os.path.join(work.tree, self.inside), self.jobs
        alone = self.route == "pep517" or jobs < self.budget.limit() or not _takes_bytes(env)
        env = dict(env, MAX_JOBS=str(jobs), CMAKE_BUILD_PARALLEL_LEVEL=str(jobs))
        if self.route == "pep517":
            words, cwd = [self.options.tool.program, "build", "--wheel", "--no-build-isolation"], work.tmp
            words += ["--python", self.interpreter, "--no-index", "--out-dir", work.out]
            words += ["-C--build-option=" + flag for flag in self.flags] + [project]
        else:
            request = {"flags": self.flags, "out": work.out, "report": work.report, "jobs": jobs}
            file = os.path.join(work.path, "request.json")
            paths.write_json(file, dict(request, name=self.name, fifo=None if alone else self.budget.fifo))
            words, cwd = [self.interpreter, work.program("setup_py"), file], project
        guard = self.prefix + [self.python, "-I", "-S", work.program("guard")]
        with self.budget.build(self.name, alone):
            self.budget.at_work[self.name] = (project, work.report)
            try:
                return proc.run(guard + words, timeout=DEADLINE, env=env, cwd=cwd)
            finally:
                del self.budget.at_work[self.name]

    def _failed(self, done: proc.Finished, report: Json) -> NodeError:
        text = done.out + "\n" + done.err
        flags = report.get("unread")
        if flags:
            flag = "flag" if len(flags) == 1 else "flags"
            why = f"its setup.py at this commit does not know the {flag} {' '.join(flags)}"
            return diagnose.missing(f"the wheel of {self.what}", why)
        if paths.says_full(text):
            return paths.full_disk(self.options.tool.tmp, uv.tail(text))
        if done.timed_out:
            return diagnose.failure(self.what, f"timed out after {DEADLINE // 60:.0f} minutes")
        what = f"extension {report['failed']}:\n" if report.get("failed") else ""
        log(uv.tail(text, 400))
        return diagnose.of_output(self.what, text, what)

    def _prove(self, wheel: str, report: Json) -> list[str]:
        """Import names of the wheel's extensions; raises when one that setup.py or the stack names is not there."""
        present = proof.modules(wheel)
        wanted = [extension["name"] for extension in report.get("extensions", []) if not extension["optional"]]
        wanted += self.build.get("extensions") or []
        missing = sorted({name for name in wanted if name not in present})
        if missing:
            os.unlink(wheel)
            has = ", ".join(sorted(present)) or "no extension at all"
            why = f"it holds no {', '.join(missing)}; it holds {has}"
            raise diagnose.missing(f"the wheel of {self.what}", why, missing)
        return sorted(present)


def _takes_bytes(env: dict[str, str]) -> bool:
    """Whether the ninja of a build takes bytes of the job server: it does since 1.13. Without one nothing is lost."""
    program = shutil.which("ninja", path=env.get("PATH", os.defpath))
    version = re.match(r"(\d+)\.(\d+)", proc.run([program, "--version"], env=env).out) if program else None
    return version is None or (int(version.group(1)), int(version.group(2))) >= (1, 13)


def _killed(done: proc.Finished) -> bool:
    """Whether something of a build died for memory: compilers themselves end with 1 when a program below them did."""
    return not done.ok and (done.rc in (137, 247) or _KILLED.search(done.out) is not None)


class _Work:
    """The folders of one build, and the programs in it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.tree = os.path.join(path, "src")
        self.environment = os.path.join(path, "env")
        self.tmp = os.path.join(path, "tmp")
        self.runtime = os.path.join(path, "runtime")
        self.out = os.path.join(path, "out")
        self.report = os.path.join(path, "report.json")
        for folder in (self.runtime, self.tmp, self.out):
            os.mkdir(folder)
        program_files.write(_PROGRAMS, path)

    def program(self, name: str) -> str:
        return os.path.join(self.path, name + ".py")


def _settle(wheel: str, out: str, strip: str | None, scratch: str) -> str:
    """Write `wheel` into the folder `out` under its own name: stripped, its members sorted and dated 1980.

    `strip`: the program, None to leave symbols in. `scratch`: an existing folder. RECORD is written anew. Returns the
    path; raises OSError, zipfile.BadZipFile.
    """
    target = os.path.join(out, os.path.basename(wheel))
    temporary = target + ".new"
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        names = sorted({name for name in source.namelist() if not name.endswith("/")}, key=_order)
        record = next(name for name in names if name.count("/") == 1 and name.endswith(".dist-info/RECORD"))
        objects = set(proof.modules(wheel).values())
        rows = []
        for name in names:
            if name == record:
                continue
            data = source.read(name)
            if name in objects and strip is not None:
                data = _stripped(data, strip, scratch)
            rows.append((name, "sha256=" + hashing.for_record(hashlib.sha256(data).hexdigest()), str(len(data))))
            _add(archive, name, data, source.getinfo(name).external_attr >> 16)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows + [(record, "", "")])
        _add(archive, record, text.getvalue().encode("utf-8"), 0o644)
    os.rename(temporary, target)
    return target


def _order(name: str) -> tuple[bool, bool, str]:
    """The package before its metadata, RECORD last."""
    return (".dist-info/" in name, name.endswith(".dist-info/RECORD"), name)


def _add(archive: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    entry = zipfile.ZipInfo(name, _TIME)
    entry.create_system = 3
    entry.external_attr = (0o100755 if mode & 0o111 else 0o100644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, data)


def _stripped(data: bytes, strip: str, scratch: str) -> bytes:
    """A shared object without the symbols that loading it does not need; as it was when `strip` refuses it."""
    path = os.path.join(scratch, "object.so")
    with open(path, "wb") as stream:
        stream.write(data)
    try:
        done = proc.run([strip, "--strip-unneeded", path], timeout=_STRIP_DEADLINE)
        if not done.ok:
            return data
        with open(path, "rb") as stream:
            return stream.read()
    finally:
        os.unlink(path)


def compare(one: str, other: str) -> Json:
    """`equal`: two wheels have the same name and bytes; `different`: members that differ or that only one has."""
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        both = set(first.namelist()) & set(second.namelist())
        different = set(first.namelist()) ^ set(second.namelist())
        different.update(name for name in both if first.read(name) != second.read(name))
    same = os.path.basename(one) == os.path.basename(other) and hashing.digest_of(one) == hashing.digest_of(other)
    return {"equal": same and not different, "different": sorted(different)}
