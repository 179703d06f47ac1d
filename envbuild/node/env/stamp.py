"""The stamp: what a finished environment says of itself. It is written last, so an environment has one or is nothing.

Keys of a stamp (version 1): `stack`, `profile`, `variant_digest`, `variant_id`, `arch_list`, `root`, `packages`,
`base_packages`, `conda`, `sources`, `trees` (of the user, with their state when stamped), `variables`, `interpreter`
(empty where the environment has its own),
`environment`, `files`, `bytes`, `run`, `stamped_at` and `evidence`.
"""

from __future__ import annotations

import os
import re

from envbuild.node import git_source, paths
from envbuild.node.conda import meta
from envbuild.node.packages import installed
from envbuild.node.probe import inventory
from envbuild.node.protocol import Json, NodeError, has_fields
from envbuild.node.read_text import read as read_text

STAMP = inventory.STAMP
FILES = "files.json"
MADE = "made.json"  # sha256 of what builds and tests had made of `generated:` by then; not part of the root
INSTALLED = "installed.json"
SCAN = "scan.json"
READ = "read.json"  # when the contents were last read; not part of the root
TESTED = "tested.json"  # what smoke tests missed, what failed, and the code that was good; not part of the root


read = inventory.read_stamp


def write(environment: str, data: Json) -> None:
    """Write the stamp durably; after this the environment exists."""
    paths.write_json(paths.meta(environment, STAMP), dict(data, version=inventory.STAMP_VERSION))


def of_image(environment: str, variant: Json) -> Json:
    """What a stamp would say of an environment in an image, which has none: the Dockerfile is not ours to trust.

    `evidence.kept_of_base`: packages of the lock in whose place the image has its base's. Raises NodeError
    `interpreter-missing`, `interpreter-mismatch` (exit 7).
    """
    from envbuild.node.env import foundation

    python = foundation.examine(os.path.realpath(os.path.join(environment, "bin", "python")), variant)
    packages = installed.installed(environment)
    locked = {installed.normal_name(package["name"]): package["version"] for package in variant.get("packages", [])}
    kept = {name: [locked[name], python.packages[name]] for name in locked if name in python.packages}
    return {
        "variant_digest": variant.get("digest") or "",
        "packages": packages,
        "base_packages": python.packages,
        "sources": [],  # a fresh container has no files that runs made
        "interpreter": python.path,
        "evidence": {"kept_of_base": {name: both for name, both in kept.items() if name not in packages}},
    }


def last_read(environment: str, stamp: Json) -> tuple[str | None, int]:
    """When the contents were last read, and how many files differed from the `stamp` then.

    An environment that nobody has read since was read when it was stamped.
    """
    noted = paths.read_json(paths.meta(environment, READ))
    if noted is None or noted.get("run") != stamp.get("run"):
        noted = {"at": stamp.get("stamped_at")}
    return noted.get("at"), int(noted.get("differed") or 0)


def noted_test(environment: str) -> Json:
    """The note of smoke tests: modules `open` `at` a date, the `code` of the last `good` one, and what `failed` since.

    `failed` has date and sentence by name of the check; `code`, by source, is empty where no test was good.
    """
    noted = paths.read_json(paths.meta(environment, TESTED)) or {}
    if not has_fields(noted, open=dict, code=dict):
        noted = {"at": None, "open": {}, "code": {}}
    failed = noted.get("failed")
    good = noted.get("good") or (None if failed else noted["at"])
    return dict(noted, good=good, failed=failed if isinstance(failed, dict) else {})


def last_test(environment: str, stamp: Json) -> Json:
    """What is known of smoke tests (`noted_test`, without the code), and what has `changed` of it: source -> paths.

    What a changed file imports only the next test says, so it is not `open`.
    """
    noted = noted_test(environment)
    code, changed = noted.pop("code"), {}
    for tree in stamp.get("trees") or ():
        before = code.get(tree["name"])
        if before is None:
            continue
        now = git_source.code_digests(tree["at"], environment, before)
        differs = [path for path in {**before, **now} if before.get(path, [None])[-1] != now.get(path, [None])[-1]]
        if differs:
            changed[tree["name"]] = sorted(differs)
    places = {f"{name}/{path}" for name, paths in changed.items() for path in paths}
    open_ = {module: place for module, place in noted["open"].items() if place.partition(":")[0] not in places}
    return dict(noted, open=open_, changed=changed)


def existing(prefix: str, path: object) -> str:
    """`path` of an environment that is there; raises NodeError `request-invalid` or `environment-unknown` (exit 2)."""
    environment = paths.checked_environment(prefix, path)
    if not os.path.isdir(environment):
        raise unknown(environment)
    return environment


def unknown(environment: str) -> NodeError:
    """The error of a path where no environment is."""
    return NodeError(
        "environment-unknown",
        f"there is no environment {environment}",
        hint="`envbuild status --all` lists all environments",
    )


