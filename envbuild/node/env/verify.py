"""Is an environment still what its stamp says? It takes no lease.

It changes nothing that the root covers; where it may, it notes beside the stamp when the contents were last read.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from envbuild.node import git_source, logs, paths
from envbuild.node.conda import meta
from envbuild.node.env import stamp
from envbuild.node.protocol import Json, NodeError, few, plural, utc_time

if TYPE_CHECKING:
    from envbuild.node import merkle

_CODE = (".py", ".pyc", ".so", ".pth")
_NAMED = 3


def run(request: Json) -> tuple[bool, Json]:
    """Check the environment in use for `args.stack`, or `args.environment`; returns (False, result of the contract).

    `deep`: every file against the Merkle root and every `.pyc` against its source, and `root` is the one measured now
    (`level` says so). Else stamp, variant digest, package set and versions, link; the check `files` is `not-run` and
    says when the contents were last read. `base`: its packages are told, as stamped. `image`: the environment
    `args.environment` of an image, which has no stamp: packages are compared with `variant`, files with RECORD.
    `tested`: a smoke test has just run, so nothing is said of earlier ones.
    `result.ok` is False on drift. Raises NodeError `environment-unknown` (2), those of `stamp.of_image`.
    """
    args, prefix = request["args"], request["prefix"]
    stack = paths.checked_name(args.get("stack"), "stack")
    look = _Look(prefix, _environment(prefix, stack, args.get("environment")), args)
    stamped = look.at_image() if args.get("image") else look.at_stamped()
    look.drift.sort(key=lambda file: file["path"])
    limit = int(args.get("limit", 20))
    base = {"base_packages": (stamped or {}).get("base_packages") or {}} if args.get("base") else {}
    return False, {
        **base,
        "environment": look.environment,
        "root": look.root or (stamped or {}).get("root"),
        "level": "measured" if look.root else "stamped",
        "ok": all(check["status"] != "failed" for check in look.checks),
        "checks": look.checks,
        "drift": look.drift[:limit],
        "drift_count": len(look.drift),
        "log": logs.digest(prefix, request.get("run")),
    }


def _environment(prefix: str, stack: str, given: object) -> str:
    if not given:
        link = paths.current_link(prefix, stack)
        if not os.path.islink(link):
            raise NodeError(
                "environment-unknown",
                f"no environment of {stack} is in use under {prefix}",
                hint="`envbuild provision` builds one; `envbuild status --all` lists all environments",
            )
        given = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
    return stamp.existing(prefix, given)


class _Look:
    """What was found: `checks`, `drift` from the stamp or from RECORD, and the `root` where every file was read.

    Only a deep check needs what builds environments; a fast one is most of a run that has nothing to do.
    """

    def __init__(self, prefix: str, environment: str, args: Json) -> None:
        self.prefix, self.environment, self.args = prefix, environment, args
        self.checks: list[Json] = []
        self.drift: list[dict[str, str]] = []
        self.root: str | None = None
        self._begun = time.monotonic()

    def _add(self, name: str, problems: list[str], good: str, level: str = "measured", **more: Json) -> None:
        """One check, with the time since the one before it."""
        says = "; ".join(problems[:10]) if problems else good
        begun, self._begun = self._begun, time.monotonic()
        check = {"name": name, "status": "failed" if problems else "passed", "says": says, "level": level}
        self.checks.append(dict(check, seconds=round(self._begun - begun, 3), **more))

    def at_stamped(self) -> Json | None:
        """The stamp, if there is one."""
        stamped = stamp.read(self.environment)
        self._stamp(stamped)
        if stamped is None:
            return None
        self._packages(stamped)
        tested: Json = {"changed": {}, "open": {}, "failed": {}}
        if not self.args.get("tested"):
            tested = stamp.last_test(self.environment, stamped)
        self._trees(stamped, tested["changed"])
        self._missing(tested)
        self._link(str(self.args["stack"]))
        if not self.args.get("deep"):
            self._unread(stamped)
            return stamped
        self._contents(self._files, stamped)
        owners = meta.owners(self.environment) if self.drift else {}
        for file in self.drift:
            if file["path"] in owners:
                file["package"] = owners[file["path"]]
        if self.root is not None:
            noted = {"at": utc_time(), "run": stamped.get("run"), "root": self.root, "differed": len(self.drift)}
            paths.set_umask(self.prefix)
            # Who may only read cannot leave a note, and nothing depends on it.
            with contextlib.suppress(OSError, NodeError):
                paths.write_json(paths.meta(self.environment, stamp.READ), noted)
        return stamped

    def at_image(self) -> Json:
        """What a stamp would say."""
        stamped = stamp.of_image(self.environment, self.args["variant"])
        self._packages(stamped)
        self._contents(self._record, stamped)
        return stamped

    def _stamp(self, stamped: Json | None) -> None:
        problems = stamp.problems(self.environment, stamped, self.args.get("variant"))
        good = f"the stamp exists, variant {(stamped or {}).get('variant_digest', ''):.12}"
        details = {"python": stamp.python_version(self.environment), "built_in": (stamped or {}).get("run")}
        self._add("stamp", problems, good, "stamped", details={name: value for name, value in details.items() if value})

    def _packages(self, stamped: Json) -> None:
        problems = stamp.package_problems(self.environment, stamped, self.args.get("variant"))
        origin = "stamped" if "root" in stamped else "locked"
        good = f"{plural(len(stamped['packages']), 'package')} as {origin}, by name and version"
        self._add("packages", problems, good, "stamped")

    def _missing(self, tested: Json) -> None:
        """Deviations: the modules that the last smoke test missed, and what failed in it."""
        if tested["open"]:
            modules = [f"{name} ({place})" for name, place in sorted(tested["open"].items())]
            says = f"the smoke test of {tested['at']} missed modules that the code imports: {few(modules)}"
            details = {"deviation": "imports-open", "open": tested["open"], "unimported": tested.get("unimported")}
            self._add("imports", [], says, "stamped", details=details)
        for name, (at, says) in sorted(tested["failed"].items()):
            details = {"deviation": "smoke-failed", "failed_at": at, "failed": says}
            self._add("tested", [], f"{name} failed in the smoke test of {at}: {says}", "stamped", details=details)

    def _trees(self, stamped: Json, changed: "dict[str, list[str]]") -> None:
        """A deviation for each working tree: at which commit it is now, and what of its code `changed` since the test.

        Its files are the user's, so no change is drift.
        """
        for tree in stamped.get("trees") or ():
            name, place = tree["name"], tree["at"]
            link, state = os.path.join(self.environment, "src", name), git_source.tree_state(place)
            problem = f"the working tree of source {name}, {place}, {state['problem']}"
            problems = [problem] if state["problem"] else []
            if not os.path.islink(link) or os.readlink(link) != place:
                problems.append(f"{link} does not lead to {place}")
            words = git_source.state_words(state)
            good = f"source {name} is a working tree, {words}, not part of the digest"
            details = {"deviation": "working-tree", "name": name, **state}
            if name in changed:
                good += f"; {few(changed[name])} changed after the smoke test"
                details["code_changed"] = len(changed[name])
                # Python reads the rest where it lies.
                details["rebuild"] = any(not path.endswith((".py", ".pyi")) for path in changed[name])
            self._add("working-tree", problems, good, details=details)

    def _link(self, stack: str) -> None:
        if stamp.is_current(self.prefix, stack, self.environment):
            self._add("link", [], f"current/{stack} points at it")
        elif self.args.get("environment"):
            says = f"current/{stack} does not point at it; it was asked for by name"
            self.checks.append({"name": "link", "status": "skipped", "says": says})
        else:
            self._add("link", [f"current/{stack} does not point at it"], "")

    def _unread(self, stamped: Json) -> None:
        """The check `files` where no contents were read: when that was done last, and what was wrong then."""
        at, differed = stamp.last_read(self.environment, stamped)
        then = f", when {plural(differed, 'file')} differed from the stamp" if differed else ""
        says = f"contents not read; last read on {at or 'an unknown date'}{then}"
        check = {"name": "files", "status": "not-run", "says": says, "level": "not-checked"}
        self.checks.append(dict(check, details={"read_at": at, "differed": differed}))

    def _contents(self, check: Callable[[Json, dict[str, merkle.Entry]], None], stamped: Json) -> None:
        """The checks `files`, by reading every file, and `bytecode`."""
        from envbuild.node.env import contents

        try:
            check(stamped, contents.scan(self.prefix, self.environment, stamped))
        except OSError as error:
            self._add("files", [f"cannot be read: {error}"], "")
            unread = os.path.relpath(str(error.filename or self.environment), self.environment)
            self.drift.append({"path": unread, "kind": "unreadable"})
        count, refused = contents.byte_code(self.environment, stamped["sources"])
        problems = [f"{len(refused)} of {count} .pyc files are not what their source gives"] if refused else []
        self._add("bytecode", problems, f"{count} .pyc files, each what its source gives")
        self.drift += refused

    def _record(self, _stamped: Json, entries: dict[str, merkle.Entry]) -> None:
        from envbuild.node import merkle
        from envbuild.node.env import contents

        checked, wrong = contents.check(self.environment, entries)
        self.root = merkle.root_of({path: entry.as_list() for path, entry in entries.items()})
        problems = [f"{len(wrong)} of {checked + len(wrong)} files differ from RECORD"] if wrong else []
        count = plural(len(entries), "file")
        self._add("files", problems, f"{count} read, {checked} compared with RECORD, root {self.root:.12} measured")
        self.drift += [{key: str(file[key]) for key in ("path", "kind", "package")} for file in wrong]

    def _files(self, stamp_data: Json, entries: dict[str, merkle.Entry]) -> None:
        from envbuild.node import merkle

        stamped = paths.read_json(paths.meta(self.environment, stamp.FILES))
        now = {path: entry.as_list() for path, entry in entries.items()}
        # Files that scripts wrote into the folders of sources are no drift: data, and nothing that Python would run. A
        # link may lead to code, so it is drift until it is declared.
        inside = [source["name"] for source in stamp_data["sources"] if source.get("install") in ("editable", "path")]
        sources = tuple(f"src/{name}/" for name in inside)
        added = sorted(
            path
            for path in now.keys() - (stamped or {}).keys()
            if path.startswith(sources) and now[path][0] in ("file", "text") and not path.endswith(_CODE)
        )
        for path in added:
            del now[path]
        if added:
            self._added(added)
        self.root = merkle.root_of(now)
        good = f"{plural(len(now), 'file')} read, root {self.root:.12} measured"
        if stamped is None or merkle.root_of(stamped) != stamp_data["root"]:
            also = "; the files themselves do" if self.root == stamp_data["root"] else ""
            self._add("files", ["the list of files does not give the stamped root" + also], good)
            self.drift.append({"path": ".envbuild/files.json", "kind": "changed"})
            return
        drift = _differences(stamped, now)
        roots = f"root {self.root:.12}, the stamp has {stamp_data['root']:.12}"
        problems = [f"{len(drift)} of {len(stamped)} files differ from the stamp; {roots}"] if drift else []
        if not drift and self.root != stamp_data["root"]:
            problems = [roots]
        self._add("files", problems, good)
        self.drift += drift

    def _added(self, added: list[str]) -> None:
        """A deviation: the files that lie in sources beside their own, and how the stack file declares them."""
        sources: dict[str, dict[str, int]] = {}
        for path in added:
            _src, source, below = path.split("/", 2)
            top = below.partition("/")[0] + "/" * ("/" in below)
            counts = sources.setdefault(source, {})
            counts[top] = counts.get(top, 0) + 1
        rows = []
        for source, counts in sources.items():
            tops = list(counts)[:_NAMED]
            folders = [f"{top} ({plural(counts[top], 'file')})" for top in tops]
            folders += [f"{len(counts) - _NAMED} more"] * (len(counts) > _NAMED)
            patterns = json.dumps([top + "**" * top.endswith("/") for top in tops])
            rows.append(
                f"src/{source}: {', '.join(folders)}. In the stack file, add `generated: {patterns}` to the source "
                f"{source}, or `outputs:` for new folders"
            )
        says = (
            f"{plural(len(added), 'file')} that no build made, such as {', '.join(added[:_NAMED])}; not part of the "
            f"root, kept on repair. {'; '.join(rows)}"
        )
        details = {"deviation": "added-files", "count": len(added), "files": added[:20]}
        self._add("added-files", [], says, details=details)


def _differences(stamped: Json, now: Json) -> list[dict[str, str]]:
    """Drift file by file: `missing`, `extra`, `changed` (content or kind) or `mode` (executable bit); sorted."""
    both = {path: (stamped[path], now[path]) for path in stamped.keys() & now.keys()}
    kinds = dict.fromkeys(stamped.keys() - now.keys(), "missing")
    kinds.update(dict.fromkeys(now.keys() - stamped.keys(), "extra"))
    kinds.update((path, "mode") for path, (before, after) in both.items() if before[3] != after[3])
    kinds.update((path, "changed") for path, (before, after) in both.items() if before[:2] != after[:2])
    return [{"path": path, "kind": kind} for path, kind in sorted(kinds.items())]
