"""What registries answer: digests, logins, refusals, web pages; from a real HTTP server on this machine."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.container.base_images import parse_reference
from envbuild.container.builders import find_builder
from envbuild.container.registry import ask_config, ask_image
from envbuild.errors import EnvbuildError
from tests.support.fails import fails
from tests.support.served import Silent, serving

MANIFEST = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json"}).encode()
SHA256 = hashlib.sha256(MANIFEST).hexdigest()
JSON = {"Content-Type": "application/vnd.oci.image.index.v1+json"}


class Registry:
    """Answers by path: status, headers, body; `asked` are (path, Authorization)."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.token: str | None = None
        self.asked: list[tuple[str, str]] = []
        self.host = ""

    def answer(self, request: Silent) -> None:
        login = request.headers.get("Authorization", "")
        self.asked.append((request.path, login))
        path = request.path.partition("?")[0]
        status, headers, body = self.answers.get(path, (404, JSON, b"{}"))
        if self.token is not None and path.startswith("/v2/") and login != f"Bearer {self.token}":
            realm = f'Bearer realm="http://{self.host}/token",service="s",scope="repository:team/image:pull"'
            status, headers, body = 401, {"WWW-Authenticate": realm}, b"{}"
        request.answer(status, body, **headers)

    def manifest(self, status: int = 200, headers: dict[str, str] | None = None, body: bytes = MANIFEST) -> None:
        self.answers["/v2/team/image/manifests/1"] = (status, JSON if headers is None else headers, body)

    def ask(self, tag: str = ":1") -> str:
        return ask_image(f"{self.host}/team/image{tag}", plain_http=True)[0]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("NETRC", "/nonexistent")
    made = Registry()
    with serving(type("Handler", (Silent,), {"do_GET": lambda request: made.answer(request)})) as address:
        made.host = address.removeprefix("http://")
        yield made


@pytest.mark.parametrize(("netrc", "first"), [("", ""), ("machine 127.0.0.1 login me password s3cret\n", "Basic")])
def test_a_token_is_asked_for_with_the_login_and_goes_before_it_on_the_same_host(
    registry: Registry, netrc: str, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text(netrc)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    registry.manifest()
    registry.token = "t0ken"
    registry.answers["/token"] = (200, {"Content-Type": "application/json"}, b'{"token": "t0ken"}')
    assert registry.ask() == SHA256
    assert registry.asked[1][0] == "/token?service=s&scope=repository%3Ateam%2Fimage%3Apull"
    assert [login.partition(" ")[0] for _, login in registry.asked] == [first, first, "Bearer"]
    assert registry.asked[2][1] == "Bearer t0ken"
    registry.manifest(headers={**JSON, "Docker-Content-Digest": f"sha256:{SHA256}"})
    assert registry.ask() == SHA256
    with fails("image-of-several-platforms", 2):
        ask_config(f"{registry.host}/team/image:1", plain_http=True)


@pytest.mark.parametrize(
    ("status", "headers", "body", "code", "exit_code"),
    [
        (404, JSON, b"{}", "image-unknown", 2),
        (401, {}, b"", "registry-refused", 4),
        (403, JSON, b"{}", "registry-refused", 4),
        (429, {"Retry-After": "60"}, b"slow down", "registry-busy", 75),
        (500, {}, b"", "registry-unreachable", 75),
        (503, {"Content-Type": "text/html"}, b"<html>", "registry-unreachable", 75),
        (200, {"Content-Type": "text/html"}, b"<html><form>log in</form>", "registry-not-a-registry", 4),
        (200, {}, b"hello", "registry-not-a-registry", 4),
        (200, {**JSON, "Docker-Content-Digest": "sha256:" + "0" * 64}, MANIFEST, "registry-digest-mismatch", 5),
    ],
)
def test_every_other_answer_is_an_error_with_a_code(
    registry: Registry, status: int, headers: dict[str, str], body: bytes, code: str, exit_code: int
) -> None:
    registry.manifest(status, headers, body)
    with fails(code, exit_code):
        registry.ask()


@pytest.mark.skipif(shutil.which("buildah") is None, reason="buildah is not installed (tests/system-packages.txt)")
@pytest.mark.parametrize(
    ("status", "headers", "code", "exit_code"),
    [
        (401, {"WWW-Authenticate": 'Basic realm="r"'}, "registry-refused", 4),
        (403, {}, "registry-refused", 4),
        (404, {}, "registry-not-a-registry", 4),
        (429, {"Retry-After": "0"}, "registry-busy", 75),
        (503, {}, "registry-unreachable", 75),
    ],
)
def test_what_a_builder_is_answered_is_an_error_with_the_same_code(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    status: int, headers: dict[str, str], code: str, exit_code: int,
) -> None:  # fmt: skip
    storage = f'[storage]\ndriver = "vfs"\ngraphroot = "{tmp_path}/s"\nrunroot = "{tmp_path}/r"\n'
    (tmp_path / "storage.conf").write_text(storage)
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage.conf"))
    registry.answers["/v2/"] = (status, headers, b"")
    registry.manifest(status, headers, b"")
    with pytest.raises(EnvbuildError) as caught:
        builder, image = find_builder("buildah"), f"{registry.host}/team/image:1"
        builder._move([builder.program, "pull", "--tls-verify=false", image], "image-transfer-failed", f"{image}: no")
    if "user namespace" in caught.value.why:
        pytest.skip("buildah needs root or subordinate user ids")
    assert (caught.value.code, caught.value.exit_code) == (code, exit_code), caught.value.why
    assert caught.value.hint and f"{registry.host}/team/image:1: no: " in caught.value.what


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((401, {}, b""), "registry-refused"),
        ((200, {}, b"<html>"), "registry-not-a-registry"),
        ((500, {}, b""), "registry-unreachable"),
        ((200, {}, b'{"token": "another"}'), "registry-refused"),
    ],
)
def test_a_token_server_can_fail_too(registry: Registry, answer: tuple[int, dict[str, str], bytes], code: str) -> None:
    registry.manifest()
    registry.token = "t0ken"
    registry.answers["/token"] = answer
    with fails(code):
        registry.ask()


