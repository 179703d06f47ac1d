"""What the programs that build images say when they fail, and which coded error that is."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envbuild.errors import EnvbuildError

_NO_IDS = "the image has files of users for whom this user has no subordinate ids"
_NOT_HERE = "no image of this machine has that name, and `localhost` is no registry"
_NO_REGISTRY = "what answers there is no registry"
# What builders say, as patterns, and what it means.
OF_REGISTRIES = (
    ("StatusCode: 403", "registry-refused", "the registry gives nothing"),
    ("StatusCode: 404", "image-base-unknown", "the registry has no such image"),
    ("StatusCode: 5", "registry-unreachable", "the registry does not answer"),
    ("StatusCode: 429", "registry-busy", "the registry was asked too often"),
    ("manifest unknown", "image-base-unknown", "the registry has no such image or digest"),
    ("name unknown", "image-base-unknown", "the registry has no such image"),
    ("not found: manifest", "image-base-unknown", "the registry has no such image or digest"),
    ("match provided manifest digest", "image-base-unknown", "the registry has something else"),
    ("authentication required", "registry-refused", "the registry wants a login"),
    ("access to the resource is denied", "registry-refused", "the registry gives nothing"),
    ("toomanyrequests", "registry-busy", "the registry was asked too often"),
    ("invalid character '<'", "registry-not-a-registry", "a web page answers, no registry"),
    # docker's words, of its builds and of its `pull`.
    ("401 Unauthorized|no basic auth credentials", "registry-refused", "the registry wants a login"),
    ("403 Forbidden|HTTP 403 response|pull access denied", "registry-refused", "the registry gives nothing"),
    ("429 Too Many Requests", "registry-busy", "the registry was asked too often"),
    ("unknown type text/html", "registry-not-a-registry", "a web page answers, no registry"),
    ("resolve source metadata .*: not found", "image-base-unknown", "the registry has no such image or digest"),
    ("insufficient UIDs or GIDs", "image-without-ids", _NO_IDS),
    # What a registry says before it is asked for an image at all.
    ("https?://localhost/v2/", "image-base-unknown", _NOT_HERE),
    ("invalid status code from registry 403", "registry-refused", "the registry gives nothing"),
    ("invalid status code from registry 404", "registry-not-a-registry", _NO_REGISTRY),
    ("too many requests to registry", "registry-busy", "the registry was asked too often"),
    ("pinging container registry|HEAD request to .*: 5\\d\\d |unexpected HTTP status: 5|failed to do request: "
     '|Get "https?://[^" ]+/v2/": ', "registry-unreachable", "the registry does not answer"),
)  # fmt: skip
CAUSES = (
    *OF_REGISTRIES,
    ("image not known", "image-base-unknown", "the image is not on this machine"),
    ("executable file not found", "image-without-python", "the image has no Python to run it with"),
    ("python3: not found", "image-without-python", "the image has no Python to run it with"),
    ("No interpreter found|exit status 127", "image-without-python", "the image has not the Python that was named"),
    ("Hash mismatch for|DO NOT MATCH THE HASHES", "hash-mismatch", "a file is not the one that the lock names"),
    ("error setting ownership of", "image-without-ids", _NO_IDS),
    ("No space left on device", "disk-full", "the builder's storage is full"),
)
HINTS = {
    "image-base-unknown": "name another with `--base-image`, `--run-image` or `--fetch-image`",
    "image-without-python": "name another with `--base-image`, `--fetch-image` or `--python`",
    "image-without-ids": "ask for ranges of the user in /etc/subuid and /etc/subgid (package uidmap), then call "
    "`podman system migrate`; or build as root",
    "hash-mismatch": "do not use this index or mirror; if the lock is wrong, create it again",
    "disk-full": "remove images that are not needed (`rmi`), or give the builder's storage more room",
    "registry-refused": "log in with the builder's own `login`",
    "registry-busy": "wait, or log in with the builder's own `login`",
    "registry-unreachable": "check the name, the network and the proxy, or name a mirror's image with `--base-image`",
    "registry-not-a-registry": "check the name and the proxy; a portal may want a login",
}


def known(output: str, causes: Sequence[tuple[str, str, str]], what: str = "") -> EnvbuildError | None:
    """The error that a builder's words mean; None where they are not known."""
    for text, code, means in causes:
        if re.search(text, output):
            from envbuild.node.redact import redact_text

            why = redact_text("\n".join(output.strip().splitlines()[-15:]))
            told = f"{what}: {means}" if what else means
            return EnvbuildError(code, told, why=why, hint=HINTS.get(code, ""))
    return None


def failure(name: str, output: str) -> EnvbuildError:
    """The error of a failed build: a known cause, else the builder's words."""
    from envbuild.node.redact import redact_text

    meant = known(output, CAUSES)
    if meant is not None:
        return meant
    tail = redact_text("\n".join(output.strip().splitlines()[-15:]))
    return EnvbuildError(
        "image-build-failed", f"{name} could not build the image", why=tail, hint="`-v` shows all that it printed"
    )
