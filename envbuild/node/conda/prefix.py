"""Makes a prefix out of the locked conda archives with rattler.

The archives come from the folder of what was delivered, a local channel, or are fetched; each is hashed. They are
looked into first, then installed as copies, then made equal.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from functools import partial

from envbuild.node import hashing, paths, pip_config, proc, program_files, redact
from envbuild.node.conda import activation, layout, meta
from envbuild.node.protocol import Exit, Json, NodeError, log, plural

_AT_ONCE = 8
_DEADLINE = 3600.0
_SCRIPT_DEADLINE = 600.0
_SYSTEM_PATH = "/usr/bin:/bin"
# Nothing of the user: no configuration and no credentials have a part in this.
_ENVIRON = {"PATH": _SYSTEM_PATH, "LC_ALL": "C.UTF-8"}


def bring(packages: list[Json], where: Json, folder: str) -> dict[str, str]:
    """Every archive as a local file with the sha256 of the lock; returns name of the package -> path.

    `where`: `folder` that holds `<channel>/<subdir>/<file>`, or `channels` {name: base addresses}. What has to be
    fetched is written to `folder`. Raises NodeError: `hash-mismatch` (exit 5), `package-not-found`, `index-refused`
    (4), `channel-refused` (7), `conda-config-invalid` (2), `network-unreachable` (75); OSError.
    """
    cert = pip_config.read(os.environ).cert
    files = proc.pool_map(partial(_one, where=where, folder=folder, cert=cert), packages, _AT_ONCE)
    archives = {package["name"]: path for package, path in zip(packages, files)}  # noqa: B905 - strict= is of Python 3.10
    log(f"{plural(len(archives), 'conda archive')} with the hashes of the lock")
    return archives


def _one(package: Json, where: Json, folder: str, cert: str) -> str:
    name = paths.checked_name(package["file"], "file")
    below = f"{package['subdir']}/{name}"
    if where.get("folder"):
        local = [os.path.join(where["folder"], package["channel"], below)]
        remote: list[str] = []
    else:
        bases = (where.get("channels") or {}).get(package["channel"]) or []
        local = [os.path.join(place, below) for place in filter(None, map(pip_config.local_path, bases))]
        remote = [f"{base.rstrip('/')}/{below}" for base in bases if not pip_config.local_path(base)]
    for path in local:
        if os.path.isfile(path):
            _check(package, hashing.digest_of(path))
            return path
    kept = os.path.join(folder, f"{package['sha256'][:12]}-{name}")
    if os.path.isfile(kept) and hashing.digest_of(kept) == package["sha256"]:
        return kept
    failure = NodeError(
        "package-not-found",
        f"{name} of the channel {package['channel']} is not available",
        why="nothing says where the channel is" if not local + remote else "it is not in the channel's folder",
        hint="check that the channel has it; offline, check the bundle",
    )
    for url in remote:
        try:
            return _fetch(package, url, kept, cert)
        except NodeError as error:
            if error.exit_code == Exit.INTEGRITY:
                raise
            failure = error
            if error.details.get("status"):
                failure = NodeError(
                    "channel-refused",
                    f"the channel {package['channel']} denied access to {package['file']}",
                    why=error.why,
                    hint="put its credentials on the node into ~/.netrc or the file that RATTLER_AUTH_FILE names; or "
                    "let the controller fetch with its own: `delivery: controller`",
                )
    raise failure


def _fetch(package: Json, url: str, path: str, cert: str) -> str:
    # Every installation would import an HTTP client for what few ask for.
    from envbuild.node.conda import logins
    from envbuild.node.packages import index_client

    asked, authorization = logins.login(url, os.environ)
    half = f"{path}.part-{threading.get_ident()}"
    try:
        with open(half, "wb") as stream:
            digest, _ = hashing.write(index_client.blocks(asked, cert, authorization), stream)
        _check(package, digest)
        os.rename(half, path)
    finally:
        paths.remove_tree(half)
    return path


def _check(package: Json, digest: str) -> None:
    if digest != package["sha256"]:
        raise NodeError(
            "hash-mismatch",
            f"{package['file']} is not the file that the lock names",
            why=f"its sha256 is {digest}, the lock says {package['sha256']}",
            hint="use another channel or mirror; if the change is intended, run `envbuild lock create STACK`",
        )


def read(tools: Json, tmp: str, files: list[str]) -> Json:
    """What archives say of themselves, by path. `tools` of the request, `tmp` a private folder. Raises NodeError."""
    out = os.path.join(tmp, "archives.json")
    _rattle(tools, tmp, {"action": "read", "archives": files, "out": out})
    with open(out, encoding="utf-8") as stream:
        return dict(json.load(stream))


def _rattle(tools: Json, tmp: str, asked: Json) -> None:
    """Have rattler do what is `asked`, as its program says. Raises NodeError `conda-install-failed`, `disk-full`."""
    env = dict(_ENVIRON, HOME=tmp, TMPDIR=tmp)
    data = json.dumps(dict(asked, rattler=tools["rattler"])).encode("utf-8")
    argv = [tools["rattler_python"], "-I", "-B", "-c", program_files.text("envbuild.node.conda.programs", "rattle")]
    done = proc.run(argv, timeout=_DEADLINE, env=env, cwd=tmp, stdin=data)
    if done.ok:
        return
    why = redact.redact_text(done.err or done.out).strip()[-1500:]
    paths.refuse_full(why, str(asked.get("prefix") or tmp), why)
    raise NodeError(
        "conda-install-failed",
        f"py-rattler could not {asked['action']} the conda packages",
        why=why or "it ended without output",
        hint="see the node's log",
    )


def make(tools: Json, tmp: str, beside: str, variant: Json, where: Json, folder: str, environment: str) -> Json:
    """Install the conda packages of `variant` into `environment`; returns what the result says of them.

    `tools`: of the request, `rattler` (the folder that holds it) and `rattler_python`, which can load it. `tmp`: a
    private folder; `beside`: one on the disk of the environment, whose files are linked to what rattler unpacks there
    until that goes. `where` and `folder`: see `bring`. Raises NodeError `request-invalid`, `conda-install-failed` and
    `conda-script-failed` (exit 4), `disk-full` (75), and as `bring` and `layout.plan` do.
    """
    if not tools.get("rattler") or not tools.get("rattler_python"):
        raise NodeError("request-invalid", "`tools.rattler` and `tools.rattler_python` are missing")
    locked = variant["conda"]["packages"]
    archives = bring(locked, where, folder)
    texts = read(tools, tmp, list(archives.values()))
    contents = {name: texts[path] for name, path in archives.items()}
    plan = layout.plan(locked, contents, variant["python"], environment)
    if _folds_case(tmp):
        plan.check_case()
    log(f"installing {plural(len(locked), 'conda package')}")
    records = []
    for package in locked:
        archive, index = archives[package["name"]], contents[package["name"]]["index"]
        row = {"archive": archive, "size": os.path.getsize(archive), "index": index}
        records.append(dict(row, file=package["file"], sha256=package["sha256"]))
    with tempfile.TemporaryDirectory(prefix="install-rattler-", dir=beside) as cache:
        _rattle(tools, tmp, {"action": "install", "records": records, "prefix": environment, "cache": cache})
    meta.tidy(environment, {package["name"]: package["channel"] for package in locked})
    allowed = set(variant["conda"].get("link_scripts") or ())
    for package in locked:
        if package["name"] in plan.scripts and package["name"] in allowed:
            _run_script(package, plan.scripts[package["name"]], environment)
    return {
        "packages": {package["name"]: f"{package['version']} {package['build']}" for package in locked},
        "link_scripts_skipped": sorted(set(plan.scripts) - allowed),
        "clobbered": sorted(plan.shared),
    }


def _folds_case(folder: str) -> bool:
    """Whether the file system of `folder` takes two names for one that differ in case alone."""
    handle, path = tempfile.mkstemp(prefix="case-", dir=folder)
    os.close(handle)
    try:
        return os.path.exists(os.path.join(folder, os.path.basename(path).upper()))
    finally:
        os.unlink(path)


def _run_script(package: Json, script: str, environment: str) -> None:
    """Run a post-link script that the stack lists, with what conda promises it and nothing of the user's."""
    env = {"PREFIX": environment, "PKG_NAME": package["name"], "PKG_VERSION": package["version"]}
    env.update(PKG_BUILDNUM=package["build"].rpartition("_")[2], CONDA_PREFIX=environment, LC_ALL="C.UTF-8")
    env.update(PATH=f"{environment}/bin:{_SYSTEM_PATH}", HOME=environment)
    log(f"running {script} of {meta.label(package)}")
    argv = [activation.shell(), os.path.join(environment, script)]
    done = proc.run(argv, timeout=_SCRIPT_DEADLINE, env=env, cwd=environment)
    paths.remove_tree(os.path.join(environment, ".messages.txt"))
    if not done.ok:
        raise NodeError(
            "conda-script-failed",
            f"{script} of {meta.label(package)} failed",
            why=redact.redact_text(done.err or done.out).strip()[-1500:],
            hint="remove the package from `link_scripts` if it works without its script",
        )
