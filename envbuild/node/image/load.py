"""An image comes to this node: a file that the controller sent, or a registry; its id is compared before it is used."""

import hashlib
import json
import os
import tarfile

from envbuild.node import hashing, paths, proc
from envbuild.node.image import image_file, runtimes, unpacking
from envbuild.node.protocol import Json, NodeError

TIMEOUT = 2 * 3600.0
_CONFIG_LIMIT = 16 << 20


def load(args: Json, prefix: str) -> "tuple[str, Json | None]":
    """Make the image usable for the runtime; what its commands call it, and `file` where that is a file.

    It is called by its id, but for docker with containerd's store of images, which knows that of its manifest.

    Raises NodeError `image-damaged`, `image-id-differs` (exit 5), `image-transfer-failed`
    (exit 75), `disk-full`, `image-in-use` (75), `not-writable` (7).
    """
    runtime, program, wanted = args["runtime"], args["program"], args["id"]
    if args.get("archive"):
        # Before anything that is there is taken away.
        check_archive(args)
    if runtime in ("podman", "docker"):
        if args.get("force"):
            _forget(args, program)
        here = runtimes.image_id(program, wanted) == wanted
        return (wanted if here else _bring(args, program)), None
    extension = "sif" if runtime == "apptainer" else "sqsh"
    path = os.path.join(prefix, "images", "%s-%s.%s" % (args["stack"], wanted[:12], extension))
    kept = (runtimes.read_record(prefix, args["stack"]) or {}).get("file") or {}
    recorded = kept.get("sha256") if kept.get("path") == path else None

    def make(half: str) -> None:
        with unpacking.folder(args, prefix) as (_, env):
            _make_file(args, runtime, args.get("maker") or program, half, env)

    return path, image_file.made(path, make, recorded, bool(args.get("force")))


def _forget(args: Json, program: str) -> None:
    """Remove the image, and earlier ones of its name: a layer that any of them has would be kept, damaged or not.

    Raises NodeError `image-in-use` (exit 75): `rmi --force` of podman would end what runs in it.
    """
    name = args["name"].partition("@")[0]
    name = name if ":" not in name.rpartition("/")[2] else name.rpartition(":")[0]
    listed = proc.run([program, "images", "--quiet", "--no-trunc", "--filter", "reference=" + name], timeout=60)
    found = {each.replace("sha256:", "") for each in listed.out.split()} if listed.ok else set()
    for image in sorted(found | {args["id"]}):
        done = proc.run([program, "ps", "--quiet", "--filter", "ancestor=" + image], timeout=60)
        running = done.out.split()
        if running:
            raise NodeError(
                "image-in-use",
                "something runs in the image %s" % image[:12],
                why="containers of %s: %s" % (args["runtime"], ", ".join(running[:5])),
                hint="wait until they have ended, or end them; then run the same command again",
            )
        proc.run([program, "rmi", "--force", image], timeout=600)


def _bring(args: Json, program: str) -> str:
    """Load or pull into the storage of docker or podman; what that calls it. An image with another id is not used."""
    wanted, kept_by_manifest = args["id"], args["runtime"] == "docker" and runtimes.has_containerd_store(program)
    env: dict[str, str | None] = {}
    if args.get("tmp"):  # podman unpacks layers in /var/tmp
        env["TMPDIR"] = args["tmp"]
        with paths.coded_errors(args["tmp"]):
            os.makedirs(args["tmp"], exist_ok=True)
    if args.get("archive"):
        _run([program, "load", "--input", args["archive"]], "image-transfer-failed", args, env)
        found = runtimes.image_id(program, args["name"] if kept_by_manifest else wanted)
        if kept_by_manifest and found:
            return found  # `check_archive` has compared the configuration in it
    else:
        words = ["--tls-verify=false"] if args.get("insecure") and args["runtime"] == "podman" else []
        _run([program, "pull", "--quiet"] + words + [args["pull"]], "image-transfer-failed", args, env)
        found = runtimes.image_id(program, args["pull"])
        if kept_by_manifest and found and args["pull"].endswith("@sha256:" + found):
            return found
    if found != wanted:
        raise NodeError(
            "image-id-differs",
            "%s gave another image than the controller has" % args["runtime"],
            why="wanted id %s, found %s" % (wanted[:12], (found or "none")[:12]),
            changed=True,
        )
    return str(wanted)


