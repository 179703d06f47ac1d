"""Asks a registry which digest a tag has, by the HTTP API of the OCI distribution specification. Nothing is pulled.

What it says pins the images that a lock's containers are made from, and tells whether a tag has moved since.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from envbuild.container.base_images import (
    AskedDigest,
    find_place,
    load_containers,
    parse_reference,
    read_digests,
    write_digests,
)
from envbuild.errors import EnvbuildError
from envbuild.lock.agreement import LockFinding
from envbuild.model.lock import Lock, LockedImage

if TYPE_CHECKING:
    from requests import PreparedRequest

_ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_TIMEOUT = (10.0, 30.0)
_LIMIT = 4 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PART = re.compile(r'(\w+)="([^"]*)"')


def ask_image(reference: str, *, plain_http: bool = False) -> tuple[str, dict[str, str]]:
    """sha256 (hex) of what a reference names now; of an index also those of its images by platform (`linux/amd64`).

    Raises EnvbuildError: `image-unknown` (exit 2) where the registry has no such tag or digest, `registry-refused` (4)
    for 401 and 403, `registry-busy` (75) for 429, `registry-unreachable` (75) for 5xx and no answer,
    `registry-not-a-registry` (4) for a web page.
    """
    with _Repository(reference, plain_http) as repository:
        manifest = repository.manifest()
    return hashlib.sha256(manifest).hexdigest(), _platforms(manifest)


def _platforms(manifest: bytes) -> dict[str, str]:
    """The images of an index; what is no image (an attestation has the platform `unknown`) is left out."""
    platforms: dict[str, str] = {}
    rows = json.loads(manifest).get("manifests")
    for row in rows if isinstance(rows, list) else ():
        about = row.get("platform") if isinstance(row, dict) else None
        digest = str(row.get("digest")) if isinstance(row, dict) else ""
        if isinstance(about, dict) and about.get("os") != "unknown" and _DIGEST.fullmatch(digest):
            words = [str(about[key]) for key in ("os", "architecture", "variant") if about.get(key)]
            platforms["/".join(words)] = digest.removeprefix("sha256:")
    return platforms


def ask_config(reference: str, *, plain_http: bool = False) -> tuple[str, dict[str, Any]]:
    """Id (sha256 hex of the configuration) and configuration (Labels, Env ...) of the image that a reference names.

    Raises EnvbuildError as `ask_image`, and `image-of-several-platforms` (exit 2) for an index.
    """
    with _Repository(reference, plain_http) as repository:
        config = dict(json.loads(repository.manifest())).get("config")
        if not isinstance(config, dict) or not _DIGEST.fullmatch(str(config.get("digest"))):
            raise EnvbuildError(
                "image-of-several-platforms",
                f"{reference} names images of several platforms",
                hint="name the digest of the image for the platform of the nodes",
            )
        digest = str(config["digest"])
        body = repository.checked(repository.get(f"{repository.url}/blobs/{digest}"), digest)
    return digest.removeprefix("sha256:"), dict(json.loads(body).get("config") or {})


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a registry or token server answered: status, headers (any case), at most `_LIMIT` bytes and one more."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def _bearer(token: str) -> Callable[[PreparedRequest], PreparedRequest]:
    """As `auth` of a session; a header alone gives way to the login that ~/.netrc has for the same host."""

    def put(request: PreparedRequest) -> PreparedRequest:
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    return put


class _Repository(AbstractContextManager["_Repository"]):
    """The repository that a reference names, asked with a token once it wants one."""

    def __init__(self, reference: str, plain_http: bool) -> None:
        import requests

        self.reference, self.parts = reference, parse_reference(reference)
        self.url = f"{'http' if plain_http else 'https'}://{self.parts.api}/v2/{self.parts.path}"
        self.session = requests.Session()
        self.session.headers.update({"Accept": _ACCEPT, "User-Agent": "envbuild"})

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def get(self, url: str) -> _Answer:
        import requests
        import urllib3

        try:
            with self.session.get(url, timeout=_TIMEOUT, stream=True) as answer:
                body = answer.raw.read(_LIMIT + 1, decode_content=True)
                return _Answer(answer.status_code, answer.headers, body)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise _unreachable(self.reference, f"{type(error).__name__}: {str(error)[:300]}") from error

    def manifest(self) -> bytes:
        """The manifest that the reference names, checked."""
        url = f"{self.url}/manifests/{self.parts.digest or self.parts.tag}"
        answer = self.get(url)
        if answer.status == 401 and (token := self._token(answer)):
            self.session.auth = _bearer(token)
            answer = self.get(url)
        return self.checked(answer, self.parts.digest)

    def _token(self, answer: _Answer) -> str:
        """A token for reading, anonymous or for what ~/.netrc says of the token server; empty where none is offered."""
        kind, _, rest = answer.headers.get("WWW-Authenticate", "").partition(" ")
        words = dict(_PART.findall(rest))
        realm = words.get("realm", "")
        if kind.lower() != "bearer" or urlsplit(realm).scheme not in ("http", "https"):
            return ""
        from requests.models import PreparedRequest

        request = PreparedRequest()
        scope = words.get("scope") or f"repository:{self.parts.path}:pull"
        request.prepare_url(realm, {"service": words.get("service", ""), "scope": scope})
        given = self.get(str(request.url))
        if given.status in (401, 403):
            raise _refused(self.reference, f"the token server answers {given.status}")
        if given.status >= 400:
            raise _of_status(given, self.reference)
        try:
            data = json.loads(given.body)
            return str(data.get("token") or data.get("access_token") or "")
        except (ValueError, AttributeError):
            raise _not_a_registry(self.reference, "the token server sent no JSON") from None

    def checked(self, answer: _Answer, expected: str) -> bytes:
        """The contents of an answer, if they are what the registry says, or else `expected` (`sha256:…` or empty)."""
        if answer.status >= 400:
            raise _of_status(answer, self.reference)
        kind, body = answer.headers.get("Content-Type", ""), answer.body
        if "html" in kind or body.lstrip()[:1] != b"{":
            raise _not_a_registry(self.reference, f"it sent {kind or 'something without a type'}")
        if len(body) > _LIMIT:
            raise _not_a_registry(self.reference, f"its manifest is larger than {_LIMIT >> 20} MiB")
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        header = answer.headers.get("Docker-Content-Digest", "") or expected
        if _DIGEST.fullmatch(header) and header != digest:
            raise EnvbuildError(
                "registry-digest-mismatch",
                f"the manifest of {self.reference} does not match the registry's digest",
                why=f"the registry says {header}, the manifest has {digest}",
                hint="use another registry or mirror",
            )
        return body


def _of_status(answer: _Answer, reference: str) -> EnvbuildError:
    """The error of a status code."""
    code = answer.status
    if code == 404:
        return EnvbuildError(
            "image-unknown",
            f"the registry has no {reference}",
            why="it answers 404",
            hint="old tags of some images are removed; name another image with `--base-image`",
        )
    if code in (401, 403):
        return _refused(reference, f"it answers {code}")
    if code == 429:
        later = answer.headers.get("Retry-After", "")
        return EnvbuildError(
            "registry-busy",
            f"the registry of {reference}: rate limited (429)",
            why="it answers 429" + (f", and to try again after {later[:40]}" if later else ""),
            hint="try again later, or log in",
        )
    return _unreachable(reference, f"it answers {code}")


def _refused(reference: str, why: str) -> EnvbuildError:
    return EnvbuildError(
        "registry-refused",
        f"the registry denied access to {reference}",
        why=why,
        hint="put a login for the token server into ~/.netrc, or check the name",
    )


def _unreachable(reference: str, why: str) -> EnvbuildError:
    return EnvbuildError(
        "registry-unreachable",
        f"the registry of {reference} does not answer",
        why=why,
        hint="check the network and the proxy, and try again",
    )


def _not_a_registry(reference: str, why: str) -> EnvbuildError:
    return EnvbuildError(
        "registry-not-a-registry",
        f"the server of {reference} is not a registry",
        why=why,
        hint="log in to the network's portal, or check the proxy",
    )


FILE = "images.toml"


def images_of(lock: Lock, *, shipped: bool) -> list[str]:
    """The images by tag that the variants of a lock are built on, sorted; variants that fit no image are left out.

    `shipped`: what the catalog says of the image of the stack counts.
    """
    containers = load_containers()
    stack = containers.stacks.get(lock.stack) if shipped else None
    references: set[str] = set()
    for variant in lock.variants:
        try:
            place = find_place(variant, containers, stack)
        except EnvbuildError:
            continue
        references |= {place.fetch, place.build, place.runtime}
    return sorted(reference for reference in references if "@sha256:" not in reference)


def pin_images(lock: Lock, digests: Mapping[str, AskedDigest]) -> Lock:
    """The lock with the digests of the images that its variants stand on; a variant's digest covers them."""
    variants = []
    for variant in lock.variants:
        known = digests.get(variant.image.name) if variant.image else None
        if variant.image is not None and known is not None and variant.image.digest != known.digest:
            image = LockedImage(name=variant.image.name, digest=known.digest)
            variants.append(variant.with_fields(lock.stack, lock.profile, image=image))
        else:
            variants.append(variant)
    return lock.model_copy(update={"variants": tuple(variants)})


