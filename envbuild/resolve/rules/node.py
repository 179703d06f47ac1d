"""What the node and the way of training allow: visible GPUs, MIG, ZeRO under the pipeline engine, interfaces."""

from __future__ import annotations

import re
from collections.abc import Mapping

from envbuild.model.facts import NodeFacts
from envbuild.model.target import Target
from envbuild.node.probe.system import VIRTUAL_NIC
from envbuild.resolve.artifacts import dotted, numbers
from envbuild.resolve.compat import Compat, Note, is_model
from envbuild.resolve.health import driver_fault, mig_instances, what_shows_gpus
from envbuild.resolve.request import NOTHING, OURS, Decisions, Request, Ruling, physical_gpus, visible_gpus
from envbuild.text import plural


def unexpected(facts: NodeFacts, target: Target) -> tuple[str, ...]:
    """How the node differs from the hardware that the target expects."""
    expects, out = target.expects, []
    if expects.gpu is not None:
        others = sorted({gpu.name for gpu in facts.gpus if not is_model(expects.gpu, gpu.name)})
        if others or not facts.gpus:
            out.append(f"the target expects {expects.gpu} and the node has {', '.join(others) or 'no GPU'}")
    count = physical_gpus(facts)
    if expects.gpus_per_node is not None and count != expects.gpus_per_node:
        asks = f"; jobs ask for {expects.gpus_per_node}" if target.connection.kind == "job" else ""
        out.append(f"the target expects {expects.gpus_per_node} GPUs and the node has {count}{asks}")
    if expects.driver is not None and not _driver_fits(expects.driver, facts.driver.version):
        out.append(f"the target expects driver {expects.driver} and the node has {facts.driver.version or 'none'}")
    return tuple(out)


def _driver_fits(expected: str, version: str | None) -> bool:
    driver = numbers(version)
    for part in expected.split(","):
        match = re.fullmatch(r"\s*(>=|<=|==|>|<|)\s*([0-9.]+)\s*", part)
        if match is None or not driver:
            return False
        wanted = numbers(match.group(2))
        fits = {
            ">=": driver >= wanted,
            "<=": driver[: len(wanted)] <= wanted,
            ">": driver[: len(wanted)] > wanted,
            "<": driver < wanted,
        }.get(match.group(1), driver[: len(wanted)] == wanted)
        if not fits:
            return False
    return True


_NAMED = Note(
    "NCCL issue 1837: an interface that is named is found, or NCCL fails", "read; what gloo does was not checked"
)


def visible_gpus_rule(facts: NodeFacts, request: Request, _compat: Compat) -> Decisions:
    """`visible-gpus`: a process sees all GPUs of the node, or those of its job, and as many as are asked for."""
    physical, seen, wanted = physical_gpus(facts), visible_gpus(facts), request.gpus
    if not physical and wanted is None:
        return NOTHING
    asked = f", {wanted} asked for" if wanted is not None else ""
    says = Ruling("visible-gpus", (f"{seen} visible{asked}", f"{physical} in the node"), OURS)
    if wanted is not None and seen < wanted:
        instead = what_shows_gpus(facts, wanted) if physical >= wanted else f"{physical} GPUs"
        return says("refuse", f"{wanted} GPUs are asked for and {seen} can be seen", instead)
    if 0 < seen < physical and facts.scheduler.job and not request.exclusive:
        what = f"the job {facts.scheduler.job} sees {seen} of {physical} GPUs; it does not have the node for itself"
        return says("allow", what)
    if seen < physical:
        fault = driver_fault(facts)
        setting = "unset" if facts.visible_devices is None else repr(facts.visible_devices)
        why = fault.what if fault else f"CUDA_VISIBLE_DEVICES is {setting}"
        return says("warn", f"only {seen} of {physical} GPUs can be seen ({why})", what_shows_gpus(facts))
    return says("allow", f"all {physical} GPUs can be seen")


