"""Why a run cannot go on with a node, as coded errors."""

from __future__ import annotations

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.resolution import Decision, Resolution

# What they say is of the place, not of the variants: it comes first.
_OF_THE_PREFIX = frozenset({"prefix-usable", "disk-space", "disk-inodes"})


def refusal(resolution: Resolution, fits: str = "") -> EnvbuildError:
    """Nothing fits a node: the error carries the rules that were against it. `fits`: what was tried, in words."""
    against = [decision for decision in resolution.decisions if decision.verdict == "refuse"]
    # Each of them has to go: what to do about one alone would lead to the next.
    instead = "; and ".join(dict.fromkeys(decision.instead for decision in against[:4] if decision.instead))
    what = f"{resolution.node}: no variant of {resolution.stack} fits this node"
    why = "; ".join(_told(decision) for decision in against[:4])
    if against and {decision.rule for decision in against} <= _OF_THE_PREFIX:
        what = f"{resolution.node}: {against[0].what}"
        why = "; ".join([*map(_told, against[1:4]), f"{resolution.nearest} of {resolution.stack} would fit otherwise"])
    between = "; or " if fits.startswith("`") else "; instead: "
    return EnvbuildError(
        against[0].rule if against else "nothing-fits",
        what,
        why=why,
        hint=between.join(filter(None, (fits, instead))) or "`envbuild plan --json` has every rule that was applied",
        exit_code=ExitCode.REFUSED,
        details={"node": resolution.node},
    )


def python_broken(node: str, path: str) -> EnvbuildError:
    """A node is without a Python after one was brought to `path`."""
    return EnvbuildError(
        "toolchain-python-broken",
        f"{node}: the Python that was brought does not run there",
        why=f"{path} is in place and is no usable Python; it may be built for another processor or libc",
        hint=f"try `{path} --version` on {node}; name a toolchain file with a fitting build (config key `toolchain`)",
        details={"node": node},
    )


def _told(decision: Decision) -> str:
    """What a rule says, and what is there instead where it knows."""
    found = decision.compared[1] if decision.compared else ""
    return f"{decision.what} ({found})" if found.startswith("there: ") else decision.what
