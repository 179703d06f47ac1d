"""Which variants fit an engine, and which rules do not apply inside an image."""

from __future__ import annotations

import re

from envbuild.model.facts import LibcFacts, NodeFacts
from envbuild.model.lock import Variant
from envbuild.model.target import Target
from envbuild.resolve.compat import Compat, Note
from envbuild.resolve.request import NOTHING, Decisions, decision

TARGET = Note("the target and the lock", "compared as they are")
# They compare what the node has outside of images: its C library, compilers and toolkits.
OUTSIDE = frozenset({"glibc-floor", "nvcc-absent", "gcc-range"})
_NGC = re.compile(r"(?:.*/)?nvidia/pytorch:([0-9]{2}\.[0-9]{2})-py3(?:@.*)?")


def engine_rule(variant: Variant, target: Target) -> Decisions:
    """`engine-fits`: the variant can be built with the target's engine; no decision if both are venv."""
    base, engine = variant.base, target.engine
    standing = f"image {base.image}" if base.kind == "image" else f"base {base.kind}"
    compared = (f"engine {engine}", f"{variant.engine} on {standing}")
    if variant.engine != target.installer:
        what = f"the variant is made by {variant.engine}, and the target asks for {target.installer}"
        return (decision("engine-fits", "refuse", what, compared, TARGET, f"`--engine {variant.engine}`"),)
    if engine == "container" and variant.outside:
        what = f"the source {variant.outside} uses folders of a node (`path:` or `outputs:`), which no image has"
        instead = "a target with `engine: venv`, or `git:` and `commit:` for the source, without `outputs:`"
        return (decision("engine-fits", "refuse", what, compared, TARGET, instead),)
    if engine == "container":
        if base.kind in ("none", "image"):
            what = f"the image is built on {base.image}" if base.image else "an image is built from the lock"
            return (decision("engine-fits", "allow", what, compared, TARGET),)
        what = f"the variant uses a base of the node ({base.kind}), which an image does not have"
        return (decision("engine-fits", "refuse", what, compared, TARGET, "a target with `engine: venv`"),)
    if base.kind == "image" and target.base != "image":
        what = f"the variant needs the image {base.image}, and the target does not build in images"
        instead = "a target with `engine: container`, or a profile that needs no image"
        return (decision("engine-fits", "refuse", what, compared, TARGET, instead),)
    return NOTHING


def in_image(variant: Variant, target: Target) -> bool:
    """Whether the environment will be inside an image that is not built yet."""
    return target.engine == "container" and variant.base.kind in ("none", "image")


def image_python(variant: Variant) -> Decisions:
    """`python-not-there` for an image, which brings its own interpreter."""
    compared = (f"Python {variant.python}", variant.base.image or "an image to be built")
    what = f"Python {variant.python} comes with the image; it was not looked at"
    return (decision("python-not-there", "allow", what, compared, TARGET),)


def seen_inside(facts: NodeFacts) -> NodeFacts:
    """The node as a process in a container sees it: its hardware and driver, not its system."""
    return facts.model_copy(update={"libc": LibcFacts(), "nvcc": (), "compilers": ()})


def image_tag(variant: Variant, compat: Compat) -> str | None:
    """The month (`22.02`) of NVIDIA's PyTorch image that the variant builds on, None for any other image."""
    found = _NGC.fullmatch(variant.base.image or "")
    return found.group(1) if found and found.group(1) in compat.images else None
