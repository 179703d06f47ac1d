"""Builds an environment in place, up to but without its stamp. `activate.py` stamps."""

from __future__ import annotations

import os
import re
import tempfile
import time

from envbuild.node import git_source, lease, merkle, paths, pip_config
from envbuild.node.build import build_dir, patch_sources, pipeline
from envbuild.node.bundle import archive
from envbuild.node.conda import meta
from envbuild.node.env import contents, foundation, packages, stamp, user_files
from envbuild.node.logs import progress
from envbuild.node.packages import installed as record
from envbuild.node.packages import uv
from envbuild.node.protocol import Json, NodeError, argument, log
from envbuild.node.read_text import names
from envbuild.node.wheels import bundled
from envbuild.node.wheels.store import default_path

_TEMPORARY = "envbuild-install"  # begins the names of folders for the files of a build
_INODES_PER_PACKAGE = 20


class _Job:
    """One request, read once: where, what, with which tools, and how long each phase took (seconds)."""

    def __init__(self, request: Json) -> None:
        args = request["args"]
        self.request = request
        self.args = args
        self.run = request["run"]
        self.prefix = request["prefix"]
        self.environment = paths.checked_environment(self.prefix, args.get("environment"))
        self.variant = args["variant"]
        self.locked: list[Json] = args["variant"].get("packages", [])
        self.artifacts = args.get("artifacts") or {}
        self.seconds: dict[str, float] = {}
        self._begun = time.monotonic()

    def take_bundles(self) -> None:
        """Unpack and check the bundles of the request, and take the wheels that were built into the store.

        What the one in `artifacts` holds is then the only place to look at; the one in `build.handed` has only such
        wheels. Raises NodeError as `bundle.archive.unpack` and `wheels.bundled.take_in` do.
        """
        build = self.args["build"] = dict(self.args.get("build") or {})
        given = self.artifacts.get("bundle")
        if given:
            index, folder = self._take(given), paths.delivered(self.prefix, self.variant["digest"])
            build.setdefault("handed", {"by": "the bundle", "keys": bundled.keys_of(index)})
            sources = {name: os.path.join(folder, path) for name, path in self.artifacts["sources"].items()}
            self.artifacts = {"find_links": [os.path.join(folder, "wheels")], "offline": True, "sources": sources}
            self.artifacts["conda"] = {"folder": os.path.join(folder, "conda")}
            self.artifacts["bundle"] = index["digest"]
            self.args["artifacts"] = self.artifacts
        handed = (build.get("handed") or {}).get("bundle")
        if handed:
            self._take(handed)
        if given or handed:
            self.phase("bundle")

    def _take(self, given: Json) -> Json:
        """Unpack a bundle and take in its built wheels; its index."""
        progress("checking the bundle")
        folder = paths.delivered(self.prefix, self.variant["digest"])
        index = archive.unpack(given["file"], folder, given.get("digest"))
        bundled.take_in(self.args["build"].get("store") or default_path(self.prefix), folder, index)
        return index

    def phase(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = round(now - self._begun, 3)
        self._begun = now


def run(request: Json) -> tuple[bool, Json]:
    """Build `args.environment`; returns (changed, result of the contract).

    The lease is kept for the run's next steps when it succeeds and given back when it fails. A stamped environment
    that passes the fast check is left alone: one that is built again is another generation, in a folder of its own.
    Nothing of a failed build stays. Raises NodeError.
    """
    for name in ("variant", "tools"):
        argument(request["args"], name, "an object")
    job = _Job(request)
    paths.make_dirs(job.prefix, "envs")
    held = lease.of_request(request)
    try:
        with held, paths.coded_errors(job.environment):
            return _install(job, held)
    except BaseException:
        held.release()
        raise


def _install(job: _Job, held: lease.Lease) -> tuple[bool, Json]:
    stamped = stamp.read(job.environment)
    if stamped is not None:
        stamp.check_unchanged(job.environment, job.variant)
        log(f"{job.environment} is there and unchanged")
        result = {key: stamped.get(key) for key in ("packages", "base_packages", "conda", "files", "bytes", "sources")}
        return False, dict(result, environment=job.environment, record_checked=0, seconds=job.seconds)
    stands_on = foundation.of(job.request, job.environment)
    packages.check_recorded(job.locked, job.args["stack"])
    git_source.check_pins(job.variant.get("sources") or [])
    for source in job.variant.get("sources") or []:
        patch_sources.specs_of(source, job.args.get("patches") or {})
    own = os.path.join(job.prefix, "tmp")
    _sweep(own)
    _check_space(job)
    job.take_bundles()
    # Not in the block below, which deletes what is there: files of a user may be, that cannot be moved.
    user_files.discard(job.prefix, job.environment)
    tool = _tool(job, own)
    try:
        with paths.coded_errors(job.environment):
            result = _build(job, tool, stands_on)
            held.check()
    except BaseException as error:
        if isinstance(error, NodeError):
            error.changed = True
        if held.held():  # else another run builds there now
            paths.discard(job.environment)
        raise
    finally:
        build_dir.remove(tool.tmp)
        tool.drop_cache()
        uv.close_locks(tool.cache, job.environment)
    return True, result


def _tool(job: _Job, own: str) -> uv.Uv:
    top, asked = job.args.get("tmp") or own, job.args.get("cache")
    for folder in (top, asked or own):
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise paths.not_writable(error, folder) from error
    build_dir.sweep(top, _TEMPORARY)  # the target's own may be that of other prefixes too
    # mkdtemp makes it 0700: nobody else can put a file in the way of a build.
    tmp = tempfile.mkdtemp(prefix=f"{_TEMPORARY}-", dir=top)
    build_dir.sign(tmp)
    # Beside the environment, whose files are linked to it until it goes.
    cache = asked or tempfile.mkdtemp(prefix="install-cache-", dir=own)
    tool = uv.Uv(job.args["tools"]["uv"], cache, tmp, pip_config.read(os.environ), keeps_cache=bool(asked))
    if job.args["tools"].get("uv_sha256"):
        tool.check(job.args["tools"]["uv_sha256"])
    return tool


def _check_space(job: _Job) -> None:
    """Refuse early when the disk cannot hold what the lock says; sizes that are not recorded count as nothing."""
    needed = job.args.get("needed") or {}
    sizes = [min((f["size"] for f in p["files"] if f.get("size")), default=0) for p in job.locked]
    size = needed.get("bytes", sum(sizes) * packages.BYTES_PER_FETCHED)
    inodes = needed.get("inodes", len(sizes) * _INODES_PER_PACKAGE)
    paths.check_room(paths.envs_dir(job.prefix), job.prefix, size, inodes)


def _sweep(own: str) -> None:
    """Delete what killed runs left in `own`: under the lease nobody else builds here."""
    for name in names(own):
        if re.fullmatch(paths.temporary(f"{_TEMPORARY}|install-cache|install-rattler"), name):
            paths.remove_tree(os.path.join(own, name))
    build_dir.sweep(own, "smoke")  # an environment in use is tested without the lease


def _build(job: _Job, tool: uv.Uv, stands_on: foundation.Foundation) -> Json:
    """The order of a build, from the interpreter to the notes that `activate` makes the stamp of."""
    job.phase("checks")
    progress("making the environment's interpreter")
    interpreter = stands_on.make(tool)
    job.phase(stands_on.phase)
    sources = pipeline.Builder(tool, {**job.request, "args": dict(job.args, environment=job.environment)})
    sources.fetch()
    job.phase("sources")
    installer = packages.Installer(tool, job.environment, job.artifacts)
    installer.install(job.locked)
    job.phase("packages")
    required = {}
    if job.args.get("asked") is not None:  # before anything of the packages can run
        required = packages.check_required(job.environment, job.locked, job.args["asked"], interpreter.requires)
    if sources.pins or sources.working_trees:
        sources.patch_and_build()
        job.phase("wheels")
        stands_on.check_added(sources.distributions())
        sources.install()
        sources.prove()
        job.phase("builds")
    tool.drop_cache()
    progress("comparing every file with its RECORD")
    versions = _check_set(job, interpreter)
    made = {"interpreter": interpreter.path, "sources": sources.pins, "trees": sources.working_trees}
    entries, compared = _check_record(job, installer, made)
    job.phase("record")
    result = {
        "environment": job.environment,
        "packages": versions,
        "base_packages": interpreter.packages,
        "files": len(entries),
        "bytes": sum(entry.size for entry in entries.values()),
        "record_checked": compared["checked"],
        "record_wrong": compared["wrong"],
        "overwritten": compared["overwritten"],
        "required": required,
        "sources": sources.rows(),
        "trees": sources.working_trees,
        "seconds": job.seconds,
        **stands_on.facts,
    }
    _note(job, result, interpreter.path, compared["archived"])
    return result


def _note(job: _Job, result: Json, interpreter: str, archived: Json) -> None:
    """Leave for `activate` what the result says, and what only the stamp needs."""
    notes = dict(result, run=job.run, interpreter=interpreter, variant_digest=job.variant["digest"], archived=archived)
    notes["sources"] = patch_sources.for_stamp(result["sources"])
    paths.write_json(paths.meta(job.environment, stamp.INSTALLED), notes)


def _check_set(job: _Job, interpreter: foundation.Interpreter) -> dict[str, str]:
    """What is installed: every package of the lock in its version, and nothing that would hide one of the base."""
    installed = record.installed(job.environment)
    foundation.check_replaces(installed, interpreter.packages)
    for package in job.locked:
        present = installed.get(record.normal_name(package["name"]))
        if not record.same_version(present, package["version"]):
            raise NodeError(
                "record-mismatch",
                f"{package['name']} {package['version']} was installed and says it is {present or 'not there'}",
                hint="the file that the lock names holds another package; check the lock",
            )
    return installed


def _check_record(job: _Job, installer: packages.Installer, made: Json) -> tuple[dict[str, merkle.Entry], Json]:
    """Every file as scanned; how many agree with RECORD, what it is wrong about, and what the archives hold there."""
    entries = contents.scan(job.prefix, job.environment, made)
    checked, doubtful = contents.check(job.environment, entries)
    known, wrong = {}, doubtful
    if doubtful:
        known = installer.archived(job.locked, doubtful)
        checked, wrong = contents.check(job.environment, entries, known)
    if wrong:
        names = sorted({row["package"] for row in wrong})
        tool = installer.tool
        cleaned = not tool.keeps_cache or packages.forget_cached(tool, names)
        first = wrong[0]
        raise NodeError(
            "record-mismatch",
            (f"{first['package']} {first['version']}: {first['path']} is not what its RECORD says ({first['kind']})"),
            why=f"{len(wrong)} of {checked + len(wrong)} files differ from the locked archive",
            hint="run again" if cleaned else f"remove the cache {tool.cache}, then run again",
            details={"files": wrong[:20]},
        )
    contents.keep(paths.meta(job.environment, stamp.SCAN), entries)
    both = record.overwritten(job.environment, entries, meta.distributions(job.environment))
    return entries, {"checked": checked, "wrong": doubtful, "archived": known, "overwritten": both}
