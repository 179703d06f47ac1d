"""What uv is asked and answers: the best file for each variant, markers, and errors of the network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock.check import check_lock
from envbuild.lock.packages import Request, arguments, resolve
from envbuild.lock.readers.pylock import Offer, OfferedFile, choose_file, parse_pylock, platform_of, size_of
from envbuild.lock.readers.torch_wheels import can_reach
from envbuild.lock.readers.uvtool import _failure, run_uv
from envbuild.lock.variants import applies, environment
from tests.lock.build import MakeSupply, index_at, make, make_wheel, make_wheels, stack, versions
from tests.support.certificates import certificate
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.served import answering, served, serving

REQUEST = Request(python="3.11", platform="linux_x86_64", requirements=("alpha",))


@pytest.fixture
def index(request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (home / ".config" / "uv" / "uv.toml").unlink()
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    page = b"<!DOCTYPE html><html><body><form>Please log in</form></body></html>"
    with serving(answering(request.param or 200, page, Content_Type="text/html")) as address:
        there = address if request.param else "http://127.0.0.1:9"
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{there}/simple")
        yield


def failure(request: Request) -> EnvbuildError:
    with pytest.raises(EnvbuildError) as caught:
        resolve(request)
    return caught.value


@pytest.mark.parametrize("index", [200], indirect=True)
def test_a_login_page_instead_of_an_index_is_refused(index: None) -> None:
    error = failure(REQUEST)
    assert (error.code, error.exit_code) == ("package-not-found", ExitCode.REFUSED)
    assert error.what == "the index has no version of alpha"
    assert "login page" in error.hint


@pytest.mark.parametrize("index", [401, 403, 502, None], indirect=True)
def test_an_index_that_refuses_or_does_not_answer_says_try_again(index: None) -> None:
    error = failure(REQUEST)
    assert (error.code, error.exit_code) == ("index-unreachable", ExitCode.TRY_AGAIN)


def test_variables_of_uv_say_where_packages_come_from_and_not_which(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheels(tmp_path / "house", "alpha 1.0", "alpha 2.0")
    (tmp_path / "older.txt").write_text("alpha==1.0\n")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "house"))
    monkeypatch.setenv("UV_RESOLUTION", "lowest-direct")
    for name in ("UV_OVERRIDE", "UV_CONSTRAINT"):
        monkeypatch.setenv(name, str(tmp_path / "older.txt"))
    assert [offer.version for offer in resolve(REQUEST)] == ["2.0"]


def test_an_address_of_find_links_is_used_and_in_no_argument_and_no_interpreter_is_downloaded(
    home: Path, tmp_path: Path
) -> None:
    make_wheel(tmp_path / "page", "alpha", "1.0")
    make_wheel(tmp_path / "folder", "beta", "2.0")
    with served(tmp_path / "page") as address:
        links = (address.replace("//", "//user:secret@") + "/", str(tmp_path / "folder"))
        request = replace(REQUEST, requirements=("alpha", "beta"), find_links=links)
        assert "secret" not in " ".join(arguments(tmp_path, request))
        assert [(offer.name, offer.version) for offer in resolve(request)] == [("alpha", "1.0"), ("beta", "2.0")]
    with pytest.raises(EnvbuildError):
        run_uv(["venv", "--python", "3.99", str(tmp_path / "v")])
    assert not (tmp_path / "v").exists()


def test_uv_and_all_that_asks_an_index_trust_the_certificates_that_pip_is_told_of(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    wheel = make_wheel(tmp_path / "page", "alpha", "1.0")
    (tmp_path / "page" / "torch").mkdir()
    cert = tmp_path / "site.pem"
    cert.write_text("".join(certificate("127.0.0.1")))
    with served(tmp_path / "page", cert=str(cert)) as server:
        address = f"{server}/"
        request = replace(REQUEST, find_links=(address,))
        file = OfferedFile(file=wheel.name, sha256="0" * 64, size=None, url=address + wheel.name)
        unknown = failure(request)
        assert unknown.code == "index-unreachable" and "pip's `cert`" in unknown.hint
        assert not can_reach(index_at("pytorch-cpu", address))
        assert size_of(file) is None
        write_file(home / ".config" / "pip" / "pip.conf", f"[global]\ncert = {cert}\n")
        assert [(offer.name, offer.version) for offer in resolve(request)] == [("alpha", "1.0")]
        assert can_reach(index_at("pytorch-cpu", address))
        assert size_of(file) == wheel.stat().st_size


def test_of_a_long_story_of_the_solver_ten_lines_are_told() -> None:
    steps = [f"Because a=={minor}.0 has no usable wheels, a=={minor}.0 cannot be used." for minor in range(200)]
    end = "hint: Wheels are required for `a` because building from source is disabled for `a`"
    error = _failure("\n\n".join(["error: No solution found", *steps, end]))
    assert error.code == "build-not-allowed"
    assert "--allow-build a" in error.hint
    told = error.why.splitlines()
    assert (len(told), told[0], told[4], told[-1]) == (10, "error: No solution found", "(193 lines more of uv)", end)


SDIST = OfferedFile("a-1.0.tar.gz", "https://example.org/a-1.0.tar.gz", "0" * 64)


def offer(*tags: str, sdist: bool = True) -> Offer:
    wheels = tuple(OfferedFile(f"a-1.0-{tag}.whl", "", "0" * 64) for tag in tags)
    return Offer("a", "1.0", wheels, SDIST if sdist else None)


def test_the_best_wheel_or_that_of_the_previous_lock_is_chosen_and_a_source_distribution_only_without_one() -> None:
    platform = platform_of("3.11", "linux_x86_64")
    built, pure = "a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "a-1.0-py3-none-any.whl"
    both = offer("py3-none-any", "cp311-cp311-manylinux_2_28_x86_64")
    for keep, chosen in (("", built), (pure, pure), ("a-1.0-other.whl", built)):
        assert choose_file(both, platform, keep=keep or None).file == chosen
    assert choose_file(offer("cp311-cp311-win_amd64"), platform) == SDIST
    with fails("no-acceptable-file"):
        choose_file(offer("cp311-cp311-win_amd64", sdist=False), platform)


HEAD = 'lock-version = "1.0"\ncreated-by = "uv"\n'


def test_file_names_of_uv_s_answer_are_unquoted_and_an_answer_that_it_never_gives_is_a_broken_installation() -> None:
    (read,) = parse_pylock(
        f'{HEAD}packages = [{{name = "torch", version = "1.0+cpu", wheels = '
        '[{url = "https://example.org/x/torch-1.0%2Bcpu-py3-none-any.whl", hashes = {sha256 = "aa"}}]}]'
    )
    assert (read.name, read.wheels[0].file) == ("torch", "torch-1.0+cpu-py3-none-any.whl")
    for text in ("packages = [{}]", "packages = 1", "= 1", 'packages = ["a"]'):
        with fails("installation-broken"):
            parse_pylock(HEAD + text)


@pytest.mark.parametrize(
    ("marker", "holds"),
    [
        ("python_version < '3.10'", True),
        ("python_full_version >= '3.9.1'", False),
        ("implementation_version < '3.10'", True),
        ("platform_machine == 'aarch64'", True),
        ("sys_platform == 'linux' and os_name == 'posix' and platform_system == 'Linux'", True),
        ("implementation_name == 'cpython' and platform_python_implementation == 'CPython'", True),
        ("extra == 'test'", False),
    ],
)
def test_a_marker_holds_for_the_python_and_the_platform_of_a_variant(marker: str, holds: bool) -> None:
    assert applies(Requirement(f"alpha; {marker}"), "3.9", "linux_aarch64") is holds
    assert environment("3.9", "linux_x86_64").keys() == default_environment().keys(), "nothing of this machine is left"


def test_a_lock_is_not_edited_where_a_marker_holds_on_the_machine_that_checks_alone(
    tmp_path: Path, supply: MakeSupply
) -> None:
    make_wheel(tmp_path / "house", "alpha", "1.0")
    packages = ["tomli; python_full_version >= '3.11'", "alpha; python_full_version < '3.11'"]
    wanted = stack(python=["3.10"], packages=packages)
    lock = make(wanted, supply(tmp_path / "house"))
    assert versions(lock).keys() == {"alpha"}
    assert check_lock(lock, wanted, online=False) == []
