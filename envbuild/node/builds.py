"""Makes a fetched source usable in its environment: wheel, editable, path, and extensions built in place."""

import os
import tempfile

from envbuild.node import paths, proc, record, sources, uv
from envbuild.node.protocol import Exit, NodeError, log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_EPOCH = "315532800"  # 1980-01-01, the earliest date that a zip archive can hold


def build_folder(tmp: "str", source: "dict[str, Any]") -> "str":
    """A new private folder for a wheel build, under one name where that is free: compilers write paths into files."""
    usual = os.path.join(tmp, "build-%s-%s" % (source["name"], source["commit"][:12]))
    try:
        os.mkdir(usual, 0o700)
    except FileExistsError:
        return tempfile.mkdtemp(prefix=os.path.basename(usual) + "-", dir=tmp)
    return usual


def install(
    tool: "uv.Uv", environment: "str", source: "dict[str, Any]", folder: "str", variables: "dict[str, Any]"
) -> "None":
    """Install the checked tree at `folder` as the lock says; packages of the lock must be installed already.

    `variables` are the variant's environment: a build sees those that are plain text. Raises NodeError
    `build-failed` (exit 4) with the end of the output, or what `uv.failure` makes of it.
    """
    how = source.get("install", "wheel")
    project = os.path.join(folder, source["path"]) if source.get("path") else folder
    if not os.path.isdir(project):
        raise _failed(source, "it has no folder %s" % source["path"])
    build = source.get("build") or {}
    flags = sources.option_flags(build.get("flags") or [])
    extra = build_environment(tool, environment, variables)
    extra.update(_without_places(folder, source["name"], extra))
    log("installing source %s (%s)" % (source["name"], how))
    if build.get("kind") == "inplace":
        _in_place(tool, environment, source, project, flags, extra)
    if how == "path":
        _add_path(environment, source, project)
    elif how == "editable":
        args = ["pip", "install", "--python", _python(environment), "--no-deps", "--no-build-isolation", "--no-index"]
        _uv(tool, args + ["--no-cache", "-e", project], source, extra, environment)
    else:
        _wheel(tool, environment, source, project, flags, extra)


def _python(environment: "str") -> "str":
    return os.path.join(environment, "bin", "python")


def build_environment(tool: "uv.Uv", environment: "str", variables: "dict[str, Any]") -> "dict[str, str | None]":
    """Variables of a build: the environment's own programs first, the stack's variables, nothing that varies."""
    extra = {name: value for name, value in variables.items() if isinstance(value, str)}  # type: dict[str, str | None]
    extra.update(
        PATH=os.path.join(environment, "bin") + ":" + os.environ.get("PATH", "/usr/bin:/bin"),
        VIRTUAL_ENV=environment,
        SOURCE_DATE_EPOCH=_EPOCH,
        PYTHONHASHSEED="0",
        TMPDIR=tool.tmp,
    )
    return extra


def _without_places(folder: "str", name: "str", extra: "dict[str, str | None]") -> "dict[str, str | None]":
    """Compiler flags that keep the build's folder out of debug information, so that two builds give equal files."""
    if len(folder.split()) != 1 or "=" in folder:
        return {}
    flag = "-fdebug-prefix-map=%s=/envbuild/src/%s" % (folder, name)
    before = {key: extra.get(key) or os.environ.get(key, "") for key in ("CFLAGS", "CXXFLAGS")}
    return {key: (value + " " + flag).strip() for key, value in before.items()}


def _failed(source: "dict[str, Any]", why: "str") -> "NodeError":
    return NodeError(
        "build-failed",
        "source %s could not be built" % source["name"],
        why=why,
        hint="its build tools must be packages of the lock; the whole output is in the node's log",
        exit_code=Exit.BUILD_FAILED,
        changed=True,
    )


def _uv(
    tool: "uv.Uv",
    args: "list[str]",
    source: "dict[str, Any]",
    extra: "dict[str, str | None]",
    environment: "str",
) -> "None":
    done = tool.run(args, extra)
    if done.ok:
        return
    log(uv.tail(done.out + done.err, 400))
    error = uv.failure(done, "building source %s" % source["name"], environment)
    raise error if error.exit_code != Exit.BUILD_FAILED else _failed(source, error.why)


def _in_place(
    tool: "uv.Uv",
    environment: "str",
    source: "dict[str, Any]",
    project: "str",
    flags: "list[str]",
    extra: "dict[str, str | None]",
) -> "None":
    had_build = os.path.lexists(os.path.join(project, "build"))
    argv = [_python(environment), "setup.py", "build_ext", "--inplace"] + flags
    done = proc.run(argv, timeout=uv.DEADLINE, env=tool.environ(extra), cwd=project)
    if not done.ok:
        log(uv.tail(done.out + done.err, 400))
        if "No space left on device" in done.err:
            raise paths.full_disk(project, uv.tail(done.err))
        raise _failed(source, uv.tail(done.out + "\n" + done.err))
    if not had_build:
        paths.remove_tree(os.path.join(project, "build"))


def _add_path(environment: "str", source: "dict[str, Any]", project: "str") -> "None":
    for site in record.site_packages(environment):
        path = os.path.join(environment, site, "envbuild-source-%s.pth" % source["name"])
        paths.write_atomic(path, os.fsencode(project) + b"\n")


def _wheel(
    tool: "uv.Uv",
    environment: "str",
    source: "dict[str, Any]",
    project: "str",
    flags: "list[str]",
    extra: "dict[str, str | None]",
) -> "None":
    out = tempfile.mkdtemp(prefix="wheel-", dir=tool.tmp)
    args = ["build", "--wheel", "--no-build-isolation", "--python", _python(environment), "--out-dir", out]
    args += ["-C--build-option=" + flag for flag in flags]
    _uv(tool, args + ["--no-index", project], source, extra, environment)
    wheels = [name for name in os.listdir(out) if name.endswith(".whl")]
    if len(wheels) != 1:
        raise _failed(source, "the build made %d wheels" % len(wheels))
    args = ["pip", "install", "--python", _python(environment), "--no-deps", "--no-index", "--link-mode", "copy"]
    # Never from the cache: the same version may have been built from another commit before.
    _uv(tool, args + ["--reinstall", "--no-cache", os.path.join(out, wheels[0])], source, extra, environment)