def _make_file(args: Json, runtime: str, program: str, path: str, env: "dict[str, str | None]") -> None:
    """A SIF or a .sqsh file of the image."""
    pull = str(args.get("pull") or "")
    if runtime == "apptainer":
        if pull:
            words = (["--no-https"] if args.get("insecure") else []) + [path, "docker://" + pull]
        else:
            words = [path, "docker-archive://" + args["archive"]]
        _run([program, "build", "--force"] + words, "image-transfer-failed", args, env)
        return
    env.update({"ENROOT_ALLOW_HTTP": "yes"} if args.get("insecure") else {})
    _run([program, "import", "--output", path, enroot_uri(pull)], "image-transfer-failed", args, env)


def enroot_uri(reference: str) -> str:
    """How enroot names an image of a registry: `docker://HOST#PATH:TAG`, a digest as if it were a tag.

    What has no host is of Docker Hub; enroot before 4.0 knows that by this name alone.
    """
    host, slash, path = reference.replace("@", ":").partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, path = "docker.io", host + slash + path
    if host in ("docker.io", "index.docker.io"):
        host, path = "registry-1.docker.io", path if "/" in path else "library/" + path
    return "docker://%s#%s" % (host, path)


def check_archive(args: Json) -> None:
    """The file is the one that was sent, and the image in it has the id that it should have.

    Raises NodeError `image-damaged` (exit 5); the file is then removed.
    """
    path = args["archive"]
    found = hashing.digest_if_readable(path)
    why = _other_image(path, args["id"])
    if found != args["sha256"]:
        why = "its sha256 is %s, sent was %s" % ((found or "none")[:12], args["sha256"][:12])
    if not why:
        return
    if os.path.exists(path) and args.get("action") != "try":  # other nodes of a job read it too
        os.unlink(path)
    raise _damaged(path, why)


def _damaged(path: str, why: str) -> "NodeError":
    return NodeError(
        "image-damaged",
        "%s is not the image that the controller sent" % path,
        why=why,
        hint="the same command sends it again",
    )


def _other_image(path: str, wanted: str) -> str:
    """Why the archive is of another image, empty when it is this one."""
    try:
        found = archive_id(path)
    except (tarfile.TarError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return "it is no archive of one image (%s)" % str(error)[:200]
    return "" if found == wanted else "its image has the id %s" % found[:12]


def archive_id(path: str) -> str:
    """The id (hex) of the one image in an archive: sha256 of its configuration. Raises what reading raises."""
    with tarfile.open(path) as archive:
        (entry,) = json.loads(_member(archive, "manifest.json").decode("utf-8"))
        return hashlib.sha256(_member(archive, str(entry["Config"]))).hexdigest()


def _member(archive: "tarfile.TarFile", name: str) -> bytes:
    stream = archive.extractfile(name)
    return stream.read(_CONFIG_LIMIT) if stream is not None else b""


def _run(argv: "list[str]", code: str, args: Json, env: "dict[str, str | None]") -> None:
    """`env`: variables added to those of this process."""
    done = proc.run(argv, timeout=TIMEOUT, env=proc.clean_env(env))
    if done.ok:
        return
    why = "no end after %d s" % TIMEOUT if done.timed_out else (done.err or done.out).strip()[-800:]
    paths.refuse_full(why, args.get("tmp") or args["prefix"], why)
    raise NodeError(
        code,
        "%s could not take the image %s" % (args["runtime"], args["name"]),
        why=why,
        hint="the same command tries again",
    )
