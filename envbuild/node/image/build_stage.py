"""The verb `image`: one stage of an image build. `fetch` has a network; the others need none and say if they had one.

`packages` and `build` run the requests that the planner made for a node (install, smoke, activate) one after another,
and take out of the outcome what differs from build to build: times, caches, how busy the machine was. `packages` has
the first part of `install`, all that does not depend on a source; `build` has the rest and says what it added. What
`packages` has read and imported, `build` does not read and import again, and the stamp says so.
"""

import json
import os
import shutil

from envbuild.node import paths, program_files, verbs
from envbuild.node.build import build_dir
from envbuild.node.conda import meta
from envbuild.node.env import interpreter as base
from envbuild.node.env import stamp
from envbuild.node.image import added_files, byte_code, packages_layer, slim
from envbuild.node.packages import installed
from envbuild.node.probe import system
from envbuild.node.protocol import Json, NodeError, log
from envbuild.node.read_text import read

_VERBS = {"packages": ("install", "smoke"), "build": ("install", "smoke", "activate")}
# What a build says of itself that the next one need not repeat.
_VOLATILE = ("seconds", "jobs", "ccache", "retried", "from", "store", "rebuild", "canonical", "memory")


def run(request: Json) -> "tuple[bool, Json]":
    """Run the stage `args.stage`; returns (True, its result).

    Raises NodeError `network-there` (exit 7) where ENVBUILD_NETWORK=off and a route leads out, and what steps raise.
    """
    args = request["args"]
    if args.get("stage") == "fetch":
        from envbuild.node.image import fetch_stage  # with what asks indexes, which no other stage needs

        return True, fetch_stage.run(args)
    if args.get("stage") not in _VERBS:
        raise NodeError("request-invalid", "an image has the stages fetch, packages and build")
    network = network_state()
    if network != "off" and os.environ.get("ENVBUILD_NETWORK") == "off":
        raise NodeError(
            "network-there",
            "this stage has to be built without a network, and there is one",
            why=network,
            hint="`envbuild image build` does it; or build this stage with `--network none`",
        )
    log("network: %s" % network)
    _check_libc()
    stage = _packages if args["stage"] == "packages" else _build
    # The names of interfaces are those of the machine that builds, in which two builds would differ.
    done = stage(args, request["prefix"], network.partition(":")[0])
    for name in ("cache", "tmp"):
        shutil.rmtree(os.path.join(request["prefix"], name), ignore_errors=True)
    return True, done


def network_state() -> str:
    """`off` when no route leads out of this network namespace, else the interfaces that one leads through."""
    found: set[str] = set()
    for name, column in (("route", 0), ("ipv6_route", 9)):
        try:
            with open("/proc/self/net/" + name) as stream:
                rows = [line.split() for line in stream]
        except OSError:
            continue
        found.update(row[column] for row in rows if len(row) > column)
    found -= {"lo", "Iface"}
    return "on: routes through %s" % ", ".join(sorted(found)) if found else "off"


def _check_libc() -> None:
    """Raise NodeError `image-without-glibc` (exit 7) on another C library: locked wheels are built for glibc."""
    found = system.glibc()
    if not found.startswith("glibc"):
        raise NodeError(
            "image-without-glibc",
            "the image has no glibc, and the locked wheels need it",
            why="its C library says %r" % found,
            hint="choose a base with glibc (Debian, Ubuntu, UBI), not Alpine",
        )


def _packages(args: Json, prefix: str, network: str) -> Json:
    """The environment with its packages and nothing else: torch is imported where there is one, every file read.

    With `slim` without their tests, which go before that import.
    """
    variant, steps = args["variant"], args["requests"]
    kept = _keep_base(variant, steps[0]["args"]["interpreter"])
    install, *others = steps
    result = _run("packages", install, variant)
    left_out = slim.leave_out(result["environment"]) if args.get("slim") else None
    done = {step["verb"]: _run("packages", step, variant) for step in others}
    settle(result["environment"])
    build_dir.date_headers(result["environment"])
    checks = (done.get("smoke") or {}).get("checks") or []
    imported = [row["module"] for check in checks for row in check["details"].get("modules") or () if row["ok"]]
    told = {"imported": imported, "left_out": left_out}
    packages_layer.note(prefix, result["environment"], result["interpreter"], told)
    if args.get("builds"):
        byte_code.keep(prefix, os.path.join(result["environment"], "bin", "python"))
    program_files.keep_byte_code()
    return {"network": network, "kept_of_base": kept, "packages": len(result["packages"])}


