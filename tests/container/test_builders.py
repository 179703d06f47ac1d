"""How builders are called, found and understood."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from envbuild.cli.entry import main
from envbuild.container.build import (
    Options,
    _git_settings,
    _Parts,
    _secrets,
    _wheelhouse,
    build_image,
    wanted_files,
)
from envbuild.container.builder_errors import failure
from envbuild.container.builders import _PROXIES, Build, Buildah, Builder, Docker, _streamed, find_builder, stream
from envbuild.container.select import Choice, recipe_for
from envbuild.errors import EnvbuildError
from envbuild.node.image import fetch_stage

FIRST = Build(
    Path("/c"), Path("/c/D"), "localhost/x:1", target="fetch", contexts={"wheelhouse": Path("/w")},
    secrets={"netrc": Path("/s")}, arguments={"A": "b c"}, cache=True,
)  # fmt: skip
META = "ERROR: failed to solve: r/x:1: failed to resolve source metadata for r/x:1"
REST = Build(Path("/c"), Path("/c/D"), "localhost/x:1", network=False, pull=False)
SHARED = [
    "--file", "/c/D", "--tag", "localhost/x:1", "--target", "fetch", "--build-arg", "A=b c",
    "--build-context", "wheelhouse=/w", "--secret", "id=netrc,src=/s", "/c",
]  # fmt: skip
LAST = ["--file", "/c/D", "--tag", "localhost/x:1", "/c"]


def test_the_argument_lists_of_each_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BUILDAH_ISOLATION", *_PROXIES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    buildah, podman, docker = Buildah("buildah", "buildah"), Builder("podman", "podman"), Docker("docker", "docker")
    time = ["--timestamp", "315532800"]
    assert buildah.build_command(FIRST) == [
        "buildah", "build", "--isolation", "chroot", *time, "--layers=false", "--pull=missing", *SHARED,
    ]  # fmt: skip
    assert buildah.build_command(REST) == [
        "unshare", "-n", "buildah", "build", "--isolation", "chroot", *time, "--layers=false", "--pull=never",
        *LAST,
    ]  # fmt: skip
    assert podman.build_command(FIRST) == [
        "podman", "build", *time, "--layers=false", "--pull=missing", "--network=host", *SHARED,
    ]  # fmt: skip
    assert podman.build_command(REST) == [
        "podman", "build", *time, "--layers=false", "--pull=never", "--network=none", *LAST,
    ]  # fmt: skip
    same = ["--build-arg", "SOURCE_DATE_EPOCH=315532800"]
    plain = ["--provenance=false", "--sbom=false"]
    assert docker.build_command(FIRST) == ["docker", "build", *plain, *same, *SHARED]
    assert docker.build_command(REST) == ["docker", "build", *plain, "--no-cache", "--network=none", *same, *LAST]
    monkeypatch.setenv("BUILDAH_ISOLATION", "oci")
    assert "--isolation" not in buildah.build_command(REST)
    assert podman.run_command("i", ["cat", "x"], gpus=True) == [
        "podman", "run", "--rm", "--interactive", "--network=none", "--device", "nvidia.com/gpu=all",
        "--entrypoint", "", "i", "cat", "x",
    ]  # fmt: skip
    assert docker.run_command("i", ["cat", "x"], gpus=True) == [
        "docker", "run", "--rm", "--interactive", "--network=none", "--gpus", "all", "--entrypoint", "cat", "i", "x",
    ]  # fmt: skip


class Everything(dict[str, str]):
    """Ids where every image is there."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return "1" * 64


class Recorder(Builder):
    """Has every image of a registry and builds nothing; `built` are the calls."""

    built: list[tuple[Build, str]] = []
    beside: list[set[str]] = []  # what lies with the sources of a build

    def build(self, build: Build, on_line: object = None) -> str:
        if "sources" in build.contexts:
            self.beside.append(set(os.listdir(build.contexts["sources"] / "opt/envbuild/image")))
        self.built.append((build, build.dockerfile.read_text()))
        return "0" * 64

    def id(self, image: str) -> str:
        if image.startswith("localhost/"):
            raise EnvbuildError("image-unknown", image)
        return "1" * 64

    def ids(self) -> dict[str, str]:
        return {}

    def tag(self, image: str, name: str) -> None:
        """Nothing is here that could get a name."""


