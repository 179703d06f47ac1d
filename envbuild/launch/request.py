"""What a recipe is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envbuild.launch.topology import Place
from envbuild.model.launch import Command, Deviation, Launch, LaunchData
from envbuild.model.reference import Reference

if TYPE_CHECKING:
    from envbuild.model.stack import Profile


@dataclass(frozen=True, slots=True)
class Order:
    """`data` is the stack's own `reference.launch`, `values` what the user set, `findings` the ids of the stack.

    `profiles`: all that the stack has; what is started is of the one named `profile_name`.
    """

    stack: str
    profile_name: str
    profiles: Mapping[str, Profile]
    reference: Reference
    data: LaunchData
    values: Mapping[str, str]
    place: Place
    findings: frozenset[str] = frozenset()

    def directory(self) -> str:
        """The working directory of the stack's program."""
        return self.place.source(self.data.source, self.data.folder)

    @property
    def profile(self) -> Profile:
        """The profile that is started."""
        return self.profiles[self.profile_name]

    def edited(self, name: str) -> bool:
        """Whether a source of the profile has this edit."""
        return self.profile_name in self.editing(name)

    def editing(self, name: str) -> tuple[str, ...]:
        """The profiles of the stack with a source that has this edit."""
        rows = self.profiles.items()
        return tuple(own for own, profile in rows if any(name in source.patches for source in profile.pinned_sources))

    def without_timers(self, stages: int) -> tuple[str, ...]:
        """Why DeepSpeed's timers must be off: newer ones stop at them in a pipeline; else nothing.

        Seen with 0.18.3, 0.19.0, 0.19.4 and 0.19.8 ("timer has already been started"), with wall_clock_breakdown as
        with flops_profiler. The documents, of 0.6.3 and 0.10.3, have them on.
        """
        if stages < 2 or not self.deepspeed_since("0.18"):
            return ()
        return (
            f"{stages} pipeline stages: wall_clock_breakdown is off, and flops_profiler where the document has it; "
            "with either this DeepSpeed stops in backward",
        )

    def takes_mpi_flag(self) -> bool:
        """Whether DeepSpeed knows --deepspeed_mpi: 0.10.3 does, 0.19.0 ends at it, and finds MPI by itself."""
        # 0.18 is only a point between the two that were tried. Where no version is known, the document's flag stays.
        return not self.deepspeed_since("0.18")

    def deepspeed_since(self, release: str) -> bool:
        """Whether the profile pins a DeepSpeed of this release or a later one."""
        from packaging.requirements import Requirement
        from packaging.version import Version

        wanted = (Requirement(text) for text in self.profile.packages)
        pins = (Version(pin.version) for each in wanted if each.name == "deepspeed" for pin in each.specifier)
        return any(pin >= Version(release) for pin in pins)

    def launch(self, model: str, commands: tuple[Command, ...], **more: Any) -> Launch:
        """What is started at this place; `more`: the fields of a launch that the recipe decides."""
        return Launch(
            stack=self.stack,
            profile=self.profile_name,
            nodes=self.place.nodes,
            gpus_per_node=self.place.gpus_per_node,
            model=model,
            commands=tuple(map(_as_srun, commands)),
            **more,
        )

    def deviations(self, *rows: tuple[str, str]) -> tuple[Deviation, ...]:
        """Deviations that answer findings of this stack; a user's own stack may have none of them."""
        return tuple(Deviation(finding=finding, does=does) for finding, does in rows if finding in self.findings)


def _as_srun(command: Command) -> Command:
    """An srun ends with the first rank that fails: by itself it waits for the others, which wait for that rank.

    Its tasks use all processors of the job: where a site binds tasks, each has one, and all ranks of a node may be one
    task.
    """
    if command.argv[0] != "srun":
        return command
    told = {"SLURM_KILL_BAD_EXIT": "1", "SLURM_CPU_BIND": "none"}
    return command.model_copy(update={"environment": {**command.environment, **told}})
