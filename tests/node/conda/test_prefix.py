"""Environments of the engine conda: built from archives, equal wherever they lie, and true to what was locked."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from envbuild.node.conda import prefix
from envbuild.node.protocol import NodeError
from tests.node.conda.support import CondaNode, conda_node
from tests.node.env_support import Node, make_wheel
from tests.support.conda import PLACEHOLDER, File, Package
from tests.support.programs import completed

__all__ = ["conda_node"]
MARK = PLACEHOLDER.encode()
TOOL = Package(
    "tool",
    "2.0",
    "h1_3",
    {
        "bin/tool": File(b"#!" + MARK + b"/bin/python -E\nimport sys\nprint(sys.prefix)\n", placeholder="text"),
        "bin/shell": File(b"#!" + MARK + b"/bin/sh\nexit 0\n", placeholder="text"),
        "etc/tool.conf": File(b"prefix=" + MARK + b"\n", placeholder="text"),
        "lib/libtool.so": File(b"\0" + MARK + b"/a:" + MARK + b"/b\0\0\0tail" + MARK + b"\0", placeholder="binary"),
        "lib/libtool.so.2": File(link="libtool.so"),
    },
    suffix=".tar.bz2",
)
PURE = Package(
    "pure",
    "1.5",
    "pyhd_0",
    {
        "site-packages/pure/__init__.py": b"def main():\n    print('pure')\n",
        "site-packages/pure/__pycache__/__init__.cpython-311.pyc": b"from elsewhere",
        "site-packages/pure-1.5.dist-info/METADATA": b"Metadata-Version: 2.1\nName: Pure\nVersion: 1.5\n",
        "site-packages/pure-1.5.dist-info/RECORD": b"pure/__init__.py,sha256=wrong,3\n",
    },
    subdir="noarch",
    entry_points=("pure-run = pure:main",),
)


def run(*argv: str | Path) -> str:
    return completed([str(each) for each in argv], check=True).stdout.strip()


@pytest.mark.slow
def test_conda_packages_wheels_and_entry_points_become_one_environment_with_one_root_wherever_it_lies(
    conda_node: CondaNode,
) -> None:
    wheel = make_wheel(conda_node.wheels, scripts={"alpha-run": "alpha:main"})
    common = [Package(name, files={"share/common": b"same"}) for name in ("one", "two")]
    variant = conda_node.variant(conda_node.add(TOOL, PURE, *common), [wheel])
    result = conda_node.install(variant)[1]
    environment = conda_node.environment(variant)
    done = conda_node.activate(variant)[1]
    assert result["packages"] == {"alpha": "1.0", "pure": "1.5"}
    assert result["conda"]["packages"]["tool"] == "2.0 h1_3"
    assert result["conda"]["clobbered"] == ["share/common"], "equal, so it is said and not refused"
    assert not (environment / "__clobbers__").exists()
    assert run(environment / "bin" / "tool") == str(environment)
    assert run(environment / "bin" / "pure-run") == "pure"
    assert run(environment / "bin" / "alpha-run") == "1"
    code = "import sysconfig; print(sysconfig.get_path('include')); print(sysconfig.get_config_var('prefix'))"
    include, told = run(environment / "bin" / "python", "-c", code).splitlines()
    assert include.startswith(str(environment)) and told == str(environment), "extensions are compiled against it"
    assert (environment / "etc" / "tool.conf").read_text() == f"prefix={environment}\n"
    assert (environment / "lib" / "libtool.so.2").is_symlink()
    files = [path for path in environment.rglob("*") if path.is_file() and not path.is_symlink()]
    assert {path.stat().st_nlink for path in files} == {1}, "copied, not hard-linked"
    assert not [path for path in files if stat.S_IMODE(path.stat().st_mode) & 0o022], "writable for the owner alone"
    assert list((conda_node.top / "tmp").iterdir()) == []
    assert conda_node.verify(deep=True)["ok"] and done["level"] == "measured"

    conda_node.prefix = conda_node.top / ("with space " + "l" * 120)
    conda_node.install(variant)
    assert conda_node.activate(variant)[1]["root"] == done["root"]
    environment = conda_node.environment(variant)
    assert run(environment / "bin" / "tool") == str(environment)
    assert run(environment / "bin" / "pure-run") == "pure"
    record = (environment / "conda-meta" / "tool-2.0-h1_3.json").read_text()
    assert str(conda_node.top) not in record and json.loads(record)["channel"] == "conda-forge"


def test_what_was_delivered_is_installed_once_and_a_change_before_the_stamp_or_a_missing_record_is_noticed(
    conda_node: CondaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    # rattler makes a client that fetches nothing, and would not without certificates of the system.
    empty = {"SSL_CERT_FILE": "/nonexistent", "SSL_CERT_DIR": "/nonexistent"}
    monkeypatch.setattr(prefix, "_ENVIRON", {**prefix._ENVIRON, **empty})
    variant = conda_node.variant(conda_node.add(TOOL))
    delivered = conda_node.top / "delivered"
    delivered.mkdir()
    (delivered / "conda-forge").symlink_to(conda_node.channel.folder)
    artifacts = {"find_links": [], "offline": True, "conda": {"folder": str(delivered)}}
    assert conda_node.install(variant, artifacts=artifacts)[0]
    environment = conda_node.environment(variant)
    config = environment / "etc" / "tool.conf"
    true = config.read_text()
    config.write_text("other")
    with pytest.raises(NodeError, match="record-mismatch"):
        conda_node.activate(variant)
    config.write_text(true)
    os.unlink(conda_node.channel.folder / "linux-64" / TOOL.file)
    conda_node.activate(variant)
    assert conda_node.install(variant, artifacts=artifacts)[0] is False
    assert conda_node.verify(variant=variant)["checks"][0]["details"]["python"].startswith("3.")
    with pytest.raises(NodeError, match="package-not-found"):
        conda_node.install(dict(variant, digest="f" * 64), artifacts=artifacts)
    (environment / "conda-meta" / "tool-2.0-h1_3.json").unlink()
    with pytest.raises(NodeError, match="environment-drifted") as caught:
        conda_node.install(variant)
    assert "tool-2.0-h1_3 is missing" in caught.value.why


def test_link_scripts_run_only_where_they_are_listed_see_nothing_of_the_user_and_fail_the_install(
    conda_node: CondaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2hunter2")
    scripts = {name: f'env > "$PREFIX/{name}.txt"\necho hello > "$PREFIX/.messages.txt"\n' for name in ("one", "two")}
    scripts["three"] = "echo no luck >&2\nexit 3\n"
    packages = [Package(name, files={f"bin/.{name}-post-link.sh": text.encode()}) for name, text in scripts.items()]
    conda = conda_node.add(*packages)
    variant = conda_node.variant(conda, link_scripts=["one"])
    result = conda_node.install(variant)[1]
    environment = conda_node.environment(variant)
    assert sorted(result["conda"]["link_scripts_skipped"]) == ["three", "two"]
    said = (environment / "one.txt").read_text()
    assert f"PREFIX={environment}\n" in said and "hunter2" not in said
    assert not (environment / "two.txt").exists() and not (environment / ".messages.txt").exists()
    failing = conda_node.variant(conda, link_scripts=["three"])
    assert "no luck" in conda_node.fails(failing, "conda-script-failed", 4).why


def test_a_wheel_of_a_distribution_that_conda_brought_is_refused_by_both_names(conda_node: CondaNode) -> None:
    wheel = make_wheel(conda_node.wheels, name="pure", version="9.0")
    error = conda_node.fails(conda_node.variant(conda_node.add(PURE), [wheel]), "conda-and-wheel", 7)
    assert "pure 9.0" in error.what and "pure 1.5 pyhd_0" in error.what


def test_what_cannot_become_an_environment_is_refused_before_anything_is_installed(node: Node) -> None:
    bare = CondaNode(node.top, None)
    unlocked = bare.variant([])
    unlocked["conda"] = {"packages": [], "unrecorded": "no channel was in reach"}
    assert "no channel" in bare.fails(unlocked, "conda-unrecorded", 5).why
    bare.prefix = bare.top / "/".join(["p" * 60] * 5)
    assert "255" in bare.fails(bare.variant(bare.add(TOOL)), "conda-prefix-too-long", 7).why
