"""How builders are called, found and understood."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from envbuild import resources
from envbuild.bundle.collect import Contents, Piece, write_bundle
from envbuild.cli.entry import main
from envbuild.container.build import Options, _secrets, build_image, fill_wheelhouse
from envbuild.container.builders import (
    _PROXIES,
    Build,
    Buildah,
    Builder,
    Docker,
    failure,
    find_builder,
)
from envbuild.container.select import recipe_for
from envbuild.errors import EnvbuildError
from envbuild.plan.source_builds import bundle_name
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.programs import executable

BUILD = Build(
    Path("/c"), Path("/c/D"), "localhost/x:1", contexts={"wheelhouse": Path("/w")}, secrets={"netrc": Path("/s")},
    arguments={"A": "b c"}, cache=True,
)  # fmt: skip
META = "ERROR: failed to solve: r/x:1: failed to resolve source metadata for r/x:1"
ANEW = Build(Path("/c"), Path("/c/D"), "localhost/x:1")
SHARED = [
    "--file", "/c/D", "--tag", "localhost/x:1", "--build-arg", "A=b c", "--build-context", "wheelhouse=/w",
    "--secret", "id=netrc,src=/s", "/c",
]  # fmt: skip
LAST = ["--file", "/c/D", "--tag", "localhost/x:1", "/c"]


def test_the_argument_lists_of_each_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BUILDAH_ISOLATION", *_PROXIES):
        monkeypatch.delenv(name, raising=False)
    buildah, podman, docker = Buildah("buildah", "buildah"), Builder("podman", "podman"), Docker("docker", "docker")
    common = ["--timestamp", "315532800", "--network=host", "--pull=missing"]
    isolation = ["--isolation", "chroot"]
    assert buildah.build_command(BUILD) == ["buildah", "build", *isolation, *common, "--layers", *SHARED]
    assert buildah.build_command(ANEW) == ["buildah", "build", *isolation, *common, "--layers", "--no-cache", *LAST]
    assert podman.build_command(BUILD) == ["podman", "build", *common, "--layers", *SHARED]
    same = ["--build-arg", "SOURCE_DATE_EPOCH=315532800"]
    plain = ["--provenance=false", "--sbom=false"]
    assert docker.build_command(BUILD) == ["docker", "build", *plain, *same, *SHARED]
    assert docker.build_command(ANEW) == ["docker", "build", *plain, "--no-cache", *same, *LAST]
    monkeypatch.setenv("BUILDAH_ISOLATION", "oci")
    assert "--isolation" not in buildah.build_command(ANEW)
    assert podman.run_command("i", ["cat", "x"], gpus=True) == [
        "podman", "run", "--rm", "--interactive", "--network=none", "--device", "nvidia.com/gpu=all",
        "--entrypoint", "", "i", "cat", "x",
    ]  # fmt: skip
    assert docker.run_command("i", ["cat", "x"], gpus=True) == [
        "docker", "run", "--rm", "--interactive", "--network=none", "--gpus", "all", "--entrypoint", "cat", "i", "x",
    ]  # fmt: skip
    monkeypatch.setenv("https_proxy", "http://me:s3cret@proxy.example.org:3128")
    words = docker.build_command(BUILD)
    assert words[words.index("https_proxy") - 1] == "--build-arg" and "s3cret" not in " ".join(words)


class Recorder(Builder):
    """Builds nothing; `built` are the calls, with the text of the Dockerfile."""

    built: list[tuple[Build, str]] = []

    def build(self, build: Build, on_line: object = None) -> str:
        self.built.append((build, build.dockerfile.read_text()))
        return "0" * 64


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setattr(Recorder, "built", [])
    return Recorder("podman", "podman")


def test_one_call_builds_the_file_that_is_committed_whatever_folders_are_called(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    top = tmp_path / "my files"
    write_file(top / "netrc", "machine example.org login me password p")
    monkeypatch.setattr("tempfile.tempdir", str(top))
    environ = {"HOME": str(top), "PIP_CONFIG_FILE": os.devnull, "SOURCE_DATE_EPOCH": "86400", "NETRC": f"{top}/netrc"}
    recipe = recipe_for("megatron-deepspeed-alcf")
    made = build_image(recipe, recorder, Options((top,), environ=environ))
    ((build, text),) = recorder.built
    assert text == (resources.containers() / "megatron-deepspeed-alcf" / "Dockerfile").read_text()
    assert (made["image"], build.tag, build.epoch) == (recipe.tag, recipe.tag, 86400)
    assert build.arguments["CREATED"] == "1970-01-02T00:00:00Z"
    words = Buildah("buildah", "buildah").build_command(build)
    assert words[-1] == str(build.folder) and words[-1].startswith(f"{top}/")
    assert f"id=netrc,src={top}/netrc" in words and f"wheelhouse={build.contexts['wheelhouse']}" in words


def test_what_was_built_is_said_with_how_it_is_compared(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("envbuild.cli.image_cmd.find_builder", lambda *_, **__: recorder)
    assert main(["image", "build", "torch-smoke"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"`envbuild image verify localhost/envbuild/torch-smoke:exact-[0-9a-f]{12}`", out)


def test_without_a_builder_it_is_said_what_each_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with fails("image-no-builder", 7) as caught:
        find_builder()
    assert all(name in caught.value.hint and name in caught.value.why for name in ("buildah", "podman", "docker"))
    docker = executable(tmp_path / "docker", "#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    with pytest.raises(EnvbuildError) as caught:
        find_builder()
    assert "its daemon does not answer (Cannot connect to the Docker daemon)" in caught.value.why
    docker.write_text("#!/bin/sh\necho 28.2\n")
    assert find_builder().name == "docker"


def test_a_builder_that_does_not_know_what_builds_use_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    # Of 1.19; the client of docker says as much where the buildx component is missing.
    helps = {
        "buildah": "--secret --iidfile", "podman": "--secret --build-context --iidfile", "docker": "--target",
    }  # fmt: skip
    for name, text in helps.items():
        executable(tmp_path / name, f"#!/bin/sh\necho '{text}'\n")
    assert find_builder(builds=True).name == "podman"
    assert find_builder().name == "buildah", "it can still look into images"
    for name, lacks in {"buildah": "--build-context", "docker": "--build-context, --secret, --iidfile"}.items():
        with fails("image-no-builder", 7) as caught:
            find_builder(name, builds=True)
        assert caught.value.why == f"{name} is too old, or without BuildKit: its `build` has no {lacks}"
        assert "docker: its daemon, and BuildKit (23.0 or newer)" in caught.value.hint


@pytest.mark.parametrize("kind", [Builder, Buildah])
@pytest.mark.parametrize("writes", ["", "printf '' > id", "echo sha256:abc > id"])
def test_the_id_is_that_of_the_name_where_the_builder_writes_none(
    tmp_path: Path, kind: type[Builder], writes: str
) -> None:
    program = tmp_path / "builder"
    write = writes.replace("> id", '> "$told"')
    told = '{"FromImageID": "abc"}' if kind is Buildah else '[{"Id": "sha256:abc"}]'
    executable(
        program,
        f"#!/bin/sh\ncase $1 in build) echo a line ;; *) echo '{told}'; exit ;; esac\n"
        f'while [ "$1" != --iidfile ]; do shift; done; told=$2\n{write}\n',
    )
    seen: list[str] = []
    assert kind("a builder", str(program)).build(Build(tmp_path, tmp_path / "D", "localhost/x:1"), seen.append) == "abc"
    assert seen == ["a line"]


@pytest.mark.parametrize(
    ("output", "code", "exit_code"),
    [
        ("Error: initializing source docker://x: reading manifest: manifest unknown", "image-base-unknown", 7),
        ("reading manifest 1 in x: unauthorized: authentication required", "registry-refused", 4),
        ("reading manifest 1 in x: denied: requested access to the resource is denied", "registry-refused", 4),
        ("toomanyrequests: You have reached your pull rate limit", "registry-busy", 75),
        ("docker://x: invalid character '<' looking for beginning of value", "registry-not-a-registry", 4),
        ("/bin/sh: 1: python3: not found", "image-without-python", 7),
        ("error: No interpreter found at path `/usr/bin/python3.99`", "image-without-python", 7),
        ("Failed to read `alpha==1.0`\nHash mismatch for `alpha==1.0`", "hash-mismatch", 5),
        ("write /x: No space left on device", "disk-full", 75),
        ("reading manifest 1 in x: StatusCode: 403, ", "registry-refused", 4),
        ("reading manifest 1 in x: StatusCode: 429, slow", "registry-busy", 75),
        ("potentially insufficient UIDs or GIDs available in user namespace (requested 42:42", "image-without-ids", 7),
        ('put: error setting ownership of "/y" to 42:42: lchown /y: invalid argument', "image-without-ids", 7),
        ('STEP 1: FROM localhost/nope\nGet "https://localhost/v2/": connection refused', "image-base-unknown", 7),
        ("pinging container registry r:5000: invalid status code from registry 403 (Forbidden)", "registry-refused", 4),
        ("pinging container registry r: too many requests to registry", "registry-busy", 75),
        ("pinging container registry r: invalid status code from registry 503 (...)", "registry-unreachable", 75),
        ("pinging container registry r: invalid status code from registry 404 (...)", "registry-not-a-registry", 4),
        ('pinging container registry r: Get "https://r/v2/": no such host', "registry-unreachable", 75),
        # docker 26 with BuildKit, of a registry that answers so; then its `pull`.
        (f"{META}: unexpected status from HEAD request to https://r/v2/x/manifests/1: 401 Unauthorized",
         "registry-refused", 4),
        (f"{META}: unexpected status from HEAD request to https://r/v2/x/manifests/1: 403 Forbidden",
         "registry-refused", 4),
        (f"{META}: unexpected status from HEAD request to https://r/v2/x/manifests/1: 429 Too Many Requests",
         "registry-busy", 75),
        (f"{META}: unexpected status from HEAD request to https://r/v2/x/manifests/1: 503 Service Unavailable",
         "registry-unreachable", 75),
        (f"{META}: r/x:1: not found", "image-base-unknown", 7),
        (f"{META}: encountered unknown type text/html; children may not be fetched", "registry-not-a-registry", 4),
        (f'{META}: failed to do request: Head "https://r/v2/x/manifests/1": dial tcp: lookup r: no such host',
         "registry-unreachable", 75),
        (f'{META}: failed to do request: Head "https://localhost/v2/x/manifests/1": connection refused',
         "image-base-unknown", 7),
        ('Head "http://r/v2/x/manifests/1": no basic auth credentials', "registry-refused", 4),
        ("error parsing HTTP 403 response body: no error details", "registry-refused", 4),
        ("received unexpected HTTP status: 503 Service Unavailable", "registry-unreachable", 75),
        ('Get "https://r/v2/": dial tcp: lookup r on 10.0.0.1:53: no such host', "registry-unreachable", 75),
        ("something else", "image-build-failed", 4),
        ("https://user:pass@host/x failed", "image-build-failed", 4),
    ],
)  # fmt: skip
def test_what_builders_say_becomes_a_code(output: str, code: str, exit_code: int) -> None:
    found = failure("buildah", output)
    assert (found.code, found.exit_code) == (code, exit_code)
    assert "user:pass" not in found.why
    assert found.why and found.hint


def test_of_a_private_image_a_login_is_named_as_docker_hub_denies_and_asks_for_one() -> None:
    both = "errors:\ndenied: requested access to the resource is denied\nunauthorized: authentication required"
    assert failure("buildah", both).what == "the registry requires a login"


def test_secrets_come_from_the_configuration_and_name_no_path_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("certificate")
    (tmp_path / ".netrc").write_text("machine a login b password c")
    (tmp_path / "git").write_text('[url "https://mirror/"]\n\tinsteadOf = https://a/\n')
    environ = {
        "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull, "PIP_CERT": str(tmp_path / "ca.crt"),
        "PIP_INDEX_URL": "https://u:canary@mirror/simple", "PIP_EXTRA_INDEX_URL": f"file://{tmp_path} https://more/simple",
    }  # fmt: skip
    recipe, options = recipe_for("opt-175b"), Options(gitconfig=tmp_path / "git", environ=environ)
    with _secrets(recipe, options, offline=False) as found:
        assert set(found) == {"certificates", "pip.conf", "uv.toml", "netrc", "gitconfig"}
        assert found["pip.conf"].read_text() == (
            "[global]\nindex-url = https://u:canary@mirror/simple\nextra-index-url = https://more/simple\n"
        )
        assert tomllib.loads(found["uv.toml"].read_text()) == {
            "system-certs": True,
            "pip": {
                "index-strategy": "unsafe-best-match", "index-url": "https://u:canary@mirror/simple",
                "extra-index-url": ["https://more/simple"],
            },
        }  # fmt: skip
        kept = found["pip.conf"]
    assert not kept.exists()
    with _secrets(recipe_for("torch-smoke"), options, offline=True) as found:
        assert found["pip.conf"].read_text() == "[global]\nno-index = true\n" and "gitconfig" not in found
        assert tomllib.loads(found["uv.toml"].read_text())["pip"]["no-index"] is True


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user of whom nothing is kept, with Apex as a git bundle in `loose`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    write_file(tmp_path / "loose" / APEX, b"git compares it")
    return tmp_path


OPT = recipe_for("opt-175b")
APEX = next(bundle_name("apex", source) for source in OPT.variant.sources if source.name == "apex")


def _files(house: Path) -> list[str]:
    return sorted(path.relative_to(house).as_posix() for path in house.rglob("*") if path.is_file())


def test_a_wheelhouse_is_a_bundle_of_files_that_the_lock_names(own: Path) -> None:
    name = next(file.file for each in OPT.variant.packages for file in each.files if each.name == "filelock")
    (own / "loose" / name).write_bytes(b"another file of that name")
    (own / "loose" / "other.whl").write_bytes(b"x")
    (own / "loose" / "quick-1.bundle").write_bytes(b"b")
    assert not fill_wheelhouse(OPT, [own / "loose"], own / "house")
    assert _files(own / "house") == [f"sources/{APEX}"]
    assert (own / "house" / "wheels").is_dir(), "uv wants it to be there"


@pytest.mark.parametrize("form", ["b.tar", "folder"])
def test_a_bundle_is_checked_before_a_build_sees_a_file_of_it(own: Path, form: str) -> None:
    told = Contents("opt-175b", "exact", ("x86_64",), ())
    write_bundle(own / form, told, [Piece(f"sources/{APEX}", own / "loose" / APEX, "source")])
    fill_wheelhouse(OPT, [own / form], own / "house")
    assert _files(own / "house") == [f"sources/{APEX}"]
    changed = own / form if form == "b.tar" else own / form / "sources" / APEX
    data = changed.read_bytes().replace(b"git compares", b"git compareZ")
    changed.unlink()
    changed.write_bytes(data)
    with fails("bundle-damaged"):
        fill_wheelhouse(OPT, [own / form], own / "other")
    assert _files(own / "other") == []
