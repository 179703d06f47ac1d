"""What conda packages are needed is solved and measured here: channels, specs, credentials, sizes."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest

from envbuild.conda.channels import Place
from envbuild.conda.solve import Wish, solve, with_sizes
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.common import Unpacked
from envbuild.model.stack import CondaPackage
from tests.conda.channel import LINUX, PYTHONS, channel, record
from tests.support.conda import Channel, Package
from tests.support.private_channel import BASIC, guarded
from tests.support.programs import completed
from tests.support.served import Folder, answering, serving

Answer = tuple[int, bytes]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No configuration and no cache but those of the test."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path / "home"


def wish(*places: Place, specs: tuple[str, ...], **fields: object) -> Wish:
    return Wish(**{"specs": specs, "places": places, "virtual": LINUX} | fields)  # type: ignore[arg-type]


def refused(asked: Wish) -> EnvbuildError:
    with pytest.raises(EnvbuildError) as caught:
        solve(asked)
    return caught.value


def test_what_is_needed_is_found_in_both_formats_and_in_the_order_of_installation(tmp_path: Path) -> None:
    there = channel(
        tmp_path / "forge",
        *PYTHONS,
        record("app", "1.0", "py_0", "lib >=2", "python", subdir="noarch", ext=".tar.bz2"),
        record("lib", "2.1", "h1", "python >=3.9,<3.10.0a0", "__glibc >=2.17,<3.0.a0"),
    )
    found = solve(wish(there, specs=("app", "python 3.9.*")))
    assert [(each.name, each.version, each.build, each.subdir, each.file) for each in found] == [
        ("python", "3.9.18", "0", "linux-64", "python-3.9.18-0.conda"),
        ("lib", "2.1", "h1", "linux-64", "lib-2.1-h1.conda"),
        ("app", "1.0", "py_0", "noarch", "app-1.0-py_0.tar.bz2"),
    ]
    assert {each.channel for each in found} == {"forge"}
    assert found[1].requires == ("__glibc >=2.17,<3.0.a0",)
    assert (found[0].sha256, found[0].size) == (PYTHONS[0]["sha256"], 1000)


def test_versions_and_builds_of_a_previous_lock_are_kept_where_they_still_fit(tmp_path: Path) -> None:
    before = solve(wish(channel(tmp_path / "forge", record("lib", "1.0", "hb")), specs=("lib",)))
    builds = (record("lib", "1.0", "ha"), record("lib", "1.0", "hb"))
    there = channel(tmp_path / "forge", *builds, record("lib", "1.1"))
    assert solve(wish(there, specs=("lib",), keep=before)) == before
    assert [each.version for each in solve(wish(there, specs=("lib",)))] == ["1.1"]
    assert [each.version for each in solve(wish(there, specs=("lib >1.0",), keep=before))] == ["1.1"]
    there = channel(tmp_path / "forge", record("lib", "1.0", sha256="zz"))
    for keep in (before, ()):
        assert refused(wish(there, specs=("lib",), keep=keep)).code == "channel-not-a-channel"


def test_nothing_newer_than_as_of_is_taken_and_a_clock_that_was_wrong_is_said(tmp_path: Path) -> None:
    future = record("lib", "3.0", timestamp=4_000_000_000_000)
    there = channel(tmp_path / "forge", record("lib", "1.0"), future, record("lib", "2.0", timestamp=None))
    said: list[str] = []
    assert [each.version for each in solve(wish(there, specs=("lib",), as_of="2021-01-01"), said.append)] == ["1.0"]
    assert said == []
    assert [each.version for each in solve(wish(there, specs=("lib",)), said.append)] == ["3.0"]
    assert said == ["lib-3.0-0.conda says it was made on 2096-10-02, after today: `as_of` cannot be held against it"]


def test_of_equal_builds_the_first_by_name_is_taken_in_whatever_order_they_are_listed(tmp_path: Path) -> None:
    builds = (record("lib", "1.0", "hb"), record("lib", "1.0", "ha"))
    said: list[str] = []
    for order in (builds, builds[::-1]):
        found = solve(wish(channel(tmp_path / "forge", *order), specs=("lib",)), said.append)
        assert [each.build for each in found] == ["ha"]
    assert said[0] == "lib 1.0 has equal builds ha, hb: ha was taken, the first by name"
    there = channel(tmp_path / "forge", *builds, record("app", "1", "0", "lib 1.0 hb"))
    assert {each.name: each.build for each in solve(wish(there, specs=("app",)))}["lib"] == "hb"


def test_channels_count_in_their_order_a_spec_can_name_one_and_parts_of_one_count_together(tmp_path: Path) -> None:
    first = channel(tmp_path / "mine", record("lib", "1.0"))
    second = channel(tmp_path / "forge", record("lib", "2.0"))
    assert [(p.channel, p.version) for p in solve(wish(first, second, specs=("lib",)))] == [("mine", "1.0")]
    assert [(p.channel, p.version) for p in solve(wish(first, second, specs=("forge::lib",)))] == [("forge", "2.0")]
    both = Place("both", (first.parts[0], second.parts[0]))
    assert [(p.channel, p.version) for p in solve(wish(both, specs=("lib",)))] == [("both", "2.0")]


def test_an_impossible_set_is_refused_in_the_solver_s_words_with_the_nearest_way_out(tmp_path: Path) -> None:
    there = channel(
        tmp_path / "forge",
        *PYTHONS,
        record("lib", "1.0", "0", "python >=3.9,<3.10.0a0"),
        record("new", "1.0", "0", "__glibc >=2.17"),
        record("new", "2.0", "0", "__glibc >=2.34"),
        record("newer", "1.0", "0", "__glibc >=2.34"),
    )
    error = refused(wish(there, specs=("lib", "python 3.8.*")))
    assert (error.code, error.exit_code) == ("conda-unsatisfiable", ExitCode.REFUSED)
    assert "lib 1.0 would require" in error.why
    assert error.hint == "there is a solution where `python 3.8.*` is loosened (to python 3.9.18)"
    gone = refused(wish(there, specs=("lib", "nothere")))
    assert "No candidates were found for nothere" in gone.why
    assert gone.hint == "there is a solution without `nothere`"
    # Another glibc gets another solution, whatever this machine has.
    versions = [solve(wish(there, specs=("new",), virtual={"__glibc": glibc}))[0].version for glibc in ("2.28", "2.35")]
    assert versions == ["1.0", "2.0"]
    error = refused(wish(there, specs=("newer",), virtual={"__glibc": "2.28"}))
    assert error.hint.endswith("nodes with another __glibc than 2.28 (__glibc >=2.34)")
    assert refused(wish(specs=("lib ==",))).code == "conda-spec-invalid", "no channel is asked"


def test_a_long_explanation_has_ten_lines_and_says_how_many_are_left_out(tmp_path: Path) -> None:
    names = [f"lib{number}" for number in range(20)]
    there = channel(tmp_path / "forge", *PYTHONS, *(record(name, "1", "0", "python >=3.10") for name in names))
    lines = refused(wish(there, specs=(*names, "python 3.8.*"))).why.splitlines()
    assert len(lines) <= 11


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (record("lib", "2.0", file="lib-1.0-0.conda"), "conda-record-invalid"),
        (record("lib", "1.0", subdir="win-64"), "conda-record-invalid"),
        (record("lib", "1.0", sha256=None), "hash-unrecorded"),
        (record("lib", "1.0", build="0", file="lib-1.0-0;rm.conda"), "conda-record-invalid"),
    ],
)
def test_a_record_that_does_not_fit_its_file_is_refused(tmp_path: Path, broken: dict[str, object], code: str) -> None:
    error = refused(wish(channel(tmp_path / "forge", broken), specs=("lib",)))
    assert (error.code, error.exit_code) == (code, ExitCode.INTEGRITY)


def test_a_record_under_another_name_is_never_found_and_what_it_claims_of_its_address_not_believed(
    tmp_path: Path,
) -> None:
    for file in ("../../../etc/lib-1.0-0.conda", "evil-1.0-0.conda", "/lib-1.0-0.conda"):
        there = channel(tmp_path / "forge", record("lib", "1.0", file=file))
        assert refused(wish(there, specs=("lib",))).code in ("conda-unsatisfiable", "channel-not-a-channel")
    there = channel(tmp_path / "forge", record("lib", "1.0") | {"url": "https://elsewhere.example.org/x"})
    assert solve(wish(there, specs=("lib",)))[0].file == "lib-1.0-0.conda"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((404, b""), "channel-missing"),
        ((403, b"no"), "channel-refused"),
        ((401, b"no"), "channel-refused"),
        ((200, b"<html>log in</html>"), "channel-not-a-channel"),
        ((200, bytes(range(256))), "channel-not-a-channel"),
        ((200, b'{"packages": ['), "channel-not-a-channel"),
        ((200, b'{"packages": {"lib-1.0-0.tar.bz2": {"depends": "x"}}}'), "channel-not-a-channel"),
    ],
)
def test_a_channel_that_is_none_is_refused_by_what_it_answers(answer: Answer, code: str) -> None:
    with serving(answering(*answer)) as address:
        error = refused(wish(Place("forge", ((f"{address}/channel",),)), specs=("lib",)))
    assert (error.code, error.exit_code) == (code, ExitCode.REFUSED)
    assert "forge" in error.what


def test_a_channel_out_of_reach_can_be_asked_again_and_a_mirror_stands_in(tmp_path: Path) -> None:
    gone = "http://me:hunter2hunter2@127.0.0.1:9/channel"
    error = refused(wish(Place("forge", ((gone,),)), specs=("lib",)))
    assert (error.code, error.exit_code) == ("channel-unreachable", ExitCode.TRY_AGAIN)
    assert "hunter2" not in error.why
    mirror = channel(tmp_path / "forge", record("lib", "1.0")).urls[0]
    found = solve(wish(Place("forge", ((gone, mirror),)), specs=("lib",)))
    assert [(each.channel, each.version) for each in found] == [("forge", "1.0")]
    for address, code in (("file:///usr", "channel-missing"), ("http://[::1", "channel-not-a-channel")):
        assert refused(wish(Place("forge", ((address,),)), specs=("lib",))).code == code


@pytest.mark.parametrize("where", ["netrc", "auth-file"])
def test_credentials_are_the_user_s_own_files(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    channel(tmp_path / "forge", record("lib", "1.0"))
    home.mkdir()
    with guarded(tmp_path / "forge", BASIC) as (url, _):
        asked = wish(Place("forge", ((url,),)), specs=("lib",))
        assert refused(asked).code == "channel-refused"
        if where == "auth-file":
            monkeypatch.setenv("RATTLER_AUTH_FILE", str(home / "auth.json"))
            (home / "auth.json").write_text('{"127.0.0.1": "hunter2hunter2"}')
            error = refused(asked)
            assert error.code == "conda-config-invalid" and "auth.json" in error.why and "hunter2" not in error.why
        if where == "netrc":
            (home / ".netrc").write_text("machine 127.0.0.1 login me password hunter2hunter2\n")
        else:
            logins = {"127.0.0.1": {"BasicHTTP": {"username": "me", "password": "hunter2hunter2"}}}
            (home / "auth.json").write_text(json.dumps(logins))
        assert [each.version for each in solve(asked)] == ["1.0"]


@pytest.mark.parametrize("word", ["/t/hunter2-hunter2", BASIC])
def test_an_address_may_carry_the_credentials(tmp_path: Path, home: Path, word: str) -> None:
    channel(tmp_path / "forge", record("lib", "1.0"))
    with guarded(tmp_path / "forge", word) as (url, _):
        full = f"{url}{word}" if word != BASIC else url.replace("://", "://me:hunter2hunter2@")
        (found,) = solve(wish(Place("forge", ((full,),)), specs=("lib",)))
    assert (found.version, found.channel) == ("1.0", "forge")


FILES = {"bin/app": b"x" * 5000, "lib/a/b": b"y"}


TAKES = Unpacked.of({"bin/app": 5000, "lib/a/b": 1})


@pytest.fixture
def forge(tmp_path: Path) -> Channel:
    return Channel(tmp_path / "forge", "forge")


def locked(forge: Channel, package: Package) -> CondaPackage:
    return CondaPackage.from_plain(forge.add(package))


def test_both_formats_are_measured_by_their_own_list_and_what_cannot_be_read_is_said(
    forge: Channel, tmp_path: Path
) -> None:
    packages = [
        locked(forge, Package("new", files=FILES)),
        locked(forge, Package("old", files=FILES, suffix=".tar.bz2")),
    ]
    said: list[str] = []
    found = with_sizes(packages, {"forge": [forge.url]}, said.append)
    assert ([each.unpacked for each in found], said) == ([TAKES, TAKES], [])
    damaged = locked(forge, Package("damaged", files=FILES))
    for path in (tmp_path / "forge" / "linux-64").glob("*.conda"):
        path.write_bytes(b"nonsense")
    again = with_sizes([found[0], damaged], {"forge": [forge.url]}, said.append)
    assert [each.unpacked for each in again] == [TAKES, None], "what is known is not asked again"
    assert said == ["what conda's damaged takes on a disk could not be read"]


def test_a_server_that_gives_no_ranges_is_not_asked_for_whole_archives(forge: Channel, tmp_path: Path) -> None:
    asked: list[str] = []

    class Handler(Folder):
        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

    package = locked(forge, Package("old", files=FILES, suffix=".tar.bz2"))
    with serving(partial(Handler, directory=str(tmp_path / "forge"))) as address:
        (found,) = with_sizes([package], {"forge": [address]}, lambda _: None)
    assert found.unpacked is None
    assert asked == []


def test_rattler_is_loaded_only_to_solve() -> None:
    code = "import sys, envbuild.lock.check, envbuild.lock.create, envbuild.cli.entry; print('rattler' in sys.modules)"
    assert completed([sys.executable, "-c", code]).stdout.strip() == "False"