def _build(args: Json, prefix: str, network: str) -> Json:
    """Sources, the smoke test and the stamp, on what `_packages` left."""
    variant = paths.read_json(args["variant"])
    if variant is None or not variant.get("digest"):
        raise NodeError("request-invalid", "%s is no variant of a lock" % args["variant"])
    install = args["requests"][0]["args"]
    environment = paths.checked_environment(prefix, install["environment"])
    before = added_files.look(environment)
    layers = packages_layer.Layers(prefix, environment, before)
    kept = _keep_base(variant, install["interpreter"])
    results: Json = {}
    after = before
    for step in args["requests"]:
        verb = step["verb"]
        if verb == "install":
            # The packages are there; what their files take was asked for before.
            left_out = (layers.left_out or {}).get("paths")
            step["args"].update(needed={"bytes": 0, "inodes": 0}, left_out=left_out, scan=layers.scan)
            step["args"]["build"] = dict(step["args"].get("build") or {}, **_of_layer(prefix, before))
        elif verb == "smoke":
            step["args"]["imported"] = layers.imported
        elif verb == "activate":
            evidence = dict(step["args"].get("evidence") or {}, network=network, **layers.evidence)
            if kept:
                evidence["kept_of_base"] = kept
            if layers.left_out:
                evidence["left_out"] = layers.left_out
            # Nothing of a source runs from here on.
            after = added_files.look(environment)
            layers.scan.seen = added_files.files(after)
            step["args"].update(stamped_at=paths.EPOCH, evidence=evidence, scan=layers.scan)
        results[verb] = _run("build", step, variant)
        if verb == "install":
            layers.compare()
            settle(environment)
    added_files.set_apart(prefix, environment, before, added_files.stamped(environment, after), args["added"])
    os.makedirs(os.path.join(args["added"], "image"))
    shutil.copy(args["variant"], os.path.join(args["added"], "image"))
    told = results.get("activate") or {}
    return {"network": network, "kept_of_base": kept, "root": told.get("root"), "files": told.get("files")}


def _of_layer(prefix: str, seen: "added_files.Seen") -> Json:
    """What a build need not do again, as the layer of packages has it: byte code, and the date of headers."""
    kept, headers = byte_code.folder(prefix), [told for path, told in added_files.files(seen) if "/include/" in path]
    dated = all(told.st_mtime == paths.EPOCH for told in headers)
    return {"byte_code": kept if os.path.isdir(kept) else None, "dated": dated}


def _run(stage: str, step: Json, variant: Json) -> Json:
    """The result of one request of the planner, with the variant that it was made without."""
    verb = step["verb"]
    if verb not in _VERBS[stage]:
        raise NodeError("request-invalid", "an image is not built with the verb %r" % str(verb)[:80])
    log("image: %s" % verb)
    _changed, result = verbs.run(verb, dict(step, args=dict(step["args"], variant=variant)))
    if verb == "smoke" and not result["ok"]:
        failed = [check for check in result["checks"] if check["status"] == "failed"]
        raise NodeError(
            "smoke-failed",
            "the environment in the image does not work",
            why="; ".join("%s: %s" % (check["name"], check["says"]) for check in failed)[:1500],
            exit_code=result["exit"],
            details={"checks": result["checks"]},
            changed=True,
        )
    return result


def _keep_base(variant: Json, interpreter: str) -> "dict[str, list[str]]":
    """Leave out of `variant` what the image's base brings itself; returns name -> [version of the lock, of the base].

    The base is a digest of the lock, so what it brings is a matter of the lock too. Its torch is never replaced; its
    other packages are what the document's own `pip install` would have left alone as well.
    """
    if variant.get("base", {}).get("kind") != "image":
        return {}
    provided = base.examine(interpreter, variant).packages
    kept: dict[str, list[str]] = {}
    rest: list[Json] = []
    for package in variant.get("packages") or []:
        name = installed.normal_name(package["name"])
        if name in provided:
            kept[name] = [package["version"], provided[name]]
        else:
            rest.append(package)
    variant["packages"] = rest
    for name in sorted(kept):
        log("%s %s of the base stays (the lock has %s)" % (name, kept[name][1], kept[name][0]))
    return kept


def settle(environment: str) -> None:
    """Take out of a built environment what is not the same in every build of it."""
    for name in (stamp.INSTALLED, "sources.json"):
        path = paths.meta(environment, name)
        text = read(path)
        told = json.loads(text) if text else []
        for source in told["sources"] if isinstance(told, dict) else told:
            for key in _VOLATILE:
                (source.get("build") or {}).pop(key, None)
        if text:
            paths.write_json(path, told)
    of_conda = meta.distributions(environment)
    for site in installed.site_packages(environment):
        top = os.path.join(environment, site)
        for name in sorted(os.listdir(top)):
            if name.endswith(".dist-info") and installed.normal_name(name.split("-")[0]) not in of_conda:
                _forget_origin(os.path.join(top, name))


def _forget_origin(folder: str) -> None:
    """Remove uv's notes of when and from which temporary folder a local wheel came, with their lines of RECORD.

    Both are beside the Merkle root. What says that a source is editable stays: its path is one of the environment.
    """
    names = ["uv_cache.json", "direct_url.json"]
    origin = paths.read_json(os.path.join(folder, "direct_url.json"))
    if "dir_info" in (origin or {}):
        names.remove("direct_url.json")
    names = [name for name in names if os.path.lexists(os.path.join(folder, name))]
    if not names:
        return
    for name in names:
        os.unlink(os.path.join(folder, name))
    listing = os.path.join(folder, "RECORD")
    with open(listing, "rb") as stream:
        lines = stream.read().splitlines(True)
    top = os.fsencode(os.path.basename(folder))
    gone = tuple(top + b"/" + name.encode("ascii") + b"," for name in names)
    mode = os.stat(listing).st_mode
    paths.write_atomic(listing, b"".join(line for line in lines if not line.startswith(gone)))
    os.chmod(listing, mode & 0o7777)
