"""All sources of one install: fetched, patched, built (or taken from the wheel store), put into the environment, tried.

`Builder` does it in steps, so that the install can do what else is due between them:

    fetch             trees that become part of the environment, and those that must be built; the store has the others
    patch_and_build   after the locked packages: patches, and all wheels at once
    install           in the order of the lock
    prove             every extension is imported in the environment, in a process of its own
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from envbuild.node import git_source, merkle, paths, proc, program_files, variables
from envbuild.node.build import diagnose, environment, patch, patch_sources, proof
from envbuild.node.build import kernels as build_kernels
from envbuild.node.build import wheel as build_wheel
from envbuild.node.logs import progress
from envbuild.node.packages import installed, uv
from envbuild.node.probe.processes import at_work
from envbuild.node.protocol import Exit, Json, NodeError, log
from envbuild.node.wheels import build_key, bundled
from envbuild.node.wheels.acquire import obtain
from envbuild.node.wheels.store import Entry, Store, default_path

if TYPE_CHECKING:
    from envbuild.node.build.job_server import Budget

_KEYS = ("name", "commit", "tree", "git", "install", "generated", "outputs")


class Builder:
    """The sources of one install request; see the module for the steps."""

    def __init__(self, tool: uv.Uv, request: Json) -> None:
        """`request`: of the verb `install`, its environment a checked path."""
        args = request["args"]
        self.tool = tool
        self.run = request["run"]
        self.prefix = request["prefix"]
        self.environment = args["environment"]
        self.stack = args.get("stack")
        self.variant = args["variant"]
        self.pins: list[Json] = self.variant.get("sources") or []
        self.working_trees: list[Json] = self.variant.get("trees") or []
        self.options: Json = args.get("build") or {}
        # Builds see all of an environment of conda packages: compilers and libraries lie among them.
        self._whole = bool(self.variant.get("engine") == "conda")
        self._arch_list: list[str] = self.options.get("arch_list") or []
        # The compilers that the plan chose, and the stack's variables, which stand above them; and those of them that
        # tools read when they build: a stack says the others for its runs.
        self._given = dict(self.options.get("variables") or {}, **(self.variant.get("environment") or {}))
        self._for_builds = {name: value for name, value in self._given.items() if variables.decides_bits(name)}
        self.cuda_home = environment.toolkit(self.options.get("cuda_home"))
        self.bundles = (args.get("artifacts") or {}).get("sources") or {}
        self.bundle = (args.get("artifacts") or {}).get("bundle")
        self.store_path = self.options.get("store") or default_path(request["prefix"])
        self.python = os.path.join(self.environment, "bin", "python")
        given = args.get("patches") or {}
        self.specs = {source["name"]: patch_sources.specs_of(source, given) for source in self.pins}
        self.trees: dict[str, str] = {}
        self.links: dict[str, dict[str, str]] = {}
        self.patched: dict[str, list[Json]] = {}
        self.wheels: dict[str, str] = {}
        self.built: dict[str, Json] = {}
        self.compiled: dict[str, list[str]] = {}
        self.store: Store | None = None
        self.handed = bundled.Handed(self.options.get("handed"))
        self._applied: set[str] = set()
        self._facts: Json | None = None
        self._toolchains: dict[str, Json] = {}

    def fetch(self) -> None:
        """Fetch and check trees before any package is installed. Raises what `git_source.fetch` raises."""
        for tree in self.working_trees:
            self._link(tree)
        store: Store | None = None
        for number, source in enumerate(self.pins):
            progress("fetching sources", source["name"], number, len(self.pins), "sources")
            if _is_wheel(source):
                store = store or Store(self.store_path)
                inputs = self._inputs(source)
                if store.like(inputs) or self.handed.expected(store, source["name"], inputs):
                    continue
            self._tree(source)

    def patch_and_build(self) -> None:
        """Patch the trees of the environment and get every wheel, all that are missing built at once.

        Raises what `patch_sources.of_source`, `obtain` and `wheel.build_wheel` raise.
        """
        for source in self.pins:
            if not _is_wheel(source):
                self._patch(source)
        wanted = [source for source in self.pins if _is_wheel(source) or _build_of(source).get("kind") == "kernels"]
        if not wanted:
            return
        store = self.store = Store(self.store_path, create=True)

        self._packages = environment.Packages(self.python)
        calls = {source["name"]: partial(self._obtain, source, store) for source in wanted}
        build_wheel.build_all(calls, self.options.get("jobs"))

    def install(self) -> None:
        """Put every source into the environment; raises NodeError `build-failed` and what `uv.failure` makes."""
        for source in self.pins:
            how = source.get("install", "wheel")
            log(f"installing source {source['name']} ({how})")
            progress(f"installing source {source['name']}", ask=at_work)
            if _build_of(source).get("kind") == "inplace":
                flags = git_source.option_flags(_build_of(source).get("flags") or [])
                self._in_tree(source, ["setup.py", "build_ext", "--inplace"] + flags)
            if source["name"] in self.wheels:
                uv.refuse_unsafe(self.wheels[source["name"]])
                # Never from the cache: the same version may have been built from another commit before.
                self._uv(["--link-mode", "copy", "--reinstall", _url(self.wheels[source["name"]])], source)
            if how == "path":
                self._add_path(source)
            elif how == "editable":
                self._editable(source)
            if how != "wheel" and source.get("generated"):
                self.compiled[source["name"]] = self._compiled(source)  # before an import may compile more
        for tree in self.working_trees:
            log(f"installing the working tree {tree['at']} ({tree['install']})")
            if tree["install"] == "editable":
                self._editable(tree)
            else:
                self._add_path(tree)

    def prove(self) -> None:
        """Import every extension that was built, and all that the stack names.

        Nothing but the stack says what a build in its own tree should have made. A wheel that has worked nowhere yet is
        not kept in the store then, whoever built it: its builder may be dead. Raises NodeError `extension-broken` and,
        for such a tree, `extensions-missing` (exit 4).
        """
        for source in self.pins:
            name, facts = source["name"], self.built.get(source["name"])
            names = list((_build_of(source) if facts is None else facts).get("extensions") or [])
            if not names:
                continue
            progress("importing what was compiled", name)
            try:
                imports = proof.imports(self.python, name, names, self._own_env(source))
            except NodeError as error:
                if facts is None:
                    raise diagnose.missing(
                        f"the tree of source {name}", error.why, error.details["extensions"]
                    ) from None
                if self.store is not None:
                    self.store.reject(facts["key"], error.why)
                raise
            if facts is None:
                self.built[name] = {"from": "built", "route": "in place", "extensions": names, "imports": imports}
                continue
            facts["imports"] = imports
            if self.store is not None and not imports["unchecked"]:
                self.store.proved(facts["key"])

    def distributions(self) -> dict[str, str]:
        """Name -> version of every wheel that `patch_and_build` made, by its file name."""
        names = [os.path.basename(path).split("-") for path in self.wheels.values()]
        return {words[0]: words[1] for words in names}

    def rows(self) -> list[Json]:
        """What the result says of each source."""
        out = []
        for source in self.pins:
            one = {key: source[key] for key in _KEYS if key in source}
            if self.bundle and source["name"] in self.bundles:
                one["bundle"] = self.bundle
            for key, by_source in (("patches", self.patched), ("build", self.built), ("compiled", self.compiled)):
                if source["name"] in by_source:
                    one[key] = by_source[source["name"]]
            out.append(one)
        return out

    def _tree(self, source: Json) -> str:
        """The checked tree of a source, fetched when it is asked for the first time."""
        name = source["name"]
        if name not in self.trees:
            if _is_wheel(source):
                folder = tempfile.mkdtemp(prefix=f"source-{name}-", dir=self.tool.tmp)
            else:
                folder = os.path.join(self.environment, "src", name)
            above = name + "/"
            parts = {key[len(above) :]: path for key, path in self.bundles.items() if key.startswith(above)}
            self.links[name] = git_source.fetch(source, folder, self.bundles.get(name), parts)
            for output in source.get("outputs") or ():
                self._link_output(name, folder, output)
            self.trees[name] = folder
        return self.trees[name]

    def _link(self, tree: Json) -> None:
        """Make `src/<name>` a link to a folder of the user. Raises NodeError `source-unreachable` (exit 7)."""
        name, place = paths.checked_name(tree.get("name"), "source name"), str(tree.get("at") or "")
        above, real = os.path.realpath(paths.envs_dir(self.prefix)), os.path.realpath(place)
        problem = git_source.tree_state(place)["problem"] if place.startswith("/") else "has no absolute path"
        if not problem and (real + "/").startswith(above + "/"):
            problem = "lies among the environments, which envbuild removes"
        if problem:
            raise NodeError(
                "source-unreachable",
                f"the working tree of source {name}, {place}, {problem}",
                hint="use a file system that the node mounts too, or pin the source by `git:` and `commit:` in the "
                "stack file",
                exit_code=Exit.REFUSED,
            )
        link = os.path.join(self.environment, "src", name)
        os.makedirs(os.path.dirname(link), exist_ok=True)
        os.symlink(place, link)
        self.trees[name] = link

    def _link_output(self, name: str, folder: str, output: str) -> None:
        """Make a folder that runs write a link to one outside the environment. Raises NodeError `request-invalid`."""
        place, kept = os.path.join(folder, output), os.path.join(paths.outputs(self.prefix, self.stack, name), output)
        above = os.path.dirname(place)
        os.makedirs(above, exist_ok=True)
        # Neither may the repository have files there, nor a link that leads out of the tree.
        if os.path.lexists(place) or os.path.realpath(above) != os.path.join(
            os.path.realpath(folder), *output.split("/")[:-1]
        ):
            raise NodeError(
                "request-invalid",
                f"source {name}: `outputs` names {output}, which has files of the repository",
                hint="name what runs write there in `generated:`",
            )
        os.makedirs(kept, exist_ok=True)
        os.symlink(os.path.relpath(kept, above), place)  # relative, so that every prefix has one root

    def _project(self, source: Json) -> str:
        folder = self.trees[source["name"]]
        project = os.path.join(folder, source["path"]) if source.get("path") else folder
        if not os.path.isdir(project):
            raise diagnose.failure(f"source {source['name']}", f"it has no folder {source['path']}")
        return project

    def _patch(self, source: Json) -> None:
        name = source["name"]
        if not self.specs[name] or name in self._applied:
            return
        self._applied.add(name)
        if self._facts is None:
            self._facts = patch_sources.facts_of(self.python, self.tool.environ(), self.options.get("nvcc"))
        folder, links = self.trees[name], self.links[name]
        self.patched[name] = patch_sources.of_source(source, folder, links, self.specs[name], self._facts)

    def _inputs(self, source: Json) -> Json:
        """What decides the bits of a source's wheel, but for the packages: these are known once they are installed."""
        own = _own(source)  # its variables may name another compiler, or another MPI's
        asked = repr(sorted(own.items()))
        if asked not in self._toolchains:
            # Programs of packages count where the packages do: here they are looked for in a folder that has none.
            programs = None if self._whole else os.path.join(self.environment, "src")
            given = (self._for_builds, own, self._arch_list, self.cuda_home)
            env = self.tool.environ(environment.variables(self.environment, *given, programs=programs))
            tools = build_key.read_toolchain(self.python, self.cuda_home, env)
            # Compilers of conda lie in the environment, which lies elsewhere in another prefix.
            names = tools["environment"].items()
            tools["environment"] = {name: value.replace(self.environment, "@environment@") for name, value in names}
            self._toolchains[asked] = tools
        digests = [patch.digest(spec) for spec in self.specs[source["name"]]]
        return build_key.key_inputs(source, self.variant, self._toolchains[asked], self._arch_list, digests, {})

    def _visible(self, source: Json, packages: environment.Packages) -> dict[str, str]:
        """The packages that the build of a source sees; its pyproject.toml names some of them."""
        if self._whole:
            return packages.versions()
        self._tree(source)
        self._patch(source)
        # Kernels are built by a project of ours.
        folder = "" if _build_of(source).get("kind") == "kernels" else self._project(source)
        return packages.closure(environment.wanted(folder, source))

    def _obtain(self, source: Json, store: Store, budget: Budget) -> None:
        """The wheel of a source (or of its kernels), from the store or built; and what the result says of it."""
        name, inputs, versions = source["name"], self._inputs(source), self._packages.versions()
        owner = {"run": self.run, "what": f"{name} at {source['commit']:.12}"}

        def build(out: str) -> Json:
            return dict(self._build(source, out, inputs["packages"], budget), patches=self.patched.get(name) or [])

        entry, built = self.handed.entry(store, name, inputs, versions, self.tool.tmp), False
        if entry is None:
            inputs = store.like(inputs, versions) or dict(inputs, packages=self._visible(source, self._packages))
            entry, built = obtain(store, inputs, owner, build, self.tool.tmp)
        facts = dict(entry.facts)
        patched = facts.pop("patches", [])
        if patched:
            self.patched.setdefault(name, patched)
        facts.update(key=entry.key, wheel=os.path.basename(entry.wheel), sha256=entry.sha256)
        facts["from"] = "built" if built else "store"
        facts["store"] = {"path": store.path, "kept": entry.stored, "notes": list(store.notes)}
        if name in self.handed.outcome:
            facts["handed"] = self.handed.outcome[name]
        if not built:
            _check_extensions(source, facts)
            log(f"{name}: the wheel store has {facts['wheel']} (key {entry.key:.12})")
        facts["rebuild"] = self._compare(source, entry, budget) if self.options.get("check_rebuild") else None
        self.wheels[name] = entry.wheel
        self.built[name] = facts

    def _build(self, source: Json, out: str, packages: dict[str, str], budget: Budget, anew: bool = False) -> Json:
        """Fetch, patch and build one wheel, seeing `packages`, into the folder `out`; result of `build_wheel`."""
        self._tree(source)
        self._patch(source)
        project = self._project(source)
        build = _build_of(source)
        kernels = build.get("kind") == "kernels"
        if kernels:
            made = tempfile.mkdtemp(prefix=f"kernels-{source['name']}-", dir=self.tool.tmp)
            project = build_kernels.project(self.trees[source["name"]], source, build, os.path.join(made, "project"))
            kept: Json = {key: build[key] for key in ("environment", "memory_per_job") if key in build}
            source = dict(source, path=None, build=dict(kept, extensions=build_kernels.extensions(build)))
        options = build_wheel.Options(
            self.tool,
            budget,
            variables=self._for_builds,
            arch_list=self._arch_list,
            cuda_home=self.cuda_home,
            anew=anew,
            view=None if self._whole else partial(self._packages.view, wanted=packages),
        )
        facts = build_wheel.build_wheel(self.python, source, project, out, options)
        return dict(facts, route="kernels") if kernels else facts

    def _compare(self, source: Json, entry: Entry, budget: Budget) -> Json:
        """Build what there is a wheel of once more; which members differ."""
        with tempfile.TemporaryDirectory(prefix="rebuild-", dir=self.tool.tmp) as out:
            again = self._build(source, out, entry.inputs["packages"], budget, anew=True)
            return build_wheel.compare(entry.wheel, again["wheel"])

    def _variables(self, own: Json) -> dict[str, str | None]:
        return environment.variables(self.environment, self._given, own, self._arch_list, self.cuda_home)

    def _own_env(self, source: Json) -> dict[str, str]:
        alone = environment.no_repository(os.path.join(self.environment, "src"))
        return self.tool.environ(dict(self._variables(_own(source)), TMPDIR=self.tool.tmp, **alone))

    def _editable(self, source: Json) -> None:
        program = program_files.text("envbuild.node.build.programs", "editable")
        out = tempfile.mkdtemp(prefix=f"editable-{source['name']}-", dir=self.tool.tmp)
        self._in_tree(source, ["-c", program, out])
        words = [_url(os.path.join(out, wheel)) for wheel in os.listdir(out)]
        self._uv(words or ["--no-build-isolation", "-e", _url(self._project(source))], source)

    def _in_tree(self, source: Json, words: list[str]) -> None:
        """Run the environment's interpreter in the project's own folder; what it compiles is equal for every prefix."""
        project = self._project(source)
        had_build = os.path.lexists(os.path.join(project, "build"))
        env = self._own_env(source)
        tools = environment.look(env, self.cuda_home)
        # A compiler takes the last that fits: headers of packages and of the interpreter lie there, too.
        places = {self.prefix: "prefix", self.environment: "env", self.trees[source["name"]]: "src/" + source["name"]}
        env.update(environment.equal_files(env, tools, places))
        env.update(environment.shared_runtime(env, tempfile.mkdtemp(prefix="runtime-", dir=self.tool.tmp)))
        done = proc.run([self.python] + words, timeout=uv.DEADLINE, env=env, cwd=project)
        if not done.ok:
            paths.refuse_full(done.err, project, uv.tail(done.err))
            raise _failed(source, done)
        if not had_build and source not in self.working_trees:
            paths.remove_tree(os.path.join(project, "build"))

    def _compiled(self, source: Json) -> list[str]:
        """The modules, in the source's own tree, that were compiled where runs may compile, too."""
        libraries = [path for path, _ in merkle.walk(self.trees[source["name"]]) if path.endswith(".so")]
        return sorted(
            path for path in libraries if any(merkle.glob_match(path, pattern) for pattern in source["generated"])
        )

    def _add_path(self, source: Json) -> None:
        project = self._project(source)
        for site in installed.site_packages(self.environment):
            path = os.path.join(self.environment, site, f"envbuild-source-{source['name']}.pth")
            paths.write_atomic(path, os.fsencode(project) + b"\n")

    def _uv(self, args: list[str], source: Json) -> None:
        """Install what `args` names, and nothing else."""
        always = ["pip", "install", "--python", self.python, "--no-deps", "--no-index", "--no-cache"]
        done = self.tool.run(always + args, dict(self._variables(_own(source)), TMPDIR=self.tool.tmp))
        if done.ok:
            return
        error = uv.failure(done, f"building source {source['name']}", self.environment)
        raise error if error.exit_code != Exit.BUILD_FAILED else _failed(source, done)


def _is_wheel(source: Json) -> bool:
    return bool(source.get("install", "wheel") == "wheel")


def _build_of(source: Json) -> Json:
    """What the stack says of a source's build."""
    return source.get("build") or {}


def _own(source: Json) -> dict[str, str]:
    """The variables of a source's own build."""
    return _build_of(source).get("environment") or {}


def _check_extensions(source: Json, facts: Json) -> None:
    """What a stack asks for is no part of the build key: a wheel from the store may be older than the wish."""
    missing = sorted(set(_build_of(source).get("extensions") or []) - set(facts.get("extensions") or []))
    if missing:
        why = f"{facts['wheel']} in the wheel store holds no {', '.join(missing)}"
        raise diagnose.missing(f"the wheel of source {source['name']}", why, missing)


def _failed(source: Json, done: proc.Finished) -> NodeError:
    what, text = f"source {source['name']}", done.out + "\n" + done.err
    diagnose.write_down(what, text)
    log(uv.tail(text, 400))
    return diagnose.of_output(what, text)


def _url(path: str) -> str:
    """A path as uv takes it whatever its letters: in a plain one `; ` begins a marker."""
    return "file://" + quote(path)