def test_only_what_gets_something_has_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Recorder, "built", [])
    monkeypatch.setattr(Recorder, "beside", [])
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    monkeypatch.setattr(fetch_stage, "bring_source", lambda source, *_: fetched.append(source["name"]))
    fetched: list[str] = []
    recipe = recipe_for(Choice("megatron-deepspeed-alcf"))
    made = build_image(recipe, Recorder("podman", "podman"), Options(environ=environ))
    assert fetched == [source.name for source in recipe.variant.sources]
    calls = {str(build.target): (build.network, build.arguments.get("ENVBUILD_NETWORK")) for build, _ in Recorder.built}
    assert calls == {
        "fetch": (True, None), "compilers": (True, None), "libraries": (True, None),
        "packages": (False, "off"), "installed": (False, None), "runtime": (False, "off"),
    }  # fmt: skip
    texts = {str(build.target): text for build, text in Recorder.built}
    assert all(("apt-get" in text) == (name in ("compilers", "libraries")) for name, text in texts.items())
    named = {str(build.target): build.tag for build, _ in Recorder.built}
    assert f"FROM {named['compilers']} AS packages\n" in texts["packages"]
    assert f"FROM {named['packages']} AS build\n" in texts["runtime"]
    copied = [line for line in texts["runtime"].splitlines() if line.startswith("COPY ")]
    assert copied == ["COPY --from=build /opt/envbuild/added /opt/envbuild"]
    mounted = set(re.findall(r"--mount=type=bind,from=sources,source=(\S+),target=\1", texts["runtime"]))
    assert mounted == {
        f"/opt/envbuild/{name}" for name in ("fetched/sources", "image/build.json", "image/variant.json")
    }
    assert Recorder.beside == [{"variant.json", "build.json"}]
    given = {str(build.target): set(build.contexts) for build, _ in Recorder.built}
    assert given["runtime"] == {"sources"} and given["fetch"] == {"wheelhouse"}
    assert set(made["seconds"]) == {*calls, "sources"}


