"""Stacks and targets: shipped and a user's own, and every refusal with its code, place and hint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild import resources
from envbuild.catalog.loader import (
    load_stack,
    load_target,
    lock_path,
    manifest_digest,
    pick_profile,
)
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.stack import Stack

COMMIT = "0123456789abcdef0123456789abcdef01234567"
STACK = f"""\
name: mine
summary: a stack of my own
profiles:
  exact:
    python: ["3.11"]
    packages: ["numpy==2.1.0"]
    environment:
      LITERAL: "$(rm -rf /) '\\"{{{{ x }}}}`"
      TOPOLOGY: {{path: /opt/topo.xml, if: exists}}
    sources:
      - name: lib
        git: https://example.org/lib.git
        commit: {COMMIT}
        tree: {COMMIT}
"""
TARGET = """\
name: my-node
stack: torch-smoke
prefix: "{data}/envbuild"
"""


def stack_file(tmp_path: Path, text: str = STACK) -> str:
    path = tmp_path / "my.yaml"
    path.write_text(text)
    return str(path)


def target_file(tmp_path: Path, text: str, name: str = "target.yaml") -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def refused(load: Any, *arguments: Any) -> EnvbuildError:
    with pytest.raises(EnvbuildError) as caught:
        load(*arguments)
    assert caught.value.exit_code == ExitCode.USAGE
    return caught.value


@pytest.mark.parametrize(
    ("old", "new", "place", "field", "says"),
    [
        ("packages:", "pakages:", "6:5", "profiles.exact.pakages", "unknown key"),
        ('["3.11"]', "3.11", "5:5", "profiles.exact.python", "must be a list"),
        ('["3.11"]', "[3.10]", "5:14", "profiles.exact.python[0]", "must be text"),
        ("name: mine", 'name: "a\\nb"', "1:1", "name", "must match"),
        (f"commit: {COMMIT}", f"commit: {COMMIT[:12]}", "13:9", "profiles.exact.sources[0].commit", "40 lower-case"),
        (f"        commit: {COMMIT}\n", "", "11:9", "profiles.exact.sources[0].commit", "is missing"),
        ("https://", "https://bob:hunter2@", "12:9", "profiles.exact.sources[0].git", "credentials"),
        ("https://example.org/", "ext::sh -c id ", "12:9", "profiles.exact.sources[0].git", "https:// or ssh://"),
        ("https://example.org", "ssh://-oProxyCommand=id", "12:9", "profiles.exact.sources[0].git", "no usable host"),
        ("git: https", "path: ../x\n        git: https", "12:9", "profiles.exact.sources[0].path", "without '..'"),
        ("git: https", "generated: [/etc]\n        git: https", "12:21", "sources[0].generated[0]", "without '..'"),
        ("git: https", "ref: --up=x\n        git: https", "11:9", "profiles.exact.sources[0]", "start with '-'"),
        ("numpy==2.1.0", "numpy @ https://x/y.whl", "6:16", "profiles.exact.packages[0]", "URL is not allowed"),
        ("TOPOLOGY:", "BAD-NAME:", "9:7", "profiles.exact.environment.BAD-NAME", "must match"),
        ("TOPOLOGY:", '"A\\nB":', "9:7", "profiles.exact.environment", "must match"),
        ("LITERAL:", 'LITERAL: "a\\nb"\n      OTHER:', "8:7", "profiles.exact.environment.LITERAL", "control char"),
    ],
)
def test_a_bad_stack_is_refused_with_field_place_and_reason(
    tmp_path: Path, old: str, new: str, place: str, field: str, says: str
) -> None:
    assert old in STACK
    error = refused(load_stack, stack_file(tmp_path, STACK.replace(old, new, 1)))
    assert error.code == "manifest-invalid"
    assert re.match(rf"{re.escape(str(tmp_path))}/my\.yaml:{place}(:|$)", error.why), error.why
    assert error.what not in error.why, "the cause repeats the sentence"
    told = f"{error.what}\n{error.why}"
    assert field in told
    assert says in told
    assert "hunter2" not in told


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("commit:", "comit:", "did you mean `commit`?"),
        ("name: mine", "name: My Stack", "write name: my-stack"),
        (", if:", ", iff:", "`if`"),
        ('["3.11"]', "[3.10]", "quotes"),
        ('["3.11"]', "3.11", 'write python: ["3.11"]'),
    ],
)
def test_a_mistake_brings_the_nearest_key_or_what_to_write(tmp_path: Path, old: str, new: str, hint: str) -> None:
    error = refused(load_stack, stack_file(tmp_path, STACK.replace(old, new)))
    assert hint in error.details["problems"][0]["hint"]
    target = target_file(tmp_path, "scheduler: {kind: pbs, filesystems: ['home:eagle']}\n")
    assert refused(load_target, target).details["problems"][0]["hint"] == "write filesystems: [home, eagle]"


@pytest.mark.parametrize(
    ("option", "what"),
    [
        ({"prefix": "relative"}, "prefix must be absolute, or begin with {home} or {data}"),
        ({"hosts": ["gpu01"]}, "has one host, localhost"),
        ({"nonsense": "x"}, "nonsense is an unknown key"),
    ],
)
def test_an_option_that_does_not_fit_is_no_mistake_of_a_file(option: dict[str, Any], what: str) -> None:
    error = refused(load_target, "local", option)
    assert what in error.what and error.why.startswith("given on the command line")


def test_several_problems_are_reported_at_once_and_one_of_a_field_in_a_sentence(tmp_path: Path) -> None:
    text = STACK.replace("packages:", "pakages:").replace(COMMIT, "HEAD").replace("name: mine", "name: Mine!")
    error = refused(load_stack, stack_file(tmp_path, text))
    assert len(error.details["problems"]) == 4
    assert error.why.count("my.yaml:") == 4
    assert error.what == "profiles.exact.pakages is an unknown key"
    assert error.why.splitlines()[0].endswith(" (did you mean `packages`?)"), "each hint stands beside its mistake"
    assert (error.why.count("did you mean"), error.hint) == (1, "")
    assert error.details["problems"][0]["hint"] == "did you mean `packages`?"
    text = STACK.replace("    sources:", "    smoke: [{name: extensions}]\n    sources:")
    assert refused(load_stack, stack_file(tmp_path, text)).what.startswith("profiles.exact: the smoke items ")
    error = refused(load_stack, stack_file(tmp_path, STACK.replace("https://", "https://bob@")))
    assert error.what == "profiles.exact.sources[0].git must not carry credentials; use git's credential helper"


@pytest.mark.parametrize("text", ["", "[a]", "just text", "42"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    assert refused(load_stack, stack_file(tmp_path, text)).code == "manifest-invalid"
    assert refused(load_target, stack_file(tmp_path, text)).code == "manifest-invalid"


def test_an_unknown_stack_target_or_file_names_the_nearest(tmp_path: Path) -> None:
    for ref, near in (("torchsmoke", "torch-smoke"), ("OPT-175B", "opt-175b"), ("opt", "did you mean `opt-175b`?"),
                      ("TORCH-SMOKE\n", ""), ("{{ x }}", ""), ("", ""), ("../stacks/torch-smoke", "")):  # fmt: skip
        error = refused(load_stack, ref)
        assert error.code == "stack-unknown" and near in error.hint, ref
    assert refused(load_target, "lcal").hint == "did you mean `local`?"
    no_target = refused(load_target, str(tmp_path / "none.yaml"))
    assert no_target.code == "target-unknown" and no_target.hint.startswith("`envbuild init FILE` writes one; ")
    assert refused(load_stack, str(tmp_path / "none.yaml")).hint.startswith("`envbuild init --from DIR` drafts one; ")


def test_where_locks_lie_and_an_unknown_profile_names_those_that_are_there(tmp_path: Path) -> None:
    shipped = load_stack("torch-smoke")
    assert (shipped.shipped, shipped.stack.name) == (True, "torch-smoke")
    assert pick_profile(shipped, None) == "exact"
    assert refused(pick_profile, shipped, "exat").hint == "did you mean `exact`?"
    assert lock_path(shipped, "exact") == resources.lockfiles() / "torch-smoke.exact.lock.toml"
    mine = load_stack(stack_file(tmp_path))
    assert mine.stack.profiles["exact"].environment["LITERAL"] == "$(rm -rf /) '\"{{ x }}`", "it arrives literally"
    assert Stack.from_plain(mine.stack.to_json_dict()) == mine.stack
    assert lock_path(mine, "exact") == tmp_path / "my.lock.toml"
    assert lock_path(mine, "ported") == tmp_path / "my.ported.lock.toml"
    named = tmp_path / "my.exact.lock.toml"  # as a kit calls it
    named.touch()
    assert lock_path(mine, "exact") == named


