"""Rules that read no facts are asked when a lock is made, from what its sources use and import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuild.lock.check import check_lock
from envbuild.lock.files import parse_lock
from envbuild.lock.readers.scan import imported_from_top, uses
from envbuild.lock.record import render_lock
from envbuild.model.stack import Profile, Stack
from envbuild.resolve.profile import WITHOUT_NODE, findings, mending, unlocked
from tests.lock.build import MakeSupply, make, make_wheel, make_wheels, stack, versions
from tests.lock.conftest import Repos
from tests.resolve.builders import compat, make_lock, package, source

SOURCE = source("src")
OLD = "import numpy as np\n\nKINDS = {6: np.float}\n"


def house(tmp_path: Path, numpy: tuple[str, ...] = ("1.23.5", "1.26.4", "2.4.6")) -> Path:
    rows = [f"numpy {version}" for version in numpy]
    rows += [f"setuptools {version}" for version in ("69.5.1", "70.0.0", "81.0.0", "84.2.1")]
    make_wheel(tmp_path / "house", "torch", "2.1.2", tag="cp311-cp311-linux_x86_64")
    return make_wheels(tmp_path / "house", *rows, "wheel 0.45.1")


def torch(*names: str, **more: object) -> Stack:
    return stack(packages=["torch==2.1.2", *names], **more)


def test_d61_a_lock_takes_what_no_rule_refuses_but_for_what_the_stack_asks_which_fails_the_check(
    tmp_path: Path, supply: MakeSupply
) -> None:
    free = make(torch("numpy"), supply(house(tmp_path)))
    assert (versions(free)["numpy"], findings(free, compat())) == ("1.26.4", {})
    said: list[str] = []
    wanted = torch("numpy>=2")
    lock = make(wanted, supply(house(tmp_path)), say=said.append)
    assert versions(lock)["numpy"] == "2.4.6"
    assert any("numpy<2 would be needed" in text for text in said)
    (text,) = findings(lock, compat())
    assert text.startswith("numpy-torch-abi: no node can take this") and "instead: numpy<2" in text
    (found,) = [each for each in check_lock(lock, wanted, online=False) if each.code == "numpy-torch-abi"]
    assert (found.kind, int(found.exit_code)) == ("problem", 7)


def test_d61_every_rule_that_reads_no_facts_is_asked_without_a_node() -> None:
    from envbuild.resolve.engine import RULES

    blind = {check for check in RULES.values() if check.__code__.co_varnames[0].startswith("_")}
    assert blind <= set(WITHOUT_NODE)


@pytest.mark.parametrize("build", [{}, {"sources": [{**SOURCE, "build": {"kind": "wheel"}}]}])
def test_d57_what_only_a_run_imports_is_a_warning_beside_builds_too(build: dict[str, object]) -> None:
    pins = [package("setuptools", "84.2.1"), package("tensorboard", "2.20.0")]
    (text,) = findings(make_lock({"id": "cpu", "python": "3.11", "packages": pins, **build}), compat())
    assert "tensorboard 2.20.0/tensorboard/default.py uses it" in text and "no node" not in text


@pytest.mark.parametrize(
    ("python", "packages", "says"),
    [
        ("3.11", ["numpy==2.0.1"], ["numpy-torch-abi"]),
        ("3.12", ["numpy==1.26.4"], ["torch-python"]),
        ("3.11", ["numpy>=2", "numpy==1.26.*"], []),
        ("3.11", ["numpy==2.0.1; python_version < '3'"], []),
        ("3.12", ["numpy==2.0.1", "apex"], ["package-homonym", "torch-python", "numpy-torch-abi"]),
        ("3.12", ["setuptools==59.5.0"], ["torch-python", "setuptools-python"]),
        ("3.11", ["setuptools==59.5.0"], []),
        ("3.11", ["tensorboard==2.8.0", "protobuf==4.21.0"], ["protobuf-generated"]),
        ("3.11", ["setuptools==82.0.0", "lightning==2.1.0", "tensorboard==2.20.0"], ["setuptools-pkg-resources"]),
        ("3.11", ["setuptools==82.0.0", "lightning==2.4.0", "tensorboard==2.20.0"], []),
    ],
)
def test_d61_a_profile_is_asked_by_its_own_versions_before_it_has_a_lock(
    python: str, packages: list[str], says: list[str]
) -> None:
    wanted = {"python": [python], "torch": {"version": "2.1.2", "flavours": ["cu121"]}, "packages": packages}
    profile = Profile.from_plain(wanted)
    assert [text.partition(":")[0] for text in unlocked(profile, compat())] == says
    more = {
        "environment": {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        "training": {"zero_stage": 2, "pipeline": True},
    }
    trained = [text.partition(":")[0] for text in unlocked(Profile.from_plain({**wanted, **more}), compat())]
    assert trained == [*(rule for rule in says if rule != "protobuf-generated"), "zero-needs-no-pipeline"]
    on_base = Profile.from_plain({**wanted, "bases": [{"kind": "system", "provides": ["torch==2.1.2"]}]})
    assert "torch-python" not in "".join(unlocked(on_base, compat())), "its torch is no wheel"


def test_d57_what_a_build_imports_of_torch_bounds_setuptools(tmp_path: Path, supply: MakeSupply, repos: Repos) -> None:
    repos.create("ext")
    commit = repos.commit("ext", "setup.py", "from setuptools import setup\nsetup(name='ext')\n")
    source = {"name": "ext", "git": Repos.url("ext"), "commit": commit, "build": {"flags": ["cpp_ext"]}}
    folder = house(tmp_path)
    built = make(torch("numpy<2", "setuptools", sources=[source]), supply(folder))
    assert versions(built)["setuptools"] == "81.0.0"
    assert not [text for text in findings(built, compat()) if "setuptools" in text]
    beside = make(torch("numpy<2", "setuptools"), supply(folder))
    assert versions(beside)["setuptools"] == "84.2.1"
    (text,) = findings(beside, compat())
    assert "torch 2.1.2/torch/utils/cpp_extension.py uses it" in text


@pytest.mark.parametrize(
    ("packages", "uses", "says"),
    [
        (
            ["tensorboard==2.20.0", "torchmetrics==0.11.4"],
            {},
            "torchmetrics 0.11.4/torchmetrics/utilities/imports.py at",
        ),
        (
            ["pytorch-lightning==1.9.5"],
            {"pkg-resources": "a.py:7"},
            "pytorch-lightning 1.9.5/pytorch_lightning/__init__",
        ),
        (["lightning-utilities==0.10.0"], {"pkg-resources": "a.py:3 at import"}, "src/a.py:3 at import"),
    ],
)
def test_d57_what_a_package_does_at_import_says_more_than_what_others_do_in_a_call(
    packages: list[str], uses: dict[str, str], says: str
) -> None:
    pins = [package(*text.split("==")) for text in (*packages, "setuptools==84.2.1")]
    lock = make_lock({"id": "cpu", "python": "3.11", "packages": pins, "sources": [{**SOURCE, "uses": uses}]})
    (text,) = findings(lock, compat())
    assert text.startswith("setuptools-pkg-resources: no node can take this") and says in text
    assert mending(lock.variants[0], compat()) == ("setuptools<82",)


@pytest.mark.parametrize(
    ("more", "rules"),
    [
        ({}, ["pkg-resources-absent"]),
        ({"packages": [package("setuptools", "81.0.0")]}, []),
        ({"sources": [{**SOURCE, "build": {}, "uses": {"pkg-resources": "setup.py:1"}}]}, []),
        ({"base": {"kind": "system", "provides": ["torch>=2"]}}, []),
    ],
    ids=["nothing brings it", "setuptools locked", "its build alone", "a base may bring it"],
)
def test_d57_pkg_resources_comes_with_setuptools_alone(more: dict[str, Any], rules: list[str]) -> None:
    source = {**SOURCE, "uses": {"pkg-resources": "a.py:3 at import"}}
    lock = make_lock({"id": "cpu", "python": "3.11", "sources": [source], **more})
    assert [text.partition(":")[0] for text in findings(lock, compat())] == rules


def variant(uses: dict[str, str], numpy: str = "1.24.4", **more: object) -> dict[str, Any]:
    sources = [{**SOURCE, "uses": uses, **more}]
    return {"id": "v", "python": "3.11", "packages": [package("numpy", numpy)], "sources": sources}


FILES = {
    "pretrain.py": "from megatron.data import gpt\n",
    "megatron/__init__.py": "",
    "megatron/data/__init__.py": "",
    "megatron/data/gpt.py": "from .indexed import A\ntry:\n    import megatron.vision\nexcept OSError:\n    pass\n",
    "megatron/data/indexed.py": OLD,
    "megatron/vision.py": "import numpy as np\nX = np.int\n\ndef f():\n    return np.float\n",
    "tests/test_it.py": "import numpy as np\nX = np.object\n",
}  # fmt: skip


def test_d83_what_an_import_reaches_is_told_from_what_a_call_does_and_every_place_is_kept() -> None:
    reached = imported_from_top(FILES)
    assert "megatron/data/indexed.py" in reached
    assert not {"megatron/vision.py", "tests/test_it.py"} & reached.keys()
    assert uses(FILES, reached) == {
        "np-int": "megatron/data/indexed.py:3 at import, megatron/vision.py:2, megatron/vision.py:5, tests/test_it.py:2"
    }
    # A script that the stack starts is where imports begin (D95), and setup.py comes first (D20).
    assert list(imported_from_top(TITAN, ["run/train.py"])) == [
        "titan/__init__.py", "run/train.py", "titan/model.py", "titan/kernels.py"
    ]  # fmt: skip
    assert uses({"a.py": OLD, "setup.py": OLD}) == {"np-int": "setup.py:3, a.py:3 at import"}
    assert uses({"setup.py": "from setuptools import setup\nsetup(use_2to3=True)\n"}) == {"use-2to3": "setup.py:2"}
    assert uses({"x_pb2.py": "D = _descriptor.FileDescriptor(name='x')\n"}) == {"old-protobuf": "x_pb2.py:1 at import"}


@pytest.mark.parametrize(
    ("text", "traits"),
    [
        # Removed names, and the modules that have them (D20).
        (OLD, {"np-int": "a.py:3 at import"}),
        ("import numpy\nX = numpy.bool\n", {"np-bool": "a.py:2 at import"}),
        ("import numpy as np\nX = np.float_\n", {"np-float_": "a.py:2 at import"}),
        ("import torch\nX = torch._six.inf\n", {"torch-six": "a.py:2 at import"}),
        ("from torch import _six\n", {"torch-six": "a.py:1 at import"}),
        ("from distutils import util\n", {"distutils": "a.py:1 at import"}),
        ("import pkg_resources\n", {"pkg-resources": "a.py:1 at import"}),
        ("from pkg_resources import packaging\n",
         {"pkg-resources": "a.py:1 at import", "pkg-resources-packaging": "a.py:1 at import"}),
        # What only looks like one.
        ("import numpy as np\nX = np.float32\n", {}),
        ("try:\n    from torch._six import inf\nexcept ImportError:\n    from math import inf\n", {}),
        ("# np.float and torch._six\nTEXT = 'import imp'\n", {}),
        ("print 'of another Python'\nimport imp\n", {}),
        # Imports by a call (D57).
        ("__import__('pkg_resources').declare_namespace(__name__)\n", {"pkg-resources": "a.py:1 at import"}),
        ("import importlib\nimportlib.import_module('distutils.util')\n", {"distutils": "a.py:2 at import"}),
        ("from importlib import import_module\nX = import_module('torch._six')\n", {"torch-six": "a.py:2 at import"}),
        ("try:\n    __import__('pkg_resources')\nexcept ImportError:\n    pass\n", {}),
        # What runs when a module is imported, and what does not (D83).
        ("import numpy as np\nclass C:\n    kind = np.float\n", {"np-int": "a.py:3 at import"}),
        ("import numpy as np\ndef f(kind=np.float):\n    pass\n", {"np-int": "a.py:2 at import"}),
        ("import numpy as np\ndef f():\n    return np.float\n", {"np-int": "a.py:3"}),
        ("import numpy as np\nif __name__ == '__main__':\n    print(np.float)\n", {"np-int": "a.py:3"}),
        ("import numpy as np\ntry:\n    X = np.float\nexcept AttributeError:\n    X = float\n", {"np-int": "a.py:3"}),
    ],
)  # fmt: skip
def test_what_newer_packages_do_not_take_is_found_with_its_place(text: str, traits: dict[str, str]) -> None:
    assert uses({"a.py": text}) == traits


@pytest.mark.parametrize(
    ("place", "verdict", "says"),
    [
        ("pkg/a.py:3 at import, b.py:196", "refuse", "src/pkg/a.py:3 at import, b.py:196 uses it, so its import fails"),
        ("b.py:196", "warn", "src/b.py:196 uses it, and fails when that code runs"),
    ],
)
def test_d83_d94_a_break_at_import_refuses_and_the_patch_that_ends_it_is_offered_with_the_edit_to_make(
    place: str, verdict: str, says: str
) -> None:
    lock = make_lock(variant({"np-int": place}))
    [(text, item)] = findings(lock, compat()).items()
    assert (item.verdict, "no node can take this" in text) == (verdict, verdict == "refuse")
    assert text.startswith("numpy-aliases: ") and says in text
    assert "instead: numpy<1.24, or `patches: [numpy-aliases]` for the source src" in text
    mended = make_lock(variant({"np-int": place}, patches=["numpy-aliases"]))
    assert not findings(mended, compat())


def test_d83_a_lock_of_a_source_that_breaks_at_import_takes_an_older_numpy(
    tmp_path: Path, supply: MakeSupply, repos: Repos
) -> None:
    repos.create("ms")
    commit = repos.commit("ms", "indexed.py", OLD)
    source = {"name": "ms", "git": Repos.url("ms"), "commit": commit, "install": "path"}
    wanted = stack(packages=["numpy"], sources=[source])
    lock = make(wanted, supply(house(tmp_path)))
    assert lock.variants[0].sources[0].uses == {"np-int": "indexed.py:3 at import"}
    assert versions(lock)["numpy"] == "1.23.5"
    assert parse_lock(render_lock(lock), "x") == lock
    assert make(wanted, supply(tmp_path / "house"), previous=lock) == lock


TITAN = {
    "run/train.py": "import os, numpy, titan.model\ntry:\n    import wandb\nexcept ImportError:\n    pass\n",
    "titan/__init__.py": "",
    "titan/model.py": "from .kernels import moe\n\ndef f():\n    import never\n",
    "titan/kernels.py": "import triton.language\nimport triton\nimport torch\nfrom apex import amp\nimport amp_C\n",
    "unused/x.py": "import nothing_of_this_name\n",
}


@pytest.mark.parametrize("begin", ["run.train", ""])
def test_d95_modules_that_no_package_brings_are_told_when_locking_with_the_way_to_them(
    begin: str, tmp_path: Path, supply: MakeSupply, repos: Repos
) -> None:
    repos.create("titan")
    for path, text in TITAN.items():
        commit = repos.commit("titan", path, text)
    source = {"name": "titan", "git": Repos.url("titan"), "commit": commit, "install": "path"}
    wanted, said = torch("numpy<2", sources=[source], imports=[begin] if begin else []), list[str]()
    lock = make(wanted, supply(house(tmp_path)), say=said.append)
    way = "run/train.py → titan/model.py → titan/kernels.py"
    assert [text for text in said if "known to have" in text] == [
        f"titan imports {module} ({way}), and no package of the lock is known to have it: add it if that code runs"
        for module in ("amp_C", "apex", "triton")
        if begin
    ]
    said.clear()
    make(wanted, supply(house(tmp_path)), say=said.append, previous=lock, upgrade=True)
    assert not [text for text in said if "known to have" in text], "the same commit is told of once"