def test_a_machine_without_git_fetches_sources_in_a_stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Recorder, "built", [])
    monkeypatch.setenv("PATH", str(tmp_path))
    options = Options(environ={"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull})
    build_image(recipe_for(Choice("megatron-deepspeed-alcf")), Recorder("podman", "podman"), options)
    made = {str(build.target): build for build, _ in Recorder.built}
    assert made["sources"].network and not made["runtime"].contexts
    (text,) = (text for build, text in Recorder.built if build.target == "runtime")
    assert f"COPY --from={made['sources'].tag} " in text


def _configured(key: str) -> list[str]:
    """What git itself finds, the one that counts last."""
    words = ["git", "config", "--includes", "--get-all", key]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd="/").stdout.splitlines()


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user with a configuration in both places, one of which includes a third, with logins and with certificates."""
    home = tmp_path / "the user's"
    (home / ".config" / "git").mkdir(parents=True)
    (home / ".config" / "git" / "config").write_text('[url "https://mirror/"]\n\tinsteadOf = https://a/\n')
    (home / ".gitconfig").write_text("[user]\n\tname = me\n[include]\n\tpath = ~/more\n")
    (home / "more").write_text("[user]\n\temail = me@example.org\n")
    for name in (".netrc", "ca.crt", "logins"):
        (home / name).write_text(name)
    (home / "git").write_text("[user]\n\tname = named\n[http]\n\tsslCAInfo = /named.crt\n")
    for name in ("XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_SSL_CAINFO", "SSL_CERT_FILE", "PIP_CERT", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return home


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "NETRC"])
def test_git_here_is_as_the_user_has_it_where_no_configuration_was_named(
    monkeypatch: pytest.MonkeyPatch, home: Path, variable: str
) -> None:
    given = {"SSL_CERT_FILE": home / "ca.crt", "NETRC": home / "logins"}[variable]
    options = Options(environ={**os.environ, variable: str(given)})
    before = dict(os.environ)
    with _secrets(options) as secrets, _git_settings(options, secrets):
        assert _configured("url.https://mirror/.insteadOf") == ["https://a/"]
        assert _configured("user.name") == ["me"] and _configured("user.email") == ["me@example.org"]
        assert _configured("http.sslCAInfo") == ([str(given)] if variable == "SSL_CERT_FILE" else [])
        assert Path(os.environ["HOME"], ".netrc").read_text() == ("logins" if variable == "NETRC" else ".netrc")
    assert dict(os.environ) == before and (home / ".netrc").read_text() == ".netrc"
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / "git"))
    options = Options(environ={**os.environ, variable: str(given)})
    with _secrets(options) as secrets, _git_settings(options, secrets):
        assert _configured("user.name") == ["named"] and _configured("user.email") == []
        assert _configured("http.sslCAInfo")[-1] == "/named.crt" and "GIT_SSL_CAINFO" not in os.environ


def test_a_configuration_that_was_named_takes_the_place_of_the_user_s_and_outranks_certificates(home: Path) -> None:
    told = {"SSL_CERT_FILE": str(home / "ca.crt"), "NETRC": str(home / "logins")}
    options = Options(gitconfig=home / "git", environ={**os.environ, **told})
    with _secrets(options) as secrets, _git_settings(options, secrets):
        other = Path(os.environ["HOME"])
        assert _configured("user.name") == ["named"] and _configured("user.email") == []
        assert _configured("url.https://mirror/.insteadOf") == []
        assert _configured("http.sslCAInfo") == [str(home / "ca.crt"), "/named.crt"]
        assert "GIT_SSL_CAINFO" not in os.environ and (other / ".netrc").read_text() == "logins"
    assert not other.exists() and (home / "git").is_file()


def test_git_here_runs_with_the_variables_of_this_process_where_nothing_is_given(home: Path) -> None:
    (home / ".netrc").unlink()
    before = dict(os.environ)
    with _secrets(Options()) as secrets, _git_settings(Options(), secrets):
        assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("there", "more", "said"),
    [
        (False, [], "read in this build, or their layer was taken from the builder's cache;"),
        (False, ["--no-cache"], "read in this build;"),
        (True, [], "as stamped by an earlier build, not read again;"),
    ],
)
def test_a_build_says_no_more_than_it_knows_of_who_read_the_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], there: bool, more: list[str], said: str
) -> None:
    monkeypatch.setattr(Recorder, "built", [])
    if there:
        monkeypatch.setattr(Recorder, "ids", lambda self: Everything())
    monkeypatch.setattr("envbuild.container.builders.find_builder", lambda *_, **__: Recorder("podman", "podman"))
    monkeypatch.setattr(fetch_stage, "bring_source", lambda *_: None)
    assert main(["image", "build", "megatron-deepspeed-alcf", *more]) == 0
    assert f"\nfiles of packages {said} --deep reads every file\n" in capsys.readouterr().out


def test_without_a_builder_it_is_said_what_each_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvbuildError) as caught:
        find_builder()
    assert (caught.value.code, caught.value.exit_code) == ("image-no-builder", 7)
    assert all(name in caught.value.hint and name in caught.value.why for name in ("buildah", "podman", "docker"))
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    docker.chmod(0o755)
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
        "buildah": "--secret --target --iidfile", "podman": "--secret --target --build-context --iidfile",
        "docker": "--target",
    }  # fmt: skip
    for name, text in helps.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / name).chmod(0o755)
    assert find_builder(builds=True).name == "podman"
    assert find_builder().name == "buildah", "it can still look into images"
    for name, lacks in {"buildah": "--build-context", "docker": "--build-context, --secret, --iidfile"}.items():
        with pytest.raises(EnvbuildError) as caught:
            find_builder(name, builds=True)
        assert (caught.value.code, caught.value.exit_code) == ("image-no-builder", 7)
        assert caught.value.why == f"{name} is too old, or without BuildKit: its `build` has no {lacks}"
        assert "docker: its daemon, and BuildKit (23.0 or newer)" in caught.value.hint


@pytest.mark.parametrize("kind", [Builder, Buildah])
@pytest.mark.parametrize("writes", ["", "printf '' > id", "echo sha256:abc > id"])
def test_the_id_is_that_of_the_name_where_the_builder_writes_none(
    tmp_path: Path, kind: type[Builder], writes: str
) -> None:
    program = tmp_path / "builder"
    write = writes.replace("> id", '> "$told"')
    program.write_text(
        '#!/bin/sh\ncase "$1" in build) ;; *) echo \'[{"Id": "sha256:abc"}]\'; exit ;; esac\n'
        f'while [ "$1" != --iidfile ]; do shift; done; told=$2\n{write}\n'
    )
    if kind is Buildah:
        program.write_text(program.read_text().replace('[{"Id": "sha256:abc"}]', '{"FromImageID": "abc"}'))
    program.chmod(0o755)
    build = Build(tmp_path, tmp_path / "D", "localhost/x:1")
    assert kind("a builder", str(program)).build(build) == "abc"


def test_who_is_not_root_leaves_the_network_as_root_of_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    buildah = Buildah("buildah", "/usr/bin/buildah")
    assert buildah.build_command(REST)[:5] == ["/usr/bin/buildah", "unshare", "unshare", "-n", "/usr/bin/buildah"]
    assert buildah.build_command(FIRST)[:2] == ["/usr/bin/buildah", "build"]


def test_docker_gets_the_proxies_of_this_machine_by_name_where_there_is_a_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://me:s3cret@proxy.example.org:3128")
    words = Docker("docker", "docker").build_command(FIRST)
    assert words[words.index("https_proxy") - 1] == "--build-arg" and "s3cret" not in " ".join(words)
    assert "https_proxy" not in Docker("docker", "docker").build_command(REST)


def test_folders_with_spaces_reach_the_builder_as_one_word_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Recorder, "built", [])
    top = tmp_path / "my files"
    top.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(top))
    (top / "netrc").write_text("machine example.org login me password p")
    environ = {"HOME": str(top), "PIP_CONFIG_FILE": os.devnull, "NETRC": str(top / "netrc")}
    build_image(recipe_for(Choice("torch-smoke")), Recorder("podman", "podman"), Options((top,), environ=environ))
    fetch = next(build for build, _ in Recorder.built if build.target == "fetch")
    words = Buildah("buildah", "buildah").build_command(fetch)
    assert words[-1] == str(fetch.folder) and words[-1].startswith(f"{top}/")
    assert f"id=netrc,src={top}/netrc" in words and f"wheelhouse={fetch.contexts['wheelhouse']}" in words


def test_a_failed_build_is_the_error_that_the_node_program_said() -> None:
    error = {"code": "patch-no-hits", "what": "source quick: nothing", "exit": 4, "why": "w"}
    line = json.dumps({"protocol": 1, "verb": "image", "ok": False, "error": error}, separators=(",", ":"))
    found = failure("buildah", f"STEP 1\n#12 3.4 {line}\nError: exit status 4\n")
    assert (found.code, found.what, found.exit_code) == ("patch-no-hits", "source quick: nothing", 4)


@pytest.mark.parametrize(
    ("output", "code", "exit_code"),
    [
        ("Error: initializing source docker://x: reading manifest: manifest unknown", "image-base-unknown", 7),
        ("reading manifest 1 in x: unauthorized: authentication required", "registry-refused", 4),
        ("reading manifest 1 in x: denied: requested access to the resource is denied", "registry-refused", 4),
        ("toomanyrequests: You have reached your pull rate limit", "registry-busy", 75),
        ("docker://x: invalid character '<' looking for beginning of value", "registry-not-a-registry", 4),
        ("/bin/sh: 1: python3: not found", "image-without-python", 7),
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
        ('{"protocol":1,"ok":false} torn', "image-build-failed", 4),
        ("https://user:pass@host/x failed", "image-build-failed", 4),
    ],
)  # fmt: skip
def test_what_builders_say_becomes_a_code(output: str, code: str, exit_code: int) -> None:
    found = failure("buildah", output)
    assert (found.code, found.exit_code) == (code, exit_code)
    assert "user:pass" not in found.why
    assert found.why and found.hint


def test_files_of_an_image_that_broke_off_are_no_image() -> None:
    with contextmanager(_streamed)(["sh", "-c", "echo some"], "i") as files:
        assert files.read() == b"some\n"
    with (
        pytest.raises(EnvbuildError, match="the files of i could not be read") as caught,
        contextmanager(_streamed)(["sh", "-c", "echo some; echo no such layer >&2; exit 3"], "i") as files,
    ):
        files.read(4)
    assert (caught.value.code, caught.value.why, caught.value.exit_code) == ("image-export-failed", "no such layer", 4)


def test_lines_come_as_they_are_printed(tmp_path: Path) -> None:
    seen: list[str] = []
    code, output = stream([sys.executable, "-c", "print('a'); raise SystemExit(3)"], seen.append, tmp_path)
    assert (code, output, seen) == (3, "a\n", ["a"])


def test_secrets_come_from_the_configuration_and_name_no_path_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("certificate")
    (tmp_path / ".netrc").write_text("machine a login b password c")
    (tmp_path / "git").write_text('[url "https://mirror/"]\n\tinsteadOf = https://a/\n')
    environ = {
        "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull, "PIP_CERT": str(tmp_path / "ca.crt"),
        "PIP_INDEX_URL": "https://u:canary@mirror/simple", "PIP_EXTRA_INDEX_URL": f"file://{tmp_path} https://more/simple",
    }  # fmt: skip
    with _secrets(Options(gitconfig=tmp_path / "git", environ=environ)) as found:
        assert set(found) == {"certificates", "pip.conf", "netrc", "gitconfig"}
        assert found["pip.conf"].read_text() == (
            "[global]\nindex-url = https://u:canary@mirror/simple\nextra-index-url = https://more/simple\n"
            "cert = /run/secrets/certificates.crt\n"
        )
        git = found["gitconfig"].read_text()
        assert git.startswith("[http]\n\tsslCAInfo = /run/secrets/certificates.crt\n[url ")
        kept = found["pip.conf"]
    assert not kept.exists()


def test_a_wheelhouse_has_only_files_that_the_lock_names(tmp_path: Path) -> None:
    recipe = recipe_for(Choice("torch-smoke"))
    wanted = wanted_files(recipe)
    name = next(name for name in wanted if name.startswith("filelock"))
    (tmp_path / name).write_bytes(b"another file of that name")
    (tmp_path / "other.whl").write_bytes(b"x")
    (tmp_path / "quick-1.bundle").write_bytes(b"b")
    (tmp_path / "sources" / "quick.git").mkdir(parents=True)
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    with _wheelhouse(recipe, Options(wheelhouses=(tmp_path,), environ=environ)) as house:
        found = {path.relative_to(house).as_posix() for path in house.rglob("*")}
    assert found == {"quick-1.bundle", "sources", "sources/quick.git"}


def test_a_base_without_a_tag_is_found_among_the_images_that_were_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"localhost/base:latest": "5" * 64}
    monkeypatch.setattr(Recorder, "ids", lambda self: listed)
    monkeypatch.setattr(Recorder, "id", lambda self, image: pytest.fail(f"asked for {image} again"))
    parts = _Parts(recipe_for(Choice("torch-smoke")), Recorder("podman", "podman"), Options(), Path("/nowhere"), 0)
    assert parts._base("localhost/base") == "5" * 64


@pytest.mark.parametrize("root", [True, False])
def test_buildah_mounts_an_image_to_read_where_its_user_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: bool
) -> None:
    """`buildah mount` of who is not root fails outside of `buildah unshare`."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x").write_text("x")
    program = tmp_path / "buildah"
    program.write_text(
        '#!/bin/sh\ncase "$1" in\n'
        "from) echo c-1 ;;\n"
        f"mount) echo {tmp_path}/files; exit {0 if root else 125} ;;\n"
        f'unshare) [ "$2 $3" = "--mount FOLDER=c-1" ] || exit 9; shift 3; FOLDER={tmp_path}/files exec "$@" ;;\nesac\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    with (
        Buildah("buildah", str(program)).exported("x:1") as stream_of_tar,
        tarfile.open(fileobj=stream_of_tar, mode="r|") as archive,
    ):
        assert [member.name for member in archive] == [".", "./x"]