def test_what_the_registry_does_not_have_and_no_answer_at_all(registry: Registry) -> None:
    with fails("image-unknown"):
        registry.ask(f":1@sha256:{SHA256}")
    registry.answers[f"/v2/team/image/manifests/sha256:{SHA256}"] = (200, JSON, MANIFEST + b" ")
    with fails("registry-digest-mismatch"):
        registry.ask(f"@sha256:{SHA256}")
    with fails("registry-unreachable", 75):
        ask_image("127.0.0.1:1/team/image:1", plain_http=True)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("debian", ("docker.io", "library/debian", "latest", "")),
        ("docker.io/debian:12", ("docker.io", "library/debian", "12", "")),
        ("nvidia/cuda:11.8.0-devel-ubuntu22.04", ("docker.io", "nvidia/cuda", "11.8.0-devel-ubuntu22.04", "")),
        ("nvcr.io/nvidia/pytorch:22.02-py3", ("nvcr.io", "nvidia/pytorch", "22.02-py3", "")),
        ("localhost:5000/x", ("localhost:5000", "x", "latest", "")),
        (f"a.org/x@sha256:{SHA256}", ("a.org", "x", "latest", f"sha256:{SHA256}")),
    ],
)
def test_references_are_taken_apart_as_docker_does(text: str, parts: tuple[str, ...]) -> None:
    found = parse_reference(text)
    assert (found.host, found.path, found.tag, found.digest) == parts


@pytest.mark.parametrize("text", ["", "-x", "A/B", "x:", "x@sha256:12", "x y", "http://x/y", "x:$TAG"])
def test_what_is_no_reference_is_refused(text: str) -> None:
    with fails("image-reference"):
        parse_reference(text)


def test_the_configuration_of_an_image_is_read_and_its_id_is_that_of_its_bytes(registry: Registry) -> None:
    config = json.dumps({"config": {"Labels": {"dev.envbuild.stack": "tiny"}}}).encode()
    found = hashlib.sha256(config).hexdigest()
    registry.token = "secret"
    registry.answers["/token"] = (200, {"Content-Type": "application/json"}, b'{"token": "secret"}')
    registry.manifest(body=json.dumps({"config": {"digest": f"sha256:{found}"}}).encode())
    registry.answers[f"/v2/team/image/blobs/sha256:{found}"] = (200, {"Content-Type": "application/json"}, config)
    told = ask_config(f"{registry.host}/team/image:1", plain_http=True)
    assert told == (found, {"Labels": {"dev.envbuild.stack": "tiny"}})
    registry.answers[f"/v2/team/image/blobs/sha256:{found}"] = (200, {}, config.replace(b"tiny", b"evil"))
    with fails("registry-digest-mismatch", 5):
        ask_config(f"{registry.host}/team/image:1", plain_http=True)
