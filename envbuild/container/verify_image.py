"""Looking into an image that is built: the environment against the lock, the smoke test, two images file by file.

Nothing of envbuild is in an image: the node program goes in by standard input and leaves nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from envbuild.container.builders import Builder
from envbuild.container.select import locked_stack
from envbuild.errors import EnvbuildError
from envbuild.model.lock import Lock, Variant
from envbuild.node.program_files import carried, sent
from envbuild.node.protocol import PROTOCOL
from envbuild.node.redact import redact_data
from envbuild.node.variables import same_gpus
from envbuild.text import how_it_ended

LABEL = "dev.envbuild."
_READ = 1 << 20


@dataclass(frozen=True)
class Inspected:
    """An image of ours: what its labels say, and the variant of the lock that it is of."""

    image: str
    id: str
    stack: str
    profile: str
    environment: str
    variant: Variant

    def named(self) -> dict[str, str]:
        """What every answer has."""
        return {"image": self.image, "id": self.id, "stack": self.stack, "profile": self.profile}


def inspect_image(builder: Builder, image: str, stack: str | None = None) -> Inspected:
    """Read the labels of an image, and find its variant in the lock of `stack` (None: the one that they name).

    Raises EnvbuildError: `image-not-ours`, `image-unknown` (exit 2), `image-of-another-lock` (7), those of
    `locked_stack`.
    """
    facts = builder.inspect(image)
    labels = facts["config"].get("Labels") or {}
    about = {name: str(labels.get(LABEL + name, "")) for name in ("stack", "profile", "environment")}
    if not about["stack"] or not about["environment"].startswith("/"):
        raise EnvbuildError(
            "image-not-ours", f"{image} was not built by envbuild", why="it has no labels that name a stack"
        )
    lock = locked_stack(stack or about["stack"], about["profile"]).lock
    variant = variant_of(image, lock, facts["config"])
    return Inspected(image, str(facts["id"]).removeprefix("sha256:"), variant=variant, **about)


def variant_of(image: str, lock: Lock, config: Mapping[str, Any]) -> Variant:
    """The variant of a lock that an image is of, by the digest in its labels and the GPUs that it compiled for.

    Raises EnvbuildError `image-of-another-lock` (exit 7) where no variant gives it.
    """
    environ = dict(str(setting).partition("=")[::2] for setting in config.get("Env") or ())
    archs, labels = environ.get("TORCH_CUDA_ARCH_LIST"), config.get("Labels") or {}
    stack, profile, digest = (str(labels.get(LABEL + name) or "") for name in ("stack", "profile", "lock"))
    for locked in lock.variants:
        for bound in (None, tuple(archs.split(";")) if archs else ()):
            variant = locked.with_arch_list(lock.stack, lock.profile, bound)
            if f"sha256:{variant.digest}" == digest:
                return variant
    raise EnvbuildError(
        "image-of-another-lock",
        f"{image} matches no variant of the lock of {lock.stack} ({lock.profile})",
        why=f"its labels say {stack} ({profile}), {digest[:19] or 'no lock'}",
        hint="build it again from this lock, or name its own stack with `--stack`",
    )


def verify_image(builder: Builder, image: Inspected) -> dict[str, Any]:
    """The node program's `verify`, run in a container as the image's own user; its result, and `image`, `id`.

    Packages are compared with the lock, files with their RECORD; the root is measured. Raises what the node program
    reports.
    """
    args = {"stack": image.stack, "limit": 20, **asked_of_image(image.environment, image.variant)}
    return {**_ask(builder, image, "verify", args), **image.named()}


def asked_of_image(environment: str, variant: Variant) -> dict[str, Any]:
    """The arguments with which the verbs `verify` and `smoke` look at an environment in an image."""
    return {"image": True, "environment": environment, "variant": variant.to_json_dict()}


def smoke_image(builder: Builder, image: Inspected, *, gpus: bool) -> dict[str, Any]:
    """The smoke test of the lock, run in a container; its result, and `image`, `id`."""
    args = {
        **asked_of_image(image.environment, image.variant), "cuda": gpus,
        "items": [item.to_json_dict() for item in image.variant.smoke],
        "tmp": "/tmp",  # noqa: S108 - in a container that lives as long as the test
    }  # fmt: skip
    return {**_ask(builder, image, "smoke", args, gpus=gpus), **image.named()}


def as_junit(image: str, answer: dict[str, Any]) -> str:
    """What `verify_image` (and, as `smoke`, `smoke_image`) found, as the XML that CI systems show."""
    from xml.etree import ElementTree

    from envbuild.model.evidence import Check
    from envbuild.report.formats import suite
    from envbuild.text import visible_data

    image, answer = visible_data(redact_data([image, answer]))
    checks = [Check.from_plain(check) for check in (*answer["checks"], *answer.get("smoke", {}).get("checks", []))]
    started = datetime.now(UTC).isoformat()
    return ElementTree.tostring(suite(answer["stack"], image, checks, started), encoding="unicode") + "\n"


def _ask(builder: Builder, image: Inspected, verb: str, args: dict[str, Any], *, gpus: bool = False) -> dict[str, Any]:
    prefix = image.environment.rpartition("/envs/")[0]
    request = {"protocol": PROTOCOL, "verb": verb, "run": "image-check", "prefix": prefix, "args": args}
    python = carried(f"{image.environment}/bin/python", verb)
    command = [*(same_gpus(os.environ) if gpus else ()), *python]
    done = builder.run(image.image, command, sent(request), gpus=gpus)
    for line in reversed(done.out.splitlines()):
        if line.startswith('{"protocol":'):
            answer = json.loads(line)
            if answer["ok"]:
                return dict(answer["result"])
            raise EnvbuildError.from_dict(answer["error"])
    output = (done.err or done.out).strip()[-800:]
    raise EnvbuildError(
        "image-does-not-run",
        f"the node program gave no answer in a container of {image.image}",
        why=output or ("it did not end in time" if done.timed_out else f"it {how_it_ended(done.rc)}"),
        hint="test by hand, with the builder's own `run`, whether any program starts in the image",
    )