def is_current(prefix: str, stack: str, environment: str) -> bool:
    """True when `current/<stack>` names this environment."""
    return inventory.links(prefix).get(stack) == os.path.realpath(environment)


def kept_of_base(stamp: Json | None) -> dict[str, str]:
    """Packages of the lock in whose place an image has its base's: name to version there."""
    kept = ((stamp or {}).get("evidence") or {}).get("kept_of_base") or {}
    return {name: versions[1] for name, versions in kept.items()}


def package_problems(environment: str, stamp: Json, variant: Json | None) -> list[str]:
    """How the packages that are there differ from those of the stamp and of the variant, in words; empty when equal.

    Compares names and versions from dist-info; reads no other file. What is of an image's base is as its digest says.
    """
    present = installed.installed(environment)
    problems = _compare(present, stamp["packages"], "stamp")
    for name in sorted(set(present) - set(stamp["packages"])):
        problems.append(f"{name} {present[name]} is there and not in the stamp")
    if variant:
        locked = {installed.normal_name(package["name"]): package["version"] for package in variant.get("packages", [])}
        locked = {name: version for name, version in locked.items() if name not in kept_of_base(stamp)}
        problems += [text for text in _compare(present, locked, "lock") if text not in problems]
        problems += [f"the conda package {name} is missing" for name in meta.lacking(environment, variant)]
    return problems


def _compare(present: dict[str, str], wanted: dict[str, str], where: str) -> list[str]:
    return [
        f"{name} is {present[name]}, the {where} says {version}" if name in present else f"{name} {version} is missing"
        for name, version in sorted(wanted.items())
        if not installed.same_version(present.get(name), version)
    ]


def problems(environment: str, stamp: Json | None, variant: Json | None) -> list[str]:
    """What is wrong with the `stamp`, or with the interpreter, in words; empty when nothing is."""
    if stamp is None:
        return ["there is no stamp, or it is damaged: the environment is half built"]
    wrong = []
    if variant and variant.get("digest") != stamp["variant_digest"]:
        wrong.append(
            f"the stamp says variant {stamp['variant_digest']:.12}, the lock says {variant.get('digest')!s:.12}"
        )
    python = os.path.join(environment, "bin", "python")
    if not os.access(python, os.X_OK):
        wrong.append(f"its interpreter is gone: {os.path.realpath(python)}")
    return wrong


def fast_problems(environment: str, variant: Json | None) -> list[str]:
    """The fast check (stamp, variant digest, interpreter, package set and versions) in words; empty when it passes."""
    stamp = read(environment)
    wrong = problems(environment, stamp, variant)
    return wrong if stamp is None else wrong + package_problems(environment, stamp, variant)


def python_version(environment: str) -> str:
    """The interpreter's full version, of its conda package or of `pyvenv.cfg`; empty without.

    uv writes `version_info`, venv `version`.
    """
    for name in meta.names(environment):
        match = re.match(r"python-(\d+\.\d+\.\d+)-", name)
        if match is not None:
            return match.group(1)
    rows = [line.partition("=") for line in read_text(os.path.join(environment, "pyvenv.cfg"), 65536).splitlines()]
    settings = {name.strip(): value.strip() for name, _, value in rows}
    match = re.match(r"\d+\.\d+\.\d+", settings.get("version_info") or settings.get("version") or "")
    return match.group() if match else ""


def check_unchanged(environment: str, variant: Json | None) -> None:
    """Raise NodeError `environment-drifted` (exit 1) where the fast check does not pass."""
    wrong = fast_problems(environment, variant)
    if wrong:
        raise NodeError(
            "environment-drifted",
            f"{environment} differs from its stamp",
            why="; ".join(wrong[:5]),
            hint="`envbuild verify` lists the differences; `envbuild provision --repair` builds it again",
        )


def files(request: Json) -> tuple[bool, Json]:
    """Returns (False, `root` and `files`: the list that gives it, as base64 of zlib of JSON) of `args.environment`.

    The list is {path: [tag, sha256, size, executable]}; packed, for an environment has some ten thousand files.

    Raises NodeError `environment-unstamped` (1) where it has no stamp, or one without its list of files.
    """
    import base64
    import json
    import zlib

    environment = paths.checked_environment(request["prefix"], request["args"].get("environment"))
    stamp = read(environment)
    stamped = paths.read_json(paths.meta(environment, FILES))
    if stamp is None or stamped is None:
        raise NodeError(
            "environment-unstamped",
            f"{environment} has no stamp with a list of its files",
            hint="`envbuild verify` shows its state",
        )
    text = json.dumps(stamped, sort_keys=True, separators=(",", ":"))
    return False, {"root": stamp["root"], "files": base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")}
