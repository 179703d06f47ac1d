"""The verb `container`: an image on this node instead of an environment.

`look` says what is there, `install` takes an image in, tests it and writes the launcher, `ask` runs a verb of this
program inside the image in use. No image has this program: it goes in by standard input.
Nodes of jobs share a prefix: there one host does `take`, each node `try`, one `accept`.
The record `<prefix>/images/<stack>.json` is written last: without it, nothing counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import uuid

from envbuild.node import facts as probe
from envbuild.node import hashing, lease, paths, proc, program_files, protocol, variables
from envbuild.node.image import load, runtimes
from envbuild.node.protocol import Exit, Json, NodeError, utc_time

TIMEOUT = 4 * 3600.0
# s that a runtime has to end its container: a client of podman or docker that is killed leaves it behind.
_GRACE = 30.0
_RECORDED = ("stack", "id", "name", "runtime", "program", "key", "planned", "environment", "cuda")


def run(request: Json) -> tuple[bool, Json]:
    """Do `args.action`; see docs/images.md. Raises NodeError; see the functions."""
    args, prefix = request["args"], request["prefix"]
    args["stack"] = paths.checked_name(args.get("stack"), "stack")
    args["prefix"] = prefix
    action = str(args.get("action"))
    looks = {"look": _look, "ask": _ask_recorded, "try": _try}
    if action in looks:
        return False, looks[action](args, prefix)
    changes = {"install": _install, "take": _take, "accept": _accept}
    if action not in changes:
        raise NodeError("request-invalid", f"`container` has no action {action[:80]!r}")
    paths.make_dirs(prefix, "images", "bin")
    with lease.during(request) as held:
        result = changes[action](args, prefix, held)
        held.check()
    return True, result


def _look(args: Json, prefix: str) -> Json:
    """Brief facts of the node, which Python this is, and what it says of containers."""
    _, facts = probe.run({"prefix": prefix, "args": {"node": args.get("node"), "brief": True}})
    python = {"path": sys.executable, "version": "%d.%d.%d" % sys.version_info[:3]}
    return {"facts": facts, "python": python, "containers": runtimes.look(args["stack"], prefix)}


def _install(args: Json, prefix: str, held: lease.Lease) -> Json:
    """Load, test inside, write launcher and record. A test that fails leaves the image in use as it was.

    Raises NodeError: those of `load.load`, `image-does-not-run` (exit 1).
    """
    kept = False
    try:
        image, file = load.load(args, prefix)
        result = _tested(args, image)
        if result["ok"]:
            held.check()
            result["launcher"] = _finish(args, prefix, image, file, result.get("verify") or {})
    except protocol.Interrupted:
        kept = True  # where only the connection is gone, this step is begun again
        raise
    else:
        return result
    finally:
        # It is loaded, or it was not the right one; another run sends it again.
        if not kept and args.get("archive") and os.path.exists(args["archive"]):
            os.unlink(args["archive"])


def _tested(args: Json, image: str) -> Json:
    """What `asks` gave inside the image, up to the first that found something wrong."""
    command = _named(args["command"], image)
    result: Json = {"id": args["id"], "runtime": args["runtime"], "ok": True}
    for verb in ("verify", "smoke"):
        if verb in args["asks"]:
            result[verb] = _ask(command, args, verb, args["asks"][verb])
            if not result[verb].get("ok", True):
                result.update(ok=False, exit=result[verb].get("exit", Exit.CHECK_FAILED))
                break
    return result


def _named(command: list[str], image: str) -> list[str]:
    return [image if word == "{image}" else word for word in command]


def _here(command: list[str]) -> list[str]:
    """With who calls, and the name that Slurm has for this node, where the runtime has to be told."""
    command = [word.replace("{caller}", "%d:%d" % (os.geteuid(), os.getegid())) for word in command]
    if "{node}" not in command:
        return command
    name = os.environ.get("SLURMD_NODENAME")
    if not name:
        raise NodeError(
            "container-needs-job",
            "the image runs through pyxis, and this is not a Slurm job",
            hint="run it in a job; `envbuild smoke` submits one",
        )
    return [name if word == "{node}" else word for word in command]


def _take(args: Json, prefix: str, _held: lease.Lease) -> Json:
    """Make the file of the image on a prefix that nodes of jobs share. It is of no use to anybody before `accept`."""
    _, file = load.load(args, prefix)
    return {"ok": True, "file": file}


def _try(args: Json, prefix: str) -> Json:
    """Test inside, as one of the nodes that share the prefix; nothing that they share changes.

    Raises NodeError `image-damaged` (exit 5), those of `load.load`, `image-does-not-run` (exit 1).
    """
    if args["runtime"] in ("podman", "docker"):
        image, _ = load.load(args, prefix)
        if image != args["id"]:
            raise NodeError(
                "not-yet-supported",
                "docker on this node has its own image id, and the nodes of a job must share one",
                why="docker keeps images in containerd's store, which uses the ids of manifests",
                hint='turn this store off ("features": {"containerd-snapshotter": false} in daemon.json), or another '
                "`runtime`",
            )
        return _tested(args, image)
    path, wanted = args["file"]["path"], args["file"].get("sha256")
    digest = hashing.digest_if_readable(path)
    if digest is None or (wanted is not None and digest != wanted):
        raise NodeError(
            "image-damaged",
            f"{path} is missing or damaged",
            why=f"its sha256 is {(digest or 'none')[:12]} here, the built file has {(wanted or 'some')[:12]}",
            hint="`envbuild provision --repair` builds it again",
        )
    return dict(_tested(args, path), file={"path": path, "bytes": os.stat(path).st_size, "sha256": digest})


def _accept(args: Json, prefix: str, _held: lease.Lease) -> Json:
    """Launcher and record for all nodes that share the prefix, after they have tested."""
    image = args["file"]["path"] if args.get("file") else args["id"]
    return {"ok": True, "launcher": _finish(args, prefix, image, args.get("file"), args["verify"])}


def _finish(args: Json, prefix: str, image: str, file: Json | None, verify: Json) -> str:
    """The launcher, then the record; the path of the launcher."""
    path = os.path.join(prefix, "bin", args["stack"])
    text = args["launcher"].replace("{image}", image).encode("utf-8")
    paths.write_atomic(path, text)
    os.chmod(path, 0o755 & ~paths.umask())
    record = dict(
        {key: args[key] for key in _RECORDED},
        version=runtimes.RECORD_VERSION,
        digest=args.get("digest"),
        runtime_version=args.get("runtime_version"),
        command=_named(args["command"], image),
        inside=args["inside"],
        file=file,
        called=None if file else image,
        root=verify.get("root"),
        base_packages=verify.get("base_packages") or {},
        launcher={"path": path, "sha256": hashing.digest_of(path)},
        installed_at=utc_time(),
    )
    if args.get("nodes"):
        record["nodes"] = args["nodes"]  # those that tested it in a job
    paths.write_json(runtimes.record_path(prefix, args["stack"]), record)
    return path


def _ask_recorded(args: Json, prefix: str) -> Json:
    """`args.verb` inside the image in use, and whether that is still what was recorded.

    Raises NodeError `image-none` (exit 1) where no image of the stack is in use, and as `_ask`.
    """
    record = runtimes.read_record(prefix, args["stack"])
    if record is None:
        raise NodeError(
            "image-none",
            f"no image of {args['stack']} is in use under {prefix}",
            hint="`envbuild provision` installs one",
        )
    checks = [_image_check(record), _file_check("image/launcher", record["launcher"], "written")]
    result: Json = {"record": record, "checks": checks}
    if checks[0]["status"] == "passed":
        request = dict(args["request"], environment=record.get("environment"))
        if args["verb"] == "smoke":
            request.update(cuda=bool(record.get("cuda")))
        within = dict(args, inside=record["inside"], environment=record["environment"])
        asked = _ask(record["command"], within, args["verb"], request)
        result.update({key: value for key, value in asked.items() if key != "checks"})
        result["checks"] = checks + list(asked.get("checks") or ())
        if args["verb"] == "verify":
            # RECORD says nothing of the tree of a source; the root of when the image was brought does.
            root, before = asked.get("root"), record.get("root")
            good = root is not None and root == before
            says = f"root {root!s:.12}, {'as' if good else f'{before!s:.12}'} when the image was brought"
            result["checks"].append(_check("image/root", good, says))
    result["ok"] = all(check["status"] != "failed" for check in result["checks"])
    if not result["ok"]:
        result.setdefault("exit", Exit.CHECK_FAILED)
    return result


def _image_check(record: Json) -> Json:
    if record.get("file"):
        return _file_check("image/id", record["file"], "made")
    good = runtimes.present(record)
    has, more = ("the", "") if good else ("no", " any more")
    return _check("image/id", good, f"{record['runtime']} has {has} image {record['id']:.12}{more}")


def _file_check(name: str, file: Json, how: str) -> Json:
    good = hashing.digest_if_readable(file["path"]) == file["sha256"]
    return _check(name, good, f"{file['path']} is {f'as it was {how}' if good else 'not there or was changed'}")


def _check(name: str, good: bool, says: str) -> Json:
    return {"name": name, "status": "passed" if good else "failed", "says": says}


def _endable(command: list[str]) -> tuple[list[str], list[str]]:
    """The command with a name for its container, and what ends that; nothing where a runtime starts a mere process.

    podman and docker forward no signal to a container that they are still starting.
    """
    if command[1:2] != ["run"] or os.path.basename(command[0]) not in ("podman", "docker"):
        return command, []
    name = f"envbuild-{uuid.uuid4().hex[:12]}"
    return command[:2] + ["--name", name] + command[2:], [command[0], "rm", "--force", name]


def _end(command: list[str]) -> None:
    """Run what ends a container; not with `proc`, which starts nothing any more once this program is told to stop."""
    nothing = subprocess.DEVNULL
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(command, stdin=nothing, stdout=nothing, stderr=nothing, timeout=_GRACE)


def _ask(command: list[str], args: Json, verb: str, asked: Json) -> Json:
    """The result of a verb of the node program inside the image. Raises NodeError `image-does-not-run` (exit 1)."""
    inside = args["inside"]
    request = {"protocol": protocol.PROTOCOL, "verb": verb, "run": "container", "prefix": inside, "args": asked}
    words = program_files.carried(f"{args['environment']}/bin/python", verb)
    if "{node}" not in command:  # what a step of Slurm has, Slurm says
        words = variables.same_gpus(os.environ) + words
    env = proc.clean_env({"SLURM_LABELIO": None})  # labels of an srun around this would be in the answer
    command, end = _endable(_here(command))
    try:
        done = proc.run(command + words, timeout=TIMEOUT, env=env, stdin=program_files.sent(request), grace=_GRACE)
    except BaseException:
        if end:
            _end(end)
        raise
    for line in reversed(done.out.splitlines()):
        if line.startswith('{"protocol":'):
            answer = json.loads(line)
            if answer["ok"]:
                return dict(answer["result"])
            error = answer["error"]
            raise NodeError(
                error["code"], "in the image: " + error["what"], error.get("why", ""), error.get("hint", ""),
                int(error.get("exit", Exit.CHECK_FAILED)), error.get("details"),
            )  # fmt: skip
    raise NodeError(
        "image-does-not-run",
        "the node program gave no answer in a container",
        why=(done.err or done.out).strip()[-800:],
        hint="`options` in the `container:` section of the target go to the runtime unchanged: check them",
        details={"command": command + words},
    )
