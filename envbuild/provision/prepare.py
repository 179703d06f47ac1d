"""Everything a verb needs before it looks at a node: stack, profile, target and lock, agreed with each other."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild.catalog import loader
from envbuild.errors import EnvbuildError
from envbuild.lock.agreement import asked, refuse_edited
from envbuild.lock.files import read_lock
from envbuild.lock.first_use import fill, read_first_uses
from envbuild.lock.profile import choose_profile
from envbuild.model.lock import Lock
from envbuild.model.plan import Plan
from envbuild.model.stack import Stack
from envbuild.model.target import HostSource, Target
from envbuild.provision.contact import log_in_ahead
from envbuild.provision.hosts import Narrowing, Selection, settle_hosts
from envbuild.provision.inventory import expand_hosts
from envbuild.provision.supported import refuse_unsupported


@dataclass(frozen=True)
class Choice:
    """What the user asked for; None leaves it to target, stack and rules."""

    target: str
    stack: str | None = None
    profile: str | None = None
    prefix: str | None = None
    variant: str | None = None
    interpreter: str | None = None
    base: str | None = None
    engine: str | None = None
    cache: str | None = None
    hosts: tuple[str, ...] = ()
    trust_first_use: bool = False
    narrowing: Narrowing = field(default_factory=Narrowing)


@dataclass(frozen=True)
class Prepared:
    """A stack, its profile, a target and the lock that belongs to them, with the hashes of this user's first uses.

    `lock_digest` is sha256 (hex) of the lock file as it is. `selection`: the target's hosts are these of more.
    `reference`: the stack as a loader finds it, a shipped name or a path. `profile_why`: why this profile, where
    nobody asked for it and it is not the stack's default.
    """

    stack: Stack
    profile: str
    target: Target
    lock: Lock
    lock_file: Path
    lock_digest: str
    choice: Choice
    selection: Selection | None = None
    reference: str = ""
    profile_why: str = ""

    @property
    def asked(self) -> tuple[str, ...]:
        """The packages that the lock has for themselves."""
        return asked(self.lock, self.stack.profiles[self.profile])

    def explained(self, plan: Plan) -> Plan:
        """The plan with the reason for a profile that nobody asked for, and what its stack says against it."""
        if not self.profile_why:
            return plan
        deviations = (f"{self.profile}: {text}" for text in self.stack.profiles[self.profile].deviations)
        return plan.model_copy(update={"profile_why": self.profile_why, "warnings": (*deviations, *plan.warnings)})


def prepare(
    choice: Choice,
    *,
    locked: bool = True,
    recorded: bool = False,
    jobs: bool = False,
    script: bool = False,
    ahead: bool = False,
) -> Prepared:
    """Load and compare. `recorded`: nodes will not be asked, their facts are recorded ones. `jobs`: the verb can work
    through jobs of a scheduler. `script`: what it would do is only printed. `ahead`: nodes are asked next; where the
    target lists them, logging in begins here.

    Raises EnvbuildError: the loaders' own, those of `settle_hosts`, `target-without-stack` (exit 2), `lock-missing`
    (exit 2); while `locked` is true, `lock-stale` (exit 2) when the stack file has changed since the lock was made and
    `lock-edited` (exit 5) when the lock holds something else than that file asks for; and
    `not-yet-supported` (exit 7) for a target whose nodes cannot be reached yet, unless `recorded`. `hash-mismatch`
    (exit 5): the lock has another hash than the file that this user first used.
    """
    found = loader.load_target(choice.target, _overrides(choice), template=True)
    target = found.target
    if not recorded:
        refuse_unsupported(target, jobs=jobs, script=script)
        loader.refuse_template(found)
    settled = None
    if ahead and target.connection.kind == "ssh" and not isinstance(target.hosts, HostSource):
        settled = settle_hosts(found, choice.narrowing)
        log_in_ahead(expand_hosts(settled[0].hosts), settled[0].connection)
    reference = choice.stack or loader.stack_of(found)
    if reference is None:
        raise EnvbuildError(
            "target-without-stack",
            f"the target {target.name} names no stack",
            hint="say which one: `--stack NAME`, or `stack:` in the target file",
        )
    loaded = loader.load_stack(reference)
    chosen = choose_profile(loaded, choice.profile, target, trust_first_use=choice.trust_first_use)
    profile = chosen.name
    path = loader.lock_path(loaded, profile)
    if loaded.shipped and not path.exists():
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
            hint=f"`envbuild lock check {reference}` says where; `envbuild lock create {reference}` makes a new lock",
        )
    if locked:
        refuse_edited(lock, loaded.stack, profile, path.name)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    # Last: who names the hosts may be a program or a network away.
    target, selection = settled or ((target, None) if recorded else settle_hosts(found, choice.narrowing))
    locked_now = fill(lock, read_first_uses())
    return Prepared(loaded.stack, profile, target, locked_now, path, digest, choice, selection, reference, chosen.why)


def _overrides(choice: Choice) -> dict[str, Any]:
    """Flags that stand above the target file."""
    given = {
        "prefix": choice.prefix,
        "base": choice.base,
        "engine": choice.engine,
        "interpreter": choice.interpreter,
        "cache": choice.cache,
        "hosts": list(choice.hosts) or None,
    }
    return {key: value for key, value in given.items() if value is not None}
