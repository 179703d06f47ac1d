"""What a recipe is asked for, and what a benchmark adds to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from envbuild.launch.command import Place
from envbuild.model.launch import Command, Deviation, Launch, LaunchData
from envbuild.model.reference import Bench, Reference
from envbuild.node.smoke.training_log import cut_short, losses, not_finite, read, runs
from envbuild.report.claimed import Gpus, share_of_peak
from envbuild.text import number

if TYPE_CHECKING:
    from envbuild.model.stack import Profile


# Percent of a GPU's dense peak: what a run can have, with room for how catalogs round.
_MOST = 105
UNKNOWN = Gpus(None, 0)


class Samples(NamedTuple):
    """The figures of a run's log without those of its warm-up, how many were left out, and why they are no result.

    `losses`: of its steps, in their order, where it tells them.
    """

    values: list[float]
    warm_up: int
    wrong: str
    losses: list[float]


def samples(bench: Bench, text: str, gpus: Gpus = UNKNOWN) -> Samples:
    """What a log tells of a run on these GPUs. A training that began anew has warmed up anew."""
    records = read(bench.log, text)
    telling = [record for record in records if bench.metric in record.values]
    parts = [[record.values[bench.metric] for record in part] for part in runs(telling)]
    values = [value for part in parts for value in part[bench.warmup :]]
    bad = next((value for value in values if not 0 < value < math.inf), None)
    peak = gpus.peak if gpus.firm else None
    high = next((value for value in values if (share_of_peak(bench.unit, value, peak) or 0.0) > _MOST), None)
    course = losses(bench.log, [text])
    few = f"its log has {len(values)} of at least {bench.least} lines with `{bench.metric}` after its warm-up"
    above = f"{bench.unit} is more than the peak of {gpus.name}, {number(gpus.peak or 0.0)}"
    wrong = (
        (few if len(values) < bench.least else None)
        or (f"its log has {bad:g} for `{bench.metric}`" if bad is not None else None)
        or (f"{number(high)} {above}" if high is not None else None)
        or not_finite(course)
        or cut_short(records)
    )
    return Samples(values, len(telling) - len(values), wrong or "", [loss for _, loss in course])


def course_in_words(losses: Sequence[float]) -> str:
    """What became of the loss: a figure of speed says nothing of that."""
    if len(losses) < 2:
        return ""
    went = "rose" if losses[-1] > losses[0] else "went"
    return f"the loss {went} from {losses[0]:.4g} to {losses[-1]:.4g} in {len(losses)} steps"


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