def test_the_manifest_digest_follows_the_profile_and_nothing_else(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        return manifest_digest(load_stack(stack_file(tmp_path, text)).stack, "exact")

    first = digest(STACK)
    assert len(first) == 64
    assert digest(STACK.replace("a stack of my own", "other words") + "# a comment\n") == first
    assert digest(STACK.replace("2.1.0", "2.1.1")) != first
    assert digest(STACK.replace("name: mine", "name: theirs")) != first
    # What equals its default counts as not said.
    assert digest(STACK.replace("    packages:", "    bases: [{kind: none}]\n    packages:")) == first
    sound, *others = (
        digest(STACK.replace("    packages:", f"    smoke: [{{name: sound{deadline}}}]\n    packages:"))
        for deadline in ("", ", deadline: 600", ", deadline: 601")
    )
    assert [other == sound for other in others] == [True, False]


def test_a_target_extends_a_shipped_one_and_another_file_and_inherits_all_but_its_name(tmp_path: Path) -> None:
    target_file(tmp_path, "name: base\nextends: ssh\nhosts: [a, b]\nconnection: {port: 2222}\n", "base.yaml")
    ref = target_file(tmp_path, "name: mine\nextends: ./base.yaml\nhosts: [c]\nconnection: {user: me}\n")
    loaded = load_target(ref)
    assert loaded.target.name == "mine"
    assert loaded.target.hosts == ("c",)
    assert (loaded.target.connection.kind, loaded.target.connection.port) == ("ssh", 2222)
    assert loaded.target.connection.user == "me"
    assert [path.name for path in loaded.files] == ["target.yaml", "base.yaml", "ssh.yaml"]
    assert not loaded.shipped
    error = refused(load_target, target_file(tmp_path, "extends: local\n"))
    assert (error.code, error.what) == ("manifest-invalid", "name is missing")


def test_null_takes_an_inherited_value_away_and_overrides_win(tmp_path: Path) -> None:
    target_file(tmp_path, TARGET + "cache: /scratch/cache\nenvironment: {A: '1', B: '2'}\n", "base.yaml")
    ref = target_file(tmp_path, "name: mine\nextends: base.yaml\ncache: null\nenvironment: {B: null, C: '3'}\n")
    target = load_target(ref, {"prefix": "/opt/other", "environment": {"C": "4"}}).target
    assert target.cache is None
    assert target.environment == {"A": "1", "C": "4"}
    assert target.prefix == "/opt/other"


def test_targets_that_extend_themselves_or_too_many_are_refused(tmp_path: Path) -> None:
    loop = target_file(tmp_path, "name: a\nextends: ./b.yaml\n", "a.yaml")
    target_file(tmp_path, "name: b\nextends: ./a.yaml\n", "b.yaml")
    error = refused(load_target, loop)
    assert error.code == "target-extends"
    assert "b.yaml: extends itself" in error.what and error.why.endswith("b.yaml:2:1")
    for i in range(12):
        target_file(tmp_path, f"name: t{i}\nextends: ./t{i + 1}.yaml\n", f"t{i}.yaml")
    assert refused(load_target, str(tmp_path / "t0.yaml")).code == "target-extends"


@pytest.mark.parametrize("parent", ["ssx", "./none.yaml", "[a]", "{a: b}", "7"])
def test_extending_something_unknown_is_refused(tmp_path: Path, parent: str) -> None:
    error = refused(load_target, target_file(tmp_path, f"name: a\nextends: {parent}\n"))
    assert error.code == "target-extends"
    assert error.why.endswith("target.yaml:2:1")


def test_a_template_says_that_it_must_be_extended_and_one_of_yours_what_to_add(tmp_path: Path) -> None:
    error = refused(load_target, "ssh")
    assert error.code == "target-template" and "`envbuild init my-ssh.yaml --extends ssh`" in error.hint
    file = target_file(tmp_path, "name: mine\nextends: slurm\n")
    error = refused(load_target, file)
    assert (error.code, error.hint) == ("target-template", f"add `hosts: {{slurm: PARTITION}}` to {file}")


def test_a_value_in_an_error_is_escaped_short_and_redacted(tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2" * 9
    error = refused(load_stack, stack_file(tmp_path, STACK.replace("name: mine", f'name: "{secret}\\e[31m"')))
    assert "a1B2" not in error.why
    assert "\x1b" not in error.why
    error = refused(load_stack, stack_file(tmp_path, STACK.replace("name: mine", f"name: {'X' * 5000}")))
    assert len(error.why) < 300


@pytest.mark.parametrize("ref", ["x" * 5000 + ".yaml", "a\0b.yaml", "~nobody-of-that-name/x.yaml", "/root/\n/x.yaml"])
def test_an_impossible_path_is_a_coded_error(ref: str) -> None:
    for load in (load_stack, load_target):
        with pytest.raises(EnvbuildError) as caught:
            load(ref)
        assert caught.value.exit_code == ExitCode.USAGE


@settings(max_examples=60)
@given(place=st.integers(0, len(STACK)), text=st.text(max_size=4), cut=st.integers(0, 6))
def test_a_damaged_manifest_loads_or_is_a_coded_error(
    place: int, text: str, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    path.write_bytes((STACK[:place] + text + STACK[place + cut :]).encode("utf-8", "replace"))
    try:
        load_stack(str(path))
    except EnvbuildError as error:
        assert error.exit_code == ExitCode.USAGE
        assert error.code.startswith("manifest-")


def test_a_profile_is_inherited_with_its_stack_alone(tmp_path: Path) -> None:
    target_file(tmp_path, "name: base\nextends: ssh\nhosts: [a]\nstack: opt-175b\nprofile: pypi-cu102\n", "base.yaml")
    for parent, line, profile in (
        ("polaris", "stack: megatron-deepspeed-alcf\nscheduler: {account: a}", "module-2025-09-25"),
        ("polaris", "stack: opt-175b\nscheduler: {account: a}", None),
        ("./base.yaml", "stack: torch-smoke", None),
        ("./base.yaml", "hosts: [b]", "pypi-cu102"),
    ):
        assert load_target(stack_file(tmp_path, f"name: mine\nextends: {parent}\n{line}\n")).target.profile == profile


def test_a_file_that_is_no_target_file_is_said_to_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.sh").touch()
    for name in ("job.sh", "."):
        error = refused(load_target, name)
        assert (error.code, error.what) == ("target-unknown", f'"{name}" is no target file')
    Path("lab").mkdir()
    Path("lab.yaml").touch()
    assert refused(load_target, "lab").hint == "did you mean ./lab.yaml?"
    assert refused(load_target, "azure-nd96.yaml").hint == "did you mean `azure-nd96`?"
    mine = stack_file(tmp_path, "name: mine\nextends: azure-nd96.yml\n")
    assert refused(load_target, mine).hint == "did you mean `azure-nd96`?"
    assert "did you mean" not in refused(load_target, "nothere.yaml").hint
