"""The programs that build and hold images, and the meaning of their errors."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.node import paths, proc
from envbuild.node.redact import redact_text

# What each needs, for a machine that has none.
NEEDS = {
    "buildah": "buildah: no daemon, root or subordinate user ids; reproducible images (`--timestamp`)",
    "podman": "podman: no daemon, root or subordinate user ids; 4.0 or newer",
    "docker": "docker: its daemon, and BuildKit (23.0 or newer)",
}
_TIMEOUT = 6 * 3600.0
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_USED = ("--build-context", "--secret", "--iidfile")


@dataclass(frozen=True)
class Build:
    """One call of a builder: `contexts` are named folders, `secrets` name to file; `cache`: layers may be kept."""

    folder: Path
    dockerfile: Path
    tag: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    contexts: Mapping[str, Path] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    cache: bool = False
    epoch: int = paths.EPOCH


@dataclass(frozen=True)
class Builder:
    """A builder by `name` at `program`; the class is for what they share (podman's words)."""

    name: str
    program: str

    def build_command(self, build: Build) -> list[str]:
        """The argument list of one build; the host's network needs no plugin and no bridge.

        Never `--pull=true`: buildah then asks for what is newer, since 1.42 for every image, and some are in none.
        """
        words = [self.program, "build", *self._isolation(), "--timestamp", str(build.epoch), "--network=host"]
        # Without layers there are others in it, so the id is another.
        return [*words, "--pull=missing", "--layers", *([] if build.cache else ["--no-cache"]), *_shared(build)]

    def _isolation(self) -> list[str]:
        return []

    def run_command(self, image: str, argv: Sequence[str], *, gpus: bool = False) -> list[str]:
        """The argument list that runs `argv` in a container of `image`, standard input open, removed afterwards."""
        device = ["--device", "nvidia.com/gpu=all"] if gpus else []
        return [self.program, "run", "--rm", "--interactive", "--network=none", *device, "--entrypoint", "",
                image, *argv]  # fmt: skip

    def build(self, build: Build, on_line: Callable[[str], None] | None = None) -> str:
        """Build and return the image's id (hex). Raises what `failure` makes of the output."""
        with tempfile.TemporaryDirectory(prefix="envbuild-id-") as top:
            id_file = Path(top, "id")
            *words, folder = self.build_command(build)
            code, output = stream([*words, "--iidfile", str(id_file), folder], on_line, cwd=build.folder)
            if code:
                raise failure(self.name, output)
            image_id = id_file.read_text().strip() if id_file.is_file() else ""
        return image_id.removeprefix("sha256:") or self.id(build.tag)

    def id(self, image: str) -> str:
        """The id (hex) of an image that is here. Raises EnvbuildError `image-unknown` (exit 2)."""
        return str(self.inspect(image)["id"]).removeprefix("sha256:")

    def inspect(self, image: str) -> dict[str, Any]:
        """`id` and `config` (Env, Labels, User, Entrypoint, Cmd ...) of an image."""
        (data,) = json.loads(self._ask(["image", "inspect", image], image))
        return {"id": data["Id"], "config": data.get("Config") or {}}

    def run(self, image: str, argv: Sequence[str], stdin: bytes = b"", *, gpus: bool = False) -> proc.Finished:
        """Run a program in a fresh container of an image."""
        return proc.run(self.run_command(image, argv, gpus=gpus), timeout=_TIMEOUT, stdin=stdin)

    def push(self, image: str, to: str, *, insecure: bool = False) -> None:
        """Push to a registry. Raises EnvbuildError `image-transfer-failed` (exit 75).

        With a manifest of docker, whose configuration is the same: enroot asks registries in words that many answer
        with "not found" where the manifest is one of OCI.
        """
        tls = ["--tls-verify=false"] if insecure else []
        words = ["push", "--format", "v2s2", *tls, image, f"docker://{to}"]
        self._move([self.program, *words], "image-transfer-failed", f"{image} could not be pushed to {to}")

    def save(self, image: str, path: Path) -> None:
        """The image as one file that docker, podman and Apptainer read; its id stays what it is.

        Raises EnvbuildError `image-transfer-failed` (exit 75).
        """
        self._move(self.save_command(image, path), "image-transfer-failed", f"{image} could not be written to {path}")

    def save_command(self, image: str, path: Path) -> list[str]:
        """The argument list of `save`."""
        return [self.program, "save", "--format", "docker-archive", "--output", str(path), image]

    def _move(self, command: list[str], code: str, what: str) -> None:
        done = proc.run(command, timeout=_TIMEOUT)
        if not done.ok:
            why = done.err.strip()[-800:]
            raise known(why, OF_REGISTRIES, what) or EnvbuildError(code, what, why=why)

    def tag(self, image: str, name: str) -> None:
        """Give an image one more name."""
        self._ask(["tag", image, name], image)

    def _ask(self, words: Sequence[str], image: str) -> str:
        done = proc.run([self.program, *words], timeout=600)
        if done.ok:
            return done.out
        raise EnvbuildError(
            "image-unknown",
            f"{self.name} does not know {image}",
            why=done.err.strip()[-500:],
            hint="`envbuild image build STACK` makes it",
        )


class Buildah(Builder):
    """Works without a daemon and inside containers."""

    def _isolation(self) -> list[str]:
        # Works everywhere buildah itself works; BUILDAH_ISOLATION says otherwise.
        return [] if os.environ.get("BUILDAH_ISOLATION") else ["--isolation", "chroot"]

    def save_command(self, image: str, path: Path) -> list[str]:
        """See `Builder.save_command`."""
        return [self.program, "push", "--quiet", image, f"docker-archive:{path}:{image}"]

    def inspect(self, image: str) -> dict[str, Any]:
        """See `Builder.inspect`."""
        data = json.loads(self._ask(["inspect", "--type", "image", image], image))
        return {"id": data["FromImageID"], "config": (data.get("OCIv1") or {}).get("config") or {}}

    def run(self, image: str, argv: Sequence[str], stdin: bytes = b"", *, gpus: bool = False) -> proc.Finished:
        """See `Builder.run`; GPUs are there as far as the isolation lets them through."""
        container = self._ask(["from", "--pull-never", image], image).strip()
        try:
            command = [self.program, "run", *self._isolation(), container, "--", *argv]
            return proc.run(command, timeout=_TIMEOUT, stdin=stdin)
        finally:
            proc.run([self.program, "rm", container], timeout=600)


class Docker(Builder):
    """BuildKit. Two builds have equal files and other times, so other ids.

    `rewrite-timestamp` of `--output` does nothing in docker's own store of images (26.1) and is an error in
    containerd's, where ids are digests of manifests, too.
    """

    def build_command(self, build: Build) -> list[str]:
        """See `Builder.build_command`; an image that is here is taken, and any other asked for, without a word."""
        # An attestation says when it was made, and makes an index of what is one image.
        words = [self.program, "build", "--provenance=false", "--sbom=false"]
        words += [] if build.cache else ["--no-cache"]
        words += ["--build-arg", f"SOURCE_DATE_EPOCH={build.epoch}"]
        # Podman and buildah do this themselves. By name alone: an address may have a password in it.
        words += [word for name in _PROXIES if name in os.environ for word in ("--build-arg", name)]
        return words + _shared(build)

    def build(self, build: Build, on_line: Callable[[str], None] | None = None) -> str:
        """See `Builder.build`; what docker calls the id of a build may be that of its manifest."""
        code, output = stream(self.build_command(build), on_line, cwd=build.folder)
        if code:
            raise failure(self.name, output)
        return self.id(build.tag)

    def run_command(self, image: str, argv: Sequence[str], *, gpus: bool = False) -> list[str]:
        """See `Builder.run_command`."""
        first, *rest = argv
        return [self.program, "run", "--rm", "--interactive", "--network=none", *(["--gpus", "all"] if gpus else []),
                "--entrypoint", first, image, *rest]  # fmt: skip

    def save_command(self, image: str, path: Path) -> list[str]:
        """See `Builder.save_command`."""
        return [self.program, "save", "--output", str(path), image]

    def push(self, image: str, to: str, *, insecure: bool = False) -> None:
        """See `Builder.push`; which registries may be unencrypted is a setting of docker's daemon."""
        self.tag(image, to)
        self._move([self.program, "push", to], "image-transfer-failed", f"{image} could not be pushed to {to}")


_KINDS: dict[str, type[Builder]] = {"buildah": Buildah, "podman": Builder, "docker": Docker}


def _shared(build: Build) -> list[str]:
    """The words that all of them know, the context last."""
    words = ["--file", str(build.dockerfile), "--tag", build.tag]
    for name, value in build.arguments.items():
        words += ["--build-arg", f"{name}={value}"]
    for name, path in build.contexts.items():
        words += ["--build-context", f"{name}={path}"]
    for name, path in build.secrets.items():
        words += ["--secret", f"id={name},src={path}"]
    return [*words, str(build.folder)]


def find_builder(name: str | None = None, *, builds: bool = False) -> Builder:
    """The builder asked for, else the first that is there and answers; one that can build, with `builds`.

    Raises EnvbuildError `image-no-builder` (exit 7), which says what each needs.
    """
    tried = []
    for kind in [name] if name else list(_KINDS):
        program = shutil.which(kind)
        if program is None:
            tried.append(f"{kind} is not on PATH")
            continue
        if kind == "docker":
            done = proc.run([program, "version", "--format", "{{.Server.Version}}"], timeout=30)
            if not done.ok:
                tried.append(f"docker is there and its daemon does not answer ({done.err.strip()[-120:]})")
                continue
        lacks = _lacks(program) if builds else ""
        if not lacks:
            return _KINDS[kind](kind, program)
        tried.append(f"{kind} {lacks}")
    raise EnvbuildError(
        "image-no-builder",
        "this machine has no program that builds images",
        why="; ".join(tried),
        hint="install one: " + "; ".join(NEEDS.values()),
    )


def _lacks(program: str) -> str:
    """What a builder does not know of what every build uses, in words; docker knows it where BuildKit is there."""
    done = proc.run([program, "build", "--help"], timeout=60)
    missing = [flag for flag in _USED if flag not in done.out + done.err]
    return f"is too old, or without BuildKit: its `build` has no {', '.join(missing)}" if missing else ""


def stream(command: Sequence[str], on_line: Callable[[str], None] | None, cwd: Path) -> tuple[int, str]:
    """Run a program and pass on each line at once; returns its exit code and the whole output."""
    lines: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=cwd,
        text=True, errors="replace",
    ) as process:  # fmt: skip
        assert process.stdout is not None  # noqa: S101 - asked for above
        stop = threading.Timer(_TIMEOUT, process.kill)
        stop.start()
        try:
            for line in process.stdout:
                lines.append(line)
                if on_line is not None:
                    on_line(line.rstrip("\n"))
        finally:
            stop.cancel()
    return process.returncode, "".join(lines)


