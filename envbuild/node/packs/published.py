"""What a shared folder says of packed environments: the request of `ensure`, and whether its pack is there and whole.

In `<shared>`: `packs/` holds the packs, each with its manifest beside it; `ensure/<stack>.json` is the request that
every later job sends, and `ensure/<stack>.sh` the POSIX sh file that sends it.
"""

import os
import time

from envbuild.node import paths
from envbuild.node.env import stamp
from envbuild.node.protocol import NodeError, log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The keys of a stamp that a pack's manifest and the request of `ensure` have.
_OF_REQUEST = ("stack", "profile", "variables", "evidence")


def publish(request: "dict[str, Any]", record: "dict[str, Any]") -> "None":
    """Write the request of `ensure` for a pack, then the script that sends it; each file whole or not at all.

    `args.ensure`: `folder`, `script` (text), `args` (of `activate`), `near`, `requests` (more places for the request),
    `link` (a link to the pack).
    """
    told = request["args"]["ensure"]
    stack = paths.checked_name(record["stack"], "stack")
    pack = {"file": record["file"], "sha256": record["sha256"], "format": record["format"], "near": told.get("near")}
    args = dict(told["args"], environment=record["environment"], root=record["root"], pack=pack)
    made = {"protocol": request["protocol"], "verb": "ensure", "run": request["run"], "prefix": request["prefix"]}
    for path in list(told.get("requests") or []) + [os.path.join(told["folder"], stack + ".json")]:
        paths.write_json(path, dict(made, args=args))
    if told.get("link"):
        paths.switch_link(told["link"], record["file"])
    paths.write_atomic(os.path.join(told["folder"], stack + ".sh"), os.fsencode(told["script"]))


def read(shared: "str", stack: "str") -> "tuple[dict[str, Any], dict[str, Any]] | None":
    """The arguments of `ensure` for a stack and the manifest of its pack; None where one is missing or does not fit."""
    from envbuild.node.packs import pack as env_pack

    request = paths.read_json(os.path.join(shared, "ensure", paths.checked_name(stack, "stack") + ".json"))
    args = request.get("args") if isinstance(request, dict) else None
    if not isinstance(args, dict) or not all(isinstance(args.get(key), dict) for key in ("pack", "variant")):
        return None
    file = str(args["pack"].get("file"))
    name = os.path.basename(file)
    for ending in env_pack.ENDINGS.values():
        if name.endswith("." + ending):
            name = name[: -len(ending) - 1]
    record = env_pack.known(os.path.dirname(file), name)
    same = record is not None and all(record.get(key) == args["pack"].get(key) for key in ("file", "sha256", "format"))
    if record is None or not same or record.get("root") != args.get("root"):
        return None
    return args, record


def take(request: "dict[str, Any]") -> "dict[str, Any] | None":
    """Instead of an install: the environment out of the pack that lies in `args.packed` for it, where there is one.

    The result of `unpack`; None where there is no such pack, or it cannot be used here: then it is built.
    """
    args = request["args"]
    found = read(args["packed"], str(args.get("stack"))) if args.get("packed") else None
    if found is None or args.get("repair"):
        return None
    record = found[1]
    same = (record["environment"], record["variant_digest"]) == (args["environment"], args["variant"].get("digest"))
    if not same or stamp.read(record["environment"]) is not None:
        return None
    told = {key: record[key] for key in ("file", "sha256", "format", "root")}
    try:
        from envbuild.node.packs import unpack

        result = unpack.run(dict(request, verb="unpack", args=dict(args, **told)))[1]
    except NodeError as error:
        log("%s is not used: %s (%s)" % (record["file"], error, error.why))
        return None
    del result["record_checked"]  # nothing was installed from wheels
    return result


def stacks(shared: "str") -> "list[str]":
    """The stacks that have a request of `ensure` in a shared folder, sorted; none where it is no such folder."""
    try:
        names = sorted(os.listdir(os.path.join(shared, "ensure")))
    except OSError:
        return []
    return [name[: -len(".json")] for name in names if name.endswith(".json") and not name.startswith(".")]


def facts(shared: "str", stack: "str") -> "list[dict[str, Any]]":
    """`StampFacts` of the environment that jobs of a stack get from their pack; empty where there is none.

    The pack's size is looked at here and not its content.
    """
    found = read(shared, stack)
    if found is None:
        return []
    args, record = found
    written = dict(record["installed"], variant_digest=record["variant_digest"], root=record["root"])
    written.update({key: args.get(key) for key in _OF_REQUEST}, interpreter=record["interpreter"])
    written.update(environment=record["environment"], arch_list=args["variant"].get("arch_list"))
    says = "contents not read: %s is there, %d MB" % (record["file"], record["bytes"] // 10**6)
    return [
        {
            "path": record["environment"],
            "stack": record["stack"],
            "profile": record.get("profile"),
            "variant_digest": record["variant_digest"],
            "root": record["root"],
            "current": True,
            "stamp": written,
            "checks": [{"name": "pack", "status": "not-run", "says": says, "level": "not-checked"}],
        }
    ]


def run(request: "dict[str, Any]") -> "tuple[bool, dict[str, Any]]":
    """Compare the pack of `args.stack` with its hash; the prefix of the request is the shared folder.

    With `deep` false its size is looked at. The root is what its manifest says. Result as of `verify`.
    Raises NodeError `environment-unknown` (exit 2) where no pack was made.
    """
    stack = paths.checked_name(request["args"].get("stack"), "stack")
    shared = request["prefix"]
    found = read(shared, stack)
    script = os.path.join(shared, "ensure", stack + ".json")
    if found is None and not os.path.lexists(script):
        raise NodeError(
            "environment-unknown",
            "no environment of %s is packed in %s" % (stack, shared),
            hint="`envbuild provision` builds and packs one",
        )
    record = found[1] if found is not None else {}
    if record and not request["args"].get("deep", True):
        check = facts(shared, stack)[0]["checks"][0]
    else:
        check = _compared(record, "the pack that %s names is not there, or not as its manifest says" % script)
    told = {"environment": record.get("environment"), "root": record.get("root"), "level": "stamped"}
    return False, dict(told, ok=check["status"] != "failed", checks=[check], drift=[], drift_count=0)


def _compared(record: "dict[str, Any]", missing: "str") -> "dict[str, Any]":
    """The check of a pack that is hashed now; `missing` is what is wrong where there is none."""
    begun = time.monotonic()
    problem = _problem(record["file"], record["sha256"]) if record else missing
    says = problem or "%s has its hash; root %.12s by its manifest" % (record["file"], record["root"])
    check = {"name": "pack", "status": "failed" if problem else "passed", "says": says, "level": "measured"}
    return dict(check, seconds=round(time.monotonic() - begun, 3))


def _problem(file: "str", wanted: "str") -> "str":
    """Why a pack is not what it was; empty when it is."""
    try:
        from envbuild.node.packs import pack as env_pack

        digest = env_pack.digest_of(file)
    except OSError as error:
        return "%s cannot be read: %s" % (file, error)
    return "" if digest == wanted else "sha256 of %s is %.12s, expected %.12s" % (file, digest, wanted)
