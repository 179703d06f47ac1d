"""An image comes to this node: sent by the controller, or from a registry.

Its id is compared before it is used. The file of one (.sif, .sqsh) is made under another name, its hash beside it, and
used only while it has that. What it is unpacked from takes tens of gigabytes, by itself in /tmp and at home.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator

from envbuild.node import hashing, paths, proc
from envbuild.node.image import runtimes
from envbuild.node.protocol import Json, NodeError, log
from envbuild.node.read_text import read

TIMEOUT = 2 * 3600.0
_CONFIG_LIMIT = 16 << 20


def load(args: Json, prefix: str) -> tuple[str, Json | None]:
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
    path = os.path.join(prefix, "images", f"{args['stack']}-{wanted[:12]}.{extension}")
    digest = None if args.get("force") else _whole(path)
    if digest is None:
        digest = _make_file(args, prefix, path)
    return path, {"path": path, "bytes": os.stat(path).st_size, "sha256": digest}


def _forget(args: Json, program: str) -> None:
    """Remove the image, and earlier ones of its name: a layer that any of them has would be kept, damaged or not.

    Raises NodeError `image-in-use` (exit 75): `rmi --force` of podman would end what runs in it.
    """
    name = args["name"].partition("@")[0]
    name = name if ":" not in name.rpartition("/")[2] else name.rpartition(":")[0]
    listed = proc.run([program, "images", "--quiet", "--no-trunc", "--filter", "reference=" + name], timeout=60)
    ids = {word.replace("sha256:", "") for word in listed.out.split()} if listed.ok else set()
    for image in sorted(ids | {args["id"]}):
        done = proc.run([program, "ps", "--quiet", "--filter", "ancestor=" + image], timeout=60)
        running = done.out.split()
        if running:
            raise NodeError(
                "image-in-use",
                f"containers of the image {image[:12]} are running",
                why=f"containers of {args['runtime']}: {', '.join(running[:5])}",
                hint="wait until the containers end, or stop them; then run the same command again",
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
        _run([program, "load", "--input", args["archive"]], args, env)
        image = runtimes.image_id(program, args["name"] if kept_by_manifest else wanted)
        if kept_by_manifest and image:
            return image  # `check_archive` has compared the configuration in it
    else:
        words = ["--tls-verify=false"] if args.get("insecure") and args["runtime"] == "podman" else []
        _run([program, "pull", "--quiet"] + words + [args["pull"]], args, env)
        image = runtimes.image_id(program, args["pull"])
        if kept_by_manifest and image and args["pull"].endswith("@sha256:" + image):
            return image
    if image != wanted:
        raise NodeError(
            "image-id-differs",
            f"{args['runtime']} has another image than the controller",
            why=f"wanted id {wanted[:12]}, found {(image or 'none')[:12]}",
        )
    return str(wanted)


def _make_file(args: Json, prefix: str, path: str) -> str | None:
    """Make the SIF or the .sqsh file of the image; its sha256, which lies beside it as `sha256sum -c` reads it."""
    pull, half = str(args.get("pull") or ""), path + ".half"
    if args["runtime"] != "apptainer":
        words = ["import", "--output", half, enroot_uri(pull)]
    elif pull:
        words = ["build", "--force"] + (["--no-https"] if args.get("insecure") else []) + [half, "docker://" + pull]
    else:
        words = ["build", "--force", half, "docker-archive://" + args["archive"]]
    paths.remove_tree(half)  # of a run that was killed
    try:
        with _unpacking(args, prefix) as env:
            env.update({"ENROOT_ALLOW_HTTP": "yes"} if args.get("insecure") else {})
            _run([args.get("maker") or args["program"]] + words, args, env)
        digest = hashing.digest_if_readable(half)
        # First: a kill in between leaves a file that is made again.
        paths.write_atomic(path + ".sha256", (f"{digest}  {path}\n").encode("utf-8"))
        os.replace(half, path)
    finally:
        paths.remove_tree(half)
    return digest


def enroot_uri(reference: str) -> str:
    """How enroot names an image of a registry: `docker://HOST#PATH:TAG`, a digest as if it were a tag.

    What has no host is of Docker Hub; enroot before 4.0 knows that by this name alone.
    """
    host, slash, path = reference.replace("@", ":").partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, path = "docker.io", host + slash + path
    if host in ("docker.io", "index.docker.io"):
        host, path = "registry-1.docker.io", path if "/" in path else "library/" + path
    return f"docker://{host}#{path}"


def check_archive(args: Json) -> None:
    """The file is the one that was sent, and the image in it has the id that it should have.

    Raises NodeError `image-damaged` (exit 5); the file is then removed.
    """
    path, why = args["archive"], ""
    digest = hashing.digest_if_readable(path)
    try:
        image = archive_id(path)
    except (tarfile.TarError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"it is no archive of one image ({str(error)[:200]})"
    else:
        if image != args["id"]:
            why = f"its image has the id {image[:12]}"
    if digest != args["sha256"]:
        why = f"its sha256 is {(digest or 'none')[:12]}, sent was {args['sha256'][:12]}"
    if why:
        if os.path.exists(path) and args.get("action") != "try":  # other nodes of a job read it too
            os.unlink(path)
        raise NodeError(
            "image-damaged",
            f"{path} was damaged on its way from the controller",
            why=why,
            hint="run the same command again",
        )


def archive_id(path: str) -> str:
    """The id (hex) of the one image in an archive: sha256 of its configuration. Raises what reading raises."""
    with tarfile.open(path) as archive:
        (entry,) = json.loads(_member(archive, "manifest.json").decode("utf-8"))
        return hashlib.sha256(_member(archive, str(entry["Config"]))).hexdigest()


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    stream = archive.extractfile(name)
    return stream.read(_CONFIG_LIMIT) if stream is not None else b""


def _run(argv: list[str], args: Json, env: dict[str, str | None]) -> None:
    """`env`: variables added to those of this process."""
    done = proc.run(argv, timeout=TIMEOUT, env=proc.clean_env(env))
    if done.ok:
        return
    why = "it did not end within %d s" % TIMEOUT if done.timed_out else (done.err or done.out).strip()[-800:]
    paths.refuse_full(why, args.get("tmp") or args["prefix"], why)
    raise NodeError(
        "image-transfer-failed",
        f"{args['runtime']} could not load the image {args['name']}",
        why=why,
        hint="run the same command again",
    )


def _whole(path: str) -> str | None:
    """The sha256 of a file that is there and is the one that was made; else None, and the log says why."""
    if not os.path.exists(path):
        return None
    wanted = read(path + ".sha256", 4096).split(" ")[0]
    digest = hashing.digest_if_readable(path)
    if digest is not None and digest == wanted:
        return digest
    expected = f"expected {wanted:.12}" if wanted else "none was recorded"
    log(f"{path} is made again: its sha256 is {digest or 'unreadable':.12}, {expected}")
    return None


@contextlib.contextmanager
def _unpacking(args: Json, prefix: str) -> Iterator[dict[str, str | None]]:
    """The variables that lead to a new folder in `tmp` of the target, else in `<prefix>/tmp`, removed in the end.

    enroot unpacks there only if `tmp` is set: it needs what network file systems may not have (overlays,
    extended attributes), and keeps to TMPDIR. Raises NodeError `not-writable`, `disk-full` (exit 7, 75).
    """
    top = _new(args.get("tmp") or os.path.join(prefix, "tmp"))
    unpacked, cache = os.path.join(top, "tmpdir"), os.path.join(top, "cachedir")
    # An older Apptainer was called Singularity, and so were its variables.
    env: dict[str, str | None] = {f"{name}_TMPDIR": unpacked for name in ("APPTAINER", "SINGULARITY")}
    env.update({f"{name}_CACHEDIR": cache for name in ("APPTAINER", "SINGULARITY")}, ENROOT_CACHE_PATH=cache)
    if args.get("tmp"):
        env.update(TMPDIR=unpacked, ENROOT_TEMP_PATH=unpacked)
    try:
        with paths.coded_errors(top):
            os.mkdir(unpacked)
            os.mkdir(cache)
            yield env
    finally:
        paths.remove_tree(top)


def _new(top: str) -> str:
    """A folder of this run; what runs left that were killed is removed, for under the lease nobody else has one."""
    try:
        os.makedirs(top, exist_ok=True)
        left = [name for name in os.listdir(top) if re.fullmatch(paths.temporary("image-build"), name)]
        for path in [os.path.join(top, name) for name in left]:
            if os.lstat(path).st_uid == os.geteuid():
                paths.remove_tree(path)
        return tempfile.mkdtemp(prefix="image-build-", dir=top)
    except OSError as error:
        raise paths.not_writable(error, top) from error
