"""Everything a verb needs before it looks at a node: stack, profile, target and lock, agreed with each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envbuild.catalog import loader
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock.agreement import choose_profile, refuse_edited
from envbuild.lock.files import read_lock
from envbuild.model.lock import Lock
from envbuild.node.variables import is_of_stacks
from envbuild.provision.run.context import Choice, Prepared, Settings
from envbuild.provision.survey.hosts import refuse_unsupported, settle_hosts
from envbuild.regular_file import sha256_of


def prepare(
    choice: Choice,
    *,
    locked: bool = True,
    recorded: bool = False,
    jobs: bool = False,
) -> Prepared:
    """Load and compare. `recorded`: nodes will not be asked, their facts are recorded ones. `jobs`: the verb can work
    through jobs of a scheduler.

    Raises EnvbuildError: the loaders' own, those of `settle_hosts`, `target-without-stack` (exit 2), `lock-missing`
    (exit 2); while `locked` is true, `lock-stale` (exit 2) when the stack file has changed since the lock was made,
    `lock-edited` (exit 5) when the lock holds something else than that file asks for, and `source-unreachable`; and
    `not-yet-supported` (exit 7) for a target whose nodes cannot be reached yet, unless `recorded`.
    """
    named = {name: getattr(choice, name) for name in ("prefix", "base", "engine", "interpreter", "cache")}
    hosts = list(choice.hosts) or None
    if hosts and recorded and loader.load_target(choice.target, template=True).target.connection.kind == "job":
        hosts = None  # they choose among the recorded nodes; the job keeps its partition
    overrides = {key: value for key, value in {**named, "hosts": hosts}.items() if value is not None}
    given = loader.load_target(choice.target, overrides, template=True)
    target = given.target
    if not recorded:
        refuse_unsupported(target, jobs=jobs)
    loader.refuse_template(given, contacted=not recorded)
    reference = choice.stack or given.target.stack
    if reference is None:
        raise EnvbuildError(
            "target-without-stack",
            f"the target {target.name} names no stack",
            hint="name one: `STACK` after the command, or `stack:` in the target file",
        )
    loaded = loader.load_stack(reference)
    chosen = choose_profile(loaded, choice.profile, target)
    profile = chosen.name
    path = loader.lock_path(loaded, profile)
    if not path.exists():
        raise EnvbuildError(
            "lock-missing",
            f"the stack {loaded.stack.name} has no lock for the profile {profile} yet",
            why=f"there is no file {path}",
            hint=f"create it: {loader.lock_command(loaded, profile)}; `envbuild explain {reference}` needs none",
        )
    lock = read_lock(path)
    if locked and lock.manifest_digest != loader.manifest_digest(loaded.stack, profile):
        raise EnvbuildError(
            "lock-stale",
            f"{path.name} was made from another version of the stack {loaded.stack.name}",
            why="the profile in the stack file and the digest in the lock disagree",
            hint=f"`envbuild lock check {reference}` names them; `envbuild lock create {reference}` makes a new lock",
        )
    if locked:
        refuse_edited(lock, loaded.stack, profile, path.name)
    if not choice.trust_environment:
        _refuse_variables(lock, loaded.path)
    digest = sha256_of(path)
    # Last: who names the hosts may be a program or a network away.
    target, selection = (target, None) if recorded else settle_hosts(given, choice.narrowing)
    lock = _with_trees(lock, loaded, profile, build=locked)
    return Prepared(loaded.stack, profile, target, lock, path, digest, choice, selection, reference, chosen.why)


def _refuse_variables(lock: Lock, stack: Path) -> None:
    """Raises EnvbuildError `variable-refused` (exit 7): activate.sh would export it into the user's shell."""
    names = sorted({name for variant in lock.variants for name in variant.environment if not is_of_stacks(name)})
    if names:
        raise EnvbuildError(
            "variable-refused",
            f"the stack {lock.stack} sets {', '.join(names)}",
            why="activate.sh exports it into your shell, where programs may load or run what it names; the variables "
            "that stacks usually set (NCCL_*, CUDA_*, OMP_*, TORCH_*, ...) need no permission",
            hint=f"read {stack}, then add `--trust-environment`; or set it in your own target: `environment:`",
        )


def _with_trees(lock: Lock, loaded: loader.LoadedStack, profile: str, *, build: bool) -> Lock:
    """The lock with the user's working trees where they lie, relative to the stack file.

    Raises EnvbuildError `source-unreachable` (exit 7) to `build` where one stayed with the authors of a kit.
    """
    trees = loaded.stack.profiles[profile].working_trees
    folder = loaded.path.parent.resolve()
    places = {tree.name: str((folder / tree.path).resolve()) for tree in trees}
    if build and places:
        from envbuild.kit.manifest import NAME  # few stacks have such a source

        gone = [name for name, at in places.items() if at == str(folder) or not Path(at).is_dir()]
        if gone and (folder / NAME).is_file():
            raise EnvbuildError(
                "source-unreachable",
                f"the source {gone[0]} of {loaded.path.name} is a folder of its authors",
                why=f"a kit holds no such folder: {folder} has the report, the stack file and its lock",
                hint=f"ask the authors for the folder of {gone[0]}, then copy {loaded.path.name} and its lock there; "
                "or ask for a stack file with `git:` and `commit:`",
                exit_code=ExitCode.REFUSED,
            )
    variants = tuple(variant.with_trees(places) for variant in lock.variants)
    return lock.model_copy(update={"variants": variants}) if places else lock


def chosen(prepared: Prepared, settings: Settings) -> Prepared:
    """The same with no joint test where none is asked for. Raises EnvbuildError `smoke-unknown` (exit 2)."""
    from envbuild.node.smoke import only as names

    only = settings.only
    items = dict.fromkeys(item.name for variant in prepared.lock.variants for item in variant.smoke)
    there = [*items, *(["nodes"] if "machine" in items else [])]
    if wrong := names.unknown(only, there):
        raise EnvbuildError(
            "smoke-unknown",
            f"the smoke test of {prepared.stack.name} has no {wrong[0]!r}",
            why="--only names an item of its smoke list, or one check of it",
            hint=f"known: {', '.join(names.known(there))}{', extensions/CHECK' if 'extensions' in items else ''}",
        )
    if names.chosen(only, "nodes"):
        return prepared
    return prepared._replace(target=prepared.target.model_copy(update={"smoke_nodes": 0}))


def as_asked(prepared: Prepared, settings: Settings, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `smoke` with what was chosen, how many GPUs there are to be, what they and links can give."""
    from envbuild.provision.survey.ask import rules

    named = rules().named_gpus().items()
    return {
        **args,
        "only": list(settings.only),
        "gpus": prepared.target.expects.gpus_per_node or 0,
        "peaks": {name: gpu.dense_tflops for name, gpu in named if gpu.dense_tflops and gpu.note.firm},
        "links": {name: gpu.nvlink / 2 for name, gpu in named if gpu.nvlink},
    }
