"""Builds one source into a wheel: in a clean copy at one path, its extensions in parallel, and proves what came out.

Two routes: our driver runs setup.py (which delivers flags for certain, whatever pip would do with them), everything
else goes through PEP 517. Torch and all build tools are packages of the environment; nothing is isolated or fetched.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from envbuild.node import git_source, hashing, paths, proc, program_files
from envbuild.node.build import build_dir, diagnose, job_server, normalize_wheel, proof
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


class Options(NamedTuple):
    """How to build, and with what.

    `tool`: uv with its caches and folders. `variables`: the variant's environment. `build`: the source's `build`
    (default: that of the source itself). `arch_list`: TORCH_CUDA_ARCH_LIST as a list. `cuda_home`: the toolkit.
    `jobs`: compile jobs at once (default: from cores and memory). `view`: makes, in the folder that it is given, what
    the build sees of the environment, and returns its interpreter (None: it sees all). `budget`: one that is open
    already, for several sources; then `jobs` is its business. `anew`: without ccache, which gives back what an earlier
    build has compiled.
    """

    tool: uv.Uv
    variables: Json = {}
    build: Json | None = None
    arch_list: list[str] = []
    cuda_home: str | None = None
    jobs: int | None = None
    view: Callable[[str], str] | None = None
    budget: job_server.Budget | None = None
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
    if options.budget is None:
        with job_server.Budget(options.jobs) as budget:
            return _Build(python, source, project, out, options, budget).run()
    return _Build(python, source, project, out, options, options.budget).run()


def build_all(calls: Mapping[str, Callable[[job_server.Budget], object]], jobs: int | None = None) -> None:
    """Run one call for each source at once, under one budget that each gets.

    A call builds with `Options(budget=...)`, or takes a wheel from the store. All end before this returns; raises what
    the first one (in order) that failed raised.
    """
    failures: dict[str, BaseException] = {}

    def run(name: str, call: Callable[[job_server.Budget], object], budget: job_server.Budget) -> None:
        try:
            call(budget)
        except BaseException as error:  # noqa: BLE001 - it is raised again, in the caller's thread
            failures[name] = error

    with job_server.Budget(jobs) as budget:
        progress(f"compiling {', '.join(calls)}", ask=budget.told)
        proc.parallel([partial(run, name, call, budget) for name, call in calls.items()])
    for name in calls:
        if name in failures:
            raise failures[name]


def route(project: str) -> str:
    """`setup.py` (there is one and no backend but setuptools) or `pep517`."""
    if not os.path.isfile(os.path.join(project, "setup.py")):
        return "pep517"
    backend, in_tree = editable.backend(project)
    return "setup.py" if backend.split(":")[0] == "setuptools.build_meta" and not in_tree else "pep517"


class _Build:
    """One build, from its request to its result."""

    def __init__(
        self, python: str, source: Json, project: str, out: str, options: Options, budget: job_server.Budget
    ) -> None:
        self.python, self.source, self.name = python, source, source["name"]
        self.what = f"source {self.name}"
        self.inside = os.path.normpath(source["path"]) if source.get("path") else ""
        self.tree = os.path.normpath(project)
        for _ in self.inside.split("/") if self.inside else ():
            self.tree = os.path.dirname(self.tree)
        self.out, self.options, self.budget = out, options, budget
        self.build = (options.build if options.build is not None else source.get("build")) or {}
        self.flags = git_source.option_flags(self.build.get("flags") or [])
        self.jobs = budget.limit(float(self.build.get("memory_per_job") or job_server.MEMORY_PER_JOB))
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
        with build_dir.Folder(name, paths.size_of(self.tree), self.options.tool.tmp) as folder:
            work = _Work(folder.path)
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
            wheels = [each for each in sorted(os.listdir(work.out)) if each.endswith(".whl")]
            if len(wheels) != 1:
                raise diagnose.failure(self.what, f"the build made {len(wheels)} wheels")
            wheel = normalize_wheel.settle(os.path.join(work.out, wheels[0]), self.out, self.tools.strip, work.tmp)
            return wheel, report, folder.canonical

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
            paths.write_json(file, dict(request, fifo=None if alone else self.budget.fifo))
            words, cwd = [self.interpreter, work.program("setup_py"), file], project
        guard = self.prefix + [self.python, "-I", "-S", work.program("guard")]
        with self.budget.build(alone):
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
            return self._missing(f"its setup.py at this commit does not know the {flag} {' '.join(flags)}")
        if paths.says_full(text):
            return paths.full_disk(self.options.tool.tmp, uv.tail(text))
        if done.timed_out:
            return diagnose.failure(self.what, f"timed out after {DEADLINE // 60:.0f} minutes")
        what = f"extension {report['failed']}:\n" if report.get("failed") else ""
        log(uv.tail(text, 400))
        return diagnose.of_output(self.what, text, what)

    def _missing(self, why: str, names: list[str] | None = None) -> NodeError:
        return diagnose.missing(f"the wheel of source {self.name}", why, names)

    def _prove(self, wheel: str, report: Json) -> list[str]:
        """Import names of the wheel's extensions; raises when one that setup.py or the stack names is not there."""
        there = normalize_wheel.modules(wheel)
        wanted = [each["name"] for each in report.get("extensions", []) if not each["optional"]]
        wanted += self.build.get("extensions") or []
        missing = sorted({name for name in wanted if name not in there})
        if missing:
            os.unlink(wheel)
            has = ", ".join(sorted(there)) or "no extension at all"
            raise self._missing(f"it holds no {', '.join(missing)}; it holds {has}", missing)
        return sorted(there)


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
