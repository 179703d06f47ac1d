"""One item of a smoke test and each check of it being put together: what is asked, time left, failures, metrics."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, field

from envbuild.node.logs import progress
from envbuild.node.protocol import Json, plain, plural
from envbuild.node.smoke.runner import Outcome, Scratch, how_it_ended, run_programs

__all__ = ["Part", "Spec", "Work", "bus_bandwidth", "plain", "plural"]


@dataclass
class Spec:
    """What is checked: the environment, its lock variant as JSON, and whether GPUs are part of it.

    `gpus`: how many the target is to have (0: not said). `peaks`: dense TFLOP/s of 16 bits, verified, and `links`: GB/s
    that NVLink gives one way, both by name of GPU. `image`: the environment is one of an image, which has no stamp.
    `in_use`: GPUs that others use, as `gpu_state.occupied` has them.
    """

    environment: str
    variant: Json
    cuda: bool
    only: tuple[str, ...] = ()
    gpus: int = 0
    peaks: dict[str, float] = field(default_factory=dict)
    links: dict[str, float] = field(default_factory=dict)
    image: bool = False
    in_use: list[Json] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Take from the variant what a check may change for itself."""
        self.variables = dict(self.variant.get("environment") or {})
        self.base = str((self.variant.get("base") or {}).get("kind", "none"))


@dataclass
class Work:
    """One item: what is checked, where its programs run, and its deadline (seconds from when this is made)."""

    spec: Spec
    scratch: Scratch
    deadline: float

    def __post_init__(self) -> None:
        """Start now."""
        self._until = time.monotonic() + self.deadline

    def left(self) -> float:
        """Seconds until the deadline, at least a tenth, so that what is started can say that it was late."""
        return max(0.1, self._until - time.monotonic())

    def spent(self) -> float:
        """Seconds since the start."""
        return self.deadline - (self._until - time.monotonic())

    def run(self, name: str, request: Json, alone: bool = False) -> Outcome:
        """What one program reports; see `runner.run_programs`."""
        return run_programs(self.scratch, name, [request], self.left(), alone)[0]


@dataclass
class Part:
    """One check being put together: failures, metrics and details; `name` as in the evidence, `smoke/…`.

    `left_out`: metrics that could not be measured here, and why. `stands_for`: other names of metrics in floors, and
    what is to be told of it where one is used. `whose`: of metrics that are of one GPU, which. `seconds`: how long it
    took, once it is stopped.
    """

    name: str
    failures: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    metrics: list[Json] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    stands_for: dict[str, tuple[str, str]] = field(default_factory=dict)
    whose: dict[str, str] = field(default_factory=dict)
    details: Json = field(default_factory=dict)
    says: str = ""
    skipped: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        """Start now."""
        progress("check", self.name.partition("/")[2])
        self._started = time.monotonic()

    def stop(self, seconds: float | None = None) -> Part:
        """Fix the time it took: `seconds` where it is known, else since it was made."""
        self.seconds = time.monotonic() - self._started if seconds is None else seconds
        return self

    def take(self, outcome: Outcome, deadline: float, who: str) -> None:
        """Add the failures that one process reported, and how it ended; `deadline` of its item (seconds)."""
        self.failures.extend(str(event.get("what")) for event in outcome.of("failure"))
        ended = how_it_ended(outcome, deadline)
        if ended:
            self.failures.append(f"{who} {ended}")
            self.details["output"] = (self.details.get("output", "") + outcome.stderr)[-6000:]

    def demand(self, outcome: Outcome, *names: str | tuple[str, ...]) -> None:
        """Take facts and metrics, the named ones last; one that is missing is a failure. A tuple: one of its names."""
        self.details.update(outcome.facts())
        metrics = {str(event.get("name")): event for event in outcome.of("metric")}
        wanted = [name if isinstance(name, tuple) else (name,) for name in names]
        for name in [name for name in metrics if name not in {one for accepted in wanted for one in accepted}]:
            self.add_metric(metrics[name])
        for accepted in wanted:
            present = [name for name in accepted if name in metrics]
            if not present:
                self.failures.append(f"the metric {' or '.join(accepted)} was not reported")
            for name in present:
                self.add_metric(metrics[name])

    def add_metric(self, event: Json) -> None:
        """One Metric as the model wants it."""
        metric: Json = {key: float(event[key]) for key in ("median", "least", "greatest")}
        if not all(math.isfinite(value) for value in metric.values()):
            self.failures.append(f"the metric {event['name']} is not a finite number")
            return
        metric.update({"name": str(event["name"]), "unit": str(event["unit"]), "n": int(event["n"])})
        self.metrics.append(metric)

    def check(self) -> Json:
        """Check JSON (`model/evidence.py`)."""
        failures = self.failures + self.missed
        details = dict(self.details)
        if failures:
            details["failures"] = failures[:50]
            details["only_floors"] = not self.failures
        status = "failed" if failures else "skipped" if self.skipped else "passed"
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        return {
            "name": self.name,
            "status": status,
            "says": failures[0] + more if failures else self.skipped or self.says,
            "seconds": round(self.seconds, 3),
            "metrics": self.metrics,
            "details": details,
        }


def bus_bandwidth(name: str, seconds: list[float], size: float, world: int) -> Json:
    """The metric (GB/s) of all-reduces of `size` bytes over `world` ranks, from the slowest rank's seconds of each."""
    factor = 2.0 * (world - 1) / world * size / 1e9
    rates = [factor / max(float(took), 1e-9) for took in seconds]
    metric = {"name": name, "unit": "GB/s", "n": len(rates), "median": statistics.median(rates)}
    return dict(metric, least=min(rates), greatest=max(rates))