def mig_no_nccl(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`mig-no-nccl`: NCCL does not join MIG instances; without `gpus` one process is taken to run on each of them."""
    uses_nccl = request.torch is not None and request.wanted_flavour(compat) != "cpu"
    if not uses_nccl or not facts.gpus or all(gpu.mig_enabled is None for gpu in facts.gpus):
        return NOTHING
    on = [gpu for gpu in facts.gpus if gpu.mig_enabled]
    ranks = request.gpus or mig_instances(facts) or 1
    most = f"at most {plural(compat.mig_max_ranks, 'rank')} on MIG"
    compared = (f"MIG on {len(on)} of {len(facts.gpus)} GPUs, {plural(ranks, 'rank')}", most)
    says = Ruling("mig-no-nccl", compared, compat.mig_note)
    if not on:
        return says("allow", "MIG is off")
    if ranks <= compat.mig_max_ranks:
        return says("allow", "one process on one MIG instance works")
    nccl = max((numbers(v) for name, v in request.packages.items() if name.startswith("nvidia-nccl-")), default=())
    if nccl >= compat.mig_nccl:
        what = f"NCCL joins MIG instances since {dotted(compat.mig_nccl)}, as an experiment and through host memory"
        return says("warn", what, "whole GPUs")
    instead = "whole GPUs, CUDA_VISIBLE_DEVICES with one instance, or `training: {gpus: 1}` for one process"
    return says("refuse", "NCCL does not join MIG instances; training over several of them fails", instead)


def zero_needs_no_pipeline(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`zero-needs-no-pipeline`: the pinned DeepSpeed's pipeline engine takes ZeRO stage 0 or 1."""
    stage, pipeline, most = request.zero_stage, request.pipeline, compat.max_pipeline_zero_stage
    if stage is None or pipeline is None:
        return NOTHING
    engine = f"at most {most} with the pipeline engine" if pipeline else "no pipeline engine"
    says = Ruling("zero-needs-no-pipeline", (f"ZeRO stage {stage}", engine), compat.zero_note)
    if not pipeline or stage <= most:
        return says("allow", f"ZeRO stage {stage} works")
    what = f"ZeRO stage {stage} does not work with the pipeline engine"
    return says("refuse", what, f"ZeRO stage {most}, or no pipeline")


def interface_rule(variables: Mapping[str, object], facts: NodeFacts) -> Decisions:
    """`interface-absent`: NCCL and gloo look for the interface that a variable names alone, on one node too.

    A warning, as not every interface of a node is among its facts. NCCL takes what begins with the name.
    """
    interfaces = [nic.name for nic in facts.nics]
    usual = next((nic.name for nic in facts.nics if nic.addresses), "^lo,docker")
    decisions: Decisions = NOTHING
    for variable, value in variables.items():
        if not variable.endswith("_SOCKET_IFNAME") or not isinstance(value, str) or value[:1] in ("", "^"):
            continue
        names = value.removeprefix("=").split(",")
        begins = tuple(names) if variable.startswith("NCCL_") and not value.startswith("=") else ()
        known = any(name in interfaces or VIRTUAL_NIC.match(name) for name in names)
        if known or not interfaces or any(name.startswith(begins) for name in interfaces):
            continue
        # UCX has a variable of its own for what is usually the same interface.
        other = {"UCX_NET_DEVICES": "all" if usual.startswith("^") else usual}
        both = {variable: usual} | (other if variables.get("UCX_NET_DEVICES") == value else {})
        named = f"{' and '.join(both)} {'are' if len(both) > 1 else 'is'} {value}"
        what = f"{named}, and the node has no such network interface: NCCL and gloo fail at their start"
        instead = f"`environment: {{{', '.join(f'{name}: {to}' for name, to in both.items())}}}` in the target"
        decisions += Ruling("interface-absent", (value, ", ".join(interfaces)), _NAMED)("warn", what, instead)
    return decisions
