"""An image is built on this node: Apptainer makes a file from a definition and the context that was carried here."""

import os
import posixpath
import tarfile

from envbuild.node import hashing, paths, proc
from envbuild.node.image import image_file, unpacking
from envbuild.node.protocol import Json, NodeError, log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from envbuild.node import lease

TIMEOUT = 12 * 3600.0
_LAST = 2000  # characters of what the build printed, for the error


def build(args: Json, prefix: str, held: "lease.Lease") -> Json:
    """Build `<prefix>/images/<stack>-<key>.sif` from the context `archive`, unless an earlier run has and it is whole.

    `tmp`: where it is unpacked and built (`<prefix>/tmp` without one). Raises NodeError `image-damaged`
    (exit 5), `image-build-failed` (4), `disk-full` (75).
    """
    path = os.path.join(prefix, "images", "%s-%s.sif" % (args["stack"], args["key"][:12]))

    def make(half: str) -> None:
        with unpacking.folder(args, prefix) as (folder, variables):
            _unpack(args["archive"], args["sha256"], os.path.join(folder, "context"))
            _apptainer(args, folder, half, variables)
            held.check()

    return {"ok": True, "file": image_file.made(path, make, force=bool(args.get("force")))}


def _unpack(archive: str, wanted: str, folder: str) -> None:
    """The context, once it is the one that was sent and has nothing but plain files and folders below `folder`."""
    found = hashing.digest_if_readable(archive)
    why = "" if found == wanted else "its sha256 is %s, sent was %s" % ((found or "none")[:12], wanted[:12])
    if not why:
        with tarfile.open(archive) as opened:
            for member in opened:
                inside = not posixpath.normpath(member.name).startswith(("/", ".."))
                if not inside or not (member.isreg() or member.isdir()):
                    why = "%s is no plain file in it" % member.name[:200]
                    break
                opened.extract(member, folder)
    if why:
        raise NodeError(
            "image-damaged",
            "%s is not what the controller sent" % archive,
            why=why,
            hint="the same command sends it again",
        )


def _apptainer(args: Json, folder: str, path: str, variables: "dict[str, str | None]") -> None:
    """Run `apptainer build` in the context. Raises NodeError `image-build-failed` (exit 4), `disk-full` (75)."""
    words = [args["program"], "build", "--force"] + (["--fakeroot"] if os.geteuid() != 0 else [])
    log("image: building with %s" % args["program"])
    env, cwd = proc.clean_env(variables), os.path.join(folder, "context")
    done = proc.run(words + [path, "apptainer.def"], timeout=TIMEOUT, env=env, cwd=cwd)
    if done.ok:
        return
    said = (done.out + "\n" + done.err).strip()
    why = "no end after %d s" % TIMEOUT if done.timed_out else said[-_LAST:] or "exit %s" % done.rc
    paths.refuse_full(said, folder, why)
    raise NodeError(
        "image-build-failed",
        "the image of %s could not be built with Apptainer" % args["stack"],
        why=why,
        hint="nodes that may build need user namespaces, and the way to the registry of the base image (a proxy in "
        "`environment:` of the target); some sites want it asked for: `scheduler: {resources: [...]}`",
        changed=True,
    )