_NO_IDS = "the image has files of users for whom this user has no subordinate ids"
# What builders say, as patterns, and what it means; the first that fits counts. docker has words of its own.
OF_REGISTRIES = (
    ("StatusCode: 404|manifest unknown|name unknown|not found: manifest|resolve source metadata .*: not found",
     "image-base-unknown", "the registry has no such image or digest"),
    ("match provided manifest digest", "image-base-unknown", "the registry has something else"),
    # Before "denied": of a private image Docker Hub says both, and a login helps.
    ("authentication required|401 Unauthorized|no basic auth credentials", "registry-refused",
     "the registry requires a login"),
    ("StatusCode: 403|access to the resource is denied|403 Forbidden|HTTP 403 response|pull access denied"
     "|invalid status code from registry 403", "registry-refused", "the registry denied access"),
    ("StatusCode: 429|toomanyrequests|429 Too Many Requests|too many requests to registry", "registry-busy",
     "the registry's rate limit is reached"),
    # What is said before a registry is asked for an image at all.
    ("https?://localhost/v2/", "image-base-unknown",
     "no image of this machine has that name, and `localhost` is no registry"),
    ("invalid character '<'|unknown type text/html", "registry-not-a-registry",
     "a web page answers instead of a registry"),
    ("invalid status code from registry 404", "registry-not-a-registry", "the server is not a registry"),
    ("StatusCode: 5|pinging container registry|HEAD request to .*: 5\\d\\d |unexpected HTTP status: 5"
     '|failed to do request: |Get "https?://[^" ]+/v2/": ', "registry-unreachable", "the registry does not answer"),
    ("insufficient UIDs or GIDs", "image-without-ids", _NO_IDS),
)  # fmt: skip
CAUSES = (
    *OF_REGISTRIES,
    ("image not known", "image-base-unknown", "the image is not on this machine"),
    ("executable file not found|python3: not found", "image-without-python",
     "the image has no Python to run envbuild's build with"),
    ("No interpreter found|exit status 127", "image-without-python", "the image does not have the named Python"),
    ("Hash mismatch for|DO NOT MATCH THE HASHES", "hash-mismatch", "a file is not the one that the lock names"),
    ("error setting ownership of", "image-without-ids", _NO_IDS),
    ("No space left on device", "disk-full", "the builder's storage is full"),
)  # fmt: skip
HINTS = {
    "image-base-unknown": "name another with `--base-image`, `--run-image` or `--fetch-image`",
    "image-without-python": "name another with `--base-image`, `--fetch-image` or `--python`",
    "image-without-ids": "ask for ranges of the user in /etc/subuid and /etc/subgid (package uidmap), then call "
    "`podman system migrate`; or build as root",
    "hash-mismatch": "use another index or mirror; if the lock is wrong, run `envbuild lock create STACK`",
    "disk-full": "remove images that are not needed (`rmi`), or give the builder's storage more room",
    "registry-refused": "log in with the builder's own `login`",
    "registry-busy": "wait, or log in with the builder's own `login`",
    "registry-unreachable": "check the name, the network and the proxy, or name a mirror's image with `--base-image`",
    "registry-not-a-registry": "check the name and the proxy; a portal may require a login",
}


def known(output: str, causes: Sequence[tuple[str, str, str]], what: str = "") -> EnvbuildError | None:
    """The error for a builder's message; None if the message is unknown."""
    for pattern, code, means in causes:
        if re.search(pattern, output):
            message = f"{what}: {means}" if what else means
            return EnvbuildError(code, message, why=_last_lines(output), hint=HINTS.get(code, ""))
    return None


def failure(name: str, output: str) -> EnvbuildError:
    """The error of a failed build: a known cause, else the builder's message."""
    return known(output, CAUSES) or EnvbuildError(
        "image-build-failed",
        f"{name} could not build the image",
        why=_last_lines(output),
        hint="`-v` shows its whole output",
    )


def _last_lines(output: str) -> str:
    return redact_text("\n".join(output.strip().splitlines()[-15:]))