def ask_and_record(lock: Lock, path: Path, references: list[str], *, upgrade: bool = False) -> tuple[Lock, list[str]]:
    """Record what the registries say beside the lock at `path`; the lock with it, and what to warn of.

    A tag that has moved keeps its recorded digest, unless `upgrade`; both are named. Raises the first error where no
    registry answered.
    """
    known = read_digests(path.with_name(FILE))
    digests, warnings, errors = dict(known), list[str](), list[EnvbuildError]()
    for reference in references:
        try:
            digest, platforms = ask_image(reference)
        except EnvbuildError as error:
            errors.append(error)
            continue
        before = known.get(reference)
        if before is not None and before.digest != digest:
            kept = "recorded anew" if upgrade else "the recorded one is kept (`--upgrade` takes the new one)"
            warnings.append(f"{reference} has moved from sha256:{before.digest} to sha256:{digest}; {kept}")
        if before is None or (upgrade and before.digest != digest):
            asked = date.today().isoformat()
            digests[reference] = AskedDigest(digest=digest, asked=asked, platforms=platforms)
    if errors and len(errors) == len(references):
        raise errors[0]
    if digests != known:
        write_digests(digests, path.with_name(FILE))
    return pin_images(lock, digests), [*warnings, *(f"{error.what} ({error.why})" for error in errors)]


def moved(lock: Lock, path: Path, *, shipped: bool) -> list[LockFinding]:
    """Which tags name something else than recorded: of a lock's images, and of those that were pinned beside it.

    A registry that cannot be asked is named.
    """
    beside = read_digests(path.with_name(FILE))
    known = {**read_digests(), **beside}
    locked = {variant.image.name: variant.image.digest for variant in lock.variants if variant.image is not None}
    recorded = {name: asked.digest for name, asked in known.items()}
    recorded |= {name: digest for name, digest in locked.items() if digest != "unrecorded"}
    findings = []
    for reference in sorted({*images_of(lock, shipped=shipped), *(() if shipped else beside)}):
        if reference not in recorded:
            continue
        try:
            now, _ = ask_image(reference)
        except EnvbuildError as error:
            message = f"{error.what} ({error.why})" if error.why else error.what
            findings.append(LockFinding("image-tag-unchecked", "unchecked", reference, message))
            continue
        if now != recorded[reference]:
            says = f"the tag has moved from sha256:{recorded[reference]} to sha256:{now}; the recorded one stays in use"
            findings.append(LockFinding("image-tag-moved", "note", reference, says))
    return findings
