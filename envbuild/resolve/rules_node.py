"""What the node and the way of training allow: visible GPUs, MIG, ZeRO under the pipeline engine."""

from __future__ import annotations

from envbuild.model.facts import NodeFacts
from envbuild.resolve.compat import Compat
from envbuild.resolve.decide import NOTHING, OURS, Decisions, decision
from envbuild.resolve.request import Request, physical_gpus, visible_gpus


def visible_gpus_rule(facts: NodeFacts, request: Request, _compat: Compat) -> Decisions:
    """`visible-gpus`: a process sees all GPUs of the node, or those of its job, and as many as are asked for."""
    there, seen = physical_gpus(facts), visible_gpus(facts)
    if not there and request.gpus is None:
        return NOTHING
    asked = f", {request.gpus} asked for" if request.gpus is not None else ""
    compared = (f"{seen} visible{asked}", f"{there} in the node")
    if request.gpus is not None and seen < request.gpus:
        what = f"{request.gpus} GPUs are asked for and {seen} can be seen"
        instead = (
            "request the GPUs in the job, or unset CUDA_VISIBLE_DEVICES" if there >= request.gpus else f"{there} GPUs"
        )
        return (decision("visible-gpus", "refuse", what, compared, OURS, instead),)
    if seen < there and facts.scheduler.job and not request.exclusive:
        what = f"the job {facts.scheduler.job} sees {seen} of {there} GPUs; it does not have the node for itself"
        return (decision("visible-gpus", "allow", what, compared, OURS),)
    if seen < there:
        setting = "unset" if facts.visible_devices is None else repr(facts.visible_devices)
        what = f"only {seen} of {there} GPUs can be seen (CUDA_VISIBLE_DEVICES is {setting})"
        return (decision("visible-gpus", "warn", what, compared, OURS, "unset CUDA_VISIBLE_DEVICES, or request all"),)
    return (decision("visible-gpus", "allow", f"all {there} GPUs can be seen", compared, OURS),)


def mig_no_nccl(facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`mig-no-nccl`: MIG instances of a GPU cannot talk to each other through NCCL."""
    if not facts.gpus or all(gpu.mig_enabled is None for gpu in facts.gpus):
        return NOTHING
    limits = compat.limits
    on = [gpu for gpu in facts.gpus if gpu.mig_enabled]
    compared = (
        f"MIG on {len(on)} of {len(facts.gpus)} GPUs, {request.ranks or 1} ranks",
        f"{limits.mig_max_ranks} rank",
    )
    if not on:
        return (decision("mig-no-nccl", "allow", "MIG is off", compared, limits.mig_note),)
    if (request.ranks or 1) <= limits.mig_max_ranks:
        return (decision("mig-no-nccl", "allow", "one process on one MIG instance works", compared, limits.mig_note),)
    what = "NCCL does not join MIG instances; training over several of them fails"
    return (decision("mig-no-nccl", "refuse", what, compared, limits.mig_note, "whole GPUs, or one process"),)


def zero_needs_no_pipeline(zero_stage: int, pipeline: bool, compat: Compat) -> Decisions:
    """`zero-needs-no-pipeline`: the pinned DeepSpeed's pipeline engine takes ZeRO stage 0 or 1.

    `zero_stage` is 0 to 3; `pipeline` whether the model runs under the pipeline engine (also with one stage).
    """
    most, note = compat.limits.max_pipeline_zero_stage, compat.limits.zero_note
    compared = (
        f"ZeRO stage {zero_stage}",
        f"at most {most} with the pipeline engine" if pipeline else "no pipeline engine",
    )
    if not pipeline or zero_stage <= most:
        return (decision("zero-needs-no-pipeline", "allow", f"ZeRO stage {zero_stage} works", compared, note),)
    what = f"ZeRO stage {zero_stage} does not work with the pipeline engine"
    return (decision("zero-needs-no-pipeline", "refuse", what, compared, note, f"ZeRO stage {most}, or no pipeline"),)


def zero_rule(_facts: NodeFacts, request: Request, compat: Compat) -> Decisions:
    """`zero-needs-no-pipeline` for a request that says both values."""
    if request.zero_stage is None or request.pipeline is None:
        return NOTHING
    return zero_needs_no_pipeline(request.zero_stage, request.pipeline, compat)
