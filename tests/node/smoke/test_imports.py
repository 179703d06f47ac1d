"""`sound`: imports come from the locked place at the locked version, and a bad module is named."""

from __future__ import annotations

import json
import os
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.model.evidence import Check
from envbuild.node.env import stamp
from envbuild.node.smoke import only, smoke
from envbuild.node.smoke.programs.imports import comparable, same_version
from envbuild.node_program import node_pyz
from envbuild.report.publish import public_fields
from tests.node.pythons import require_python
from tests.node.smoke.subject import Subject
from tests.support.files import write_file, write_files
from tests.support.patience import PATIENCE, with_deadline
from tests.support.programs import completed

SOUND = {"name": "sound", "deadline": PATIENCE}
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


class Bare(Subject):
    """A venv without packages, with helpers that put modules and metadata into it."""

    def __init__(self, path: Path, minor: str = PYTHON) -> None:
        super().__init__(path, path.parent)
        if minor == PYTHON:
            venv.create(path, with_pip=False, symlinks=True)
        else:
            completed([require_python(minor), "-m", "venv", "--without-pip", str(path)])
        self.path, self.minor = path, minor
        self.site = path / "lib" / f"python{minor}" / "site-packages"

    def module(self, name: str, text: str = "") -> None:
        (self.site / f"{name}.py").write_text(text)

    def package(self, name: str, version: str) -> None:
        info = self.site / f"{name}-{version}.dist-info"
        write_file(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def sound(self, **variant: Any) -> Check:
        return self.checks(SOUND, variant={"python": self.minor, **variant})[0]


@pytest.fixture
def bare(tmp_path: Path) -> Bare:
    return Bare(tmp_path / "env")


def packages(**versions: str) -> list[dict[str, str]]:
    return [{"name": name, "version": version} for name, version in versions.items()]


def test_a_sound_environment_passes_and_is_left_untouched(bare: Bare) -> None:
    bare.module("good", "import json\n")
    bare.package("good", "1.0")
    (bare.site / "spaced").mkdir()  # a namespace package is placed by its path
    before, names = sorted(bare.path.rglob("*")), ["good", "json", "sys", "spaced"]
    check = bare.sound(imports=names, packages=packages(good="1.0"))
    assert check.status == "passed", check.details
    assert [module["module"] for module in check.details["modules"]] == names
    assert all(module["seconds"] >= 0 for module in check.details["modules"])
    assert sorted(bare.path.rglob("*")) == before


def test_a_module_or_a_link_from_outside_is_named_with_its_place(bare: Bare, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    for name in ("stray", "elsewhere"):
        write_file(outside / f"{name}.py", "")
    (bare.site / "linked.py").symlink_to(outside / "elsewhere.py")
    (bare.site / "link.pth").write_text(f"{outside}\n")
    failures = bare.sound(imports=["stray", "linked"]).details["failures"]
    assert f"sys.path has {outside}, which is outside the environment" in failures
    assert f"stray comes from {outside / 'stray.py'}, which is outside the environment" in failures
    assert f"linked comes from {bare.site / 'linked.py'}, which is outside the environment" in failures


def test_pythonpath_and_user_site_serve_nothing(bare: Bare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smuggled.py").write_text("")
    user_site = tmp_path / "home" / ".local" / "lib" / f"python{PYTHON}" / "site-packages"
    write_file(user_site / "personal.py", "")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    failures = bare.sound(imports=["smuggled", "personal"]).details["failures"]
    assert [failure.split(":")[1].strip() for failure in failures] == ["ModuleNotFoundError"] * 2


def test_what_an_import_raises_or_crashes_with_is_named_and_the_rest_still_runs(bare: Bare) -> None:
    bare.module("first")
    bare.module("bad", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    bare.module("ends", "raise SystemExit(4)")
    bare.module("needs", "import missing_dependency")
    bare.module("last")
    check = bare.sound(imports=["first", "bad", "ends", "needs", "last"])
    assert sorted(check.details["failures"]) == [
        "import ends: SystemExit: 4",
        "import needs: ModuleNotFoundError: No module named 'missing_dependency'",
        "python crashed with SIGSEGV during import bad",
    ]
    assert [module["module"] for module in check.details["modules"]] == ["first", "ends", "needs", "last"]


@pytest.mark.parametrize(("header", "built"), [((2, 183), "aarch64"), ((1, 3), "i386"), ((2, 9999), "another machine")])
def test_an_extension_for_another_machine_is_told_as_that(bare: Bare, header: tuple[int, int], built: str) -> None:
    """The loader itself says that there is no such file, or that its class is wrong."""
    elf = bytearray(Path(sys.executable).resolve().read_bytes()[:4096])
    elf[4], elf[18:20] = header[0], header[1].to_bytes(2, "little")
    (bare.site / "bad.abi3.so").write_bytes(elf)
    check = bare.sound(imports=["bad"])
    assert check.status == "failed"
    assert check.says.startswith("import bad: ImportError: ")
    assert f"(it is built for {built}, this is {os.uname().machine})" in check.says


def test_a_hang_on_import_names_the_module(bare: Bare) -> None:
    bare.module("slow", "import time\ntime.sleep(600)\n")
    variant = {"imports": ["slow", "json"]}
    deadline, check = with_deadline(
        lambda deadline: bare.raw({"name": "sound", "deadline": deadline}, variant=variant)[0],
        1.5,
        lambda found: "import slow" in found["says"] and "slow.py" in found["details"]["output"],
    )
    assert check["says"] == f"python hung past its deadline of {deadline:g} s during import slow"
    assert "slow.py" in check["details"]["output"]
    assert check["details"]["not_run"] == ["slow", "json"]


TORCH = {"torch": "2.1.0", "flavour": "cu118"}


@pytest.mark.parametrize(
    ("variant", "says"),
    [
        ({"python": "3.6"}, f"the interpreter is Python {PYTHON}, the lock says 3.6"),
        (TORCH, None),
        ({**TORCH, "flavour": "cpu"}, "torch is built for CUDA 11.8, the lock says cpu"),
        ({**TORCH, "flavour": "cu121"}, "torch is built for CUDA 11.8, the lock says 12.1"),
        ({**TORCH, "torch": "2.2.0"}, "torch says it is 2.1.0+cu118, the lock says 2.2.0"),
    ],
)
def test_interpreter_and_torch_must_be_the_locked_ones(bare: Bare, variant: dict[str, str], says: str | None) -> None:
    bare.module("torch", "__version__ = '2.1.0+cu118'\nclass version: cuda = '11.8'\n")
    check = bare.sound(**variant)
    assert check.status == "passed" if says is None else check.says == says


def test_a_base_serves_what_it_provides_and_nothing_else(tmp_path: Path) -> None:
    base = Bare(tmp_path / "base")
    base.module("provided_module")
    base.module("other_module")
    base.package("provided_module", "1.5")
    bare = Bare(tmp_path / "env")
    (bare.site / "base.pth").write_text(f"{base.site}\n")
    good = bare.sound(imports=["provided_module"], base={"kind": "system"}, provided={"provided_module": "1.5"})
    assert good.status == "passed", good.details
    bad = bare.sound(imports=["other_module"], base={"kind": "system"}, provided={"provided_module": "1.4"})
    assert bad.details["failures"][0] == "provided_module is 1.5, the base says 1.4"
    assert bad.details["failures"][1].startswith("other_module comes from")


def test_what_an_image_keeps_of_its_base_has_the_version_that_it_had_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, bare = Bare(tmp_path / "base"), Bare(tmp_path / "env")
    base.package("tqdm", "4.1")
    (bare.site / "base.pth").write_text(f"{base.site}\n")
    image: dict[str, Any] = {"base": {"kind": "image"}, "packages": packages(tqdm="4.66")}
    assert bare.sound(**image).says.startswith("tqdm is 4.1, the lock says 4.66")
    evidence = {"kept_of_base": {"tqdm": ["4.66", "4.1"]}}
    monkeypatch.setattr(stamp, "of_image", lambda *_: {"evidence": evidence})
    (check,) = bare.checks(SOUND, variant={"python": PYTHON, **image}, image=True)
    assert check.status == "passed", check


def test_versions_must_equal_the_lock_as_installers_and_metadata_write_them(bare: Bare) -> None:
    """importlib.metadata of Python 3.8 and 3.9 finds no `Name_Space.part` where it is asked for its normal name."""
    pairs = {"a": ("1.0", "1.1"), "b": ("2.0", "2.0+cpu"), "c": ("3", ""), "name-space-part": ("1.0", "1.0")}
    pairs |= {"d": ("1.0+cpu", "1.0+cu118"), "e": ("1.0rc1", "1.0.rc1"), "f": ("1.10", "1.1")}
    for name, (_, found) in pairs.items():
        if found:
            bare.package({"name-space-part": "Name_Space.part"}.get(name, name), found)
    check = bare.sound(packages=packages(**{name: locked for name, (locked, _) in pairs.items()}))
    assert sorted(check.details["failures"]) == [
        "a is 1.1, the lock says 1.0",
        "c 3 is in the lock and not installed",
        "d is 1.0+cu118, the lock says 1.0+cpu",
        "f is 1.1, the lock says 1.10",
    ]


@pytest.mark.parametrize("minor", ["3.6", "3.8"])
def test_an_environment_of_an_old_python_is_asked_for_versions_and_for_what_its_code_imports(
    minor: str, tmp_path: Path
) -> None:
    bare = Bare(tmp_path / "env", minor)
    bare.module("good")
    bare.package("good", "1.0")
    sound, closed = closure(bare, {"own.py": "import good, json\n"}, imports=("good",), packages=packages(good="1.0"))
    assert (sound.status, closed.status) == ("passed", "passed"), (sound.details, closed.details)
    check = bare.sound(imports=["good"], packages=packages(good="2.0", absent="1"))
    assert sorted(check.details["failures"]) == [
        "absent 1 is in the lock and not installed",
        "good is 1.0, the lock says 2.0",
    ]


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=5), st.text(max_size=20))
def test_leading_zeros_do_not_matter_and_no_text_breaks_it(numbers: list[int], text: str) -> None:
    plain = ".".join(str(number) for number in numbers)
    assert same_version(plain, ".".join(f"0{number}" for number in numbers))
    assert not same_version(plain, plain + ".x1")
    assert comparable(text) == comparable(f" {text} ")


@pytest.mark.parametrize("minor", [PYTHON, "3.8"])
def test_it_runs_from_the_zipapp_and_a_failing_check_is_exit_1(minor: str, bare: Bare, tmp_path: Path) -> None:
    python = sys.executable if minor == PYTHON else require_python(minor)
    pyz = tmp_path / "envbuild-node.pyz"
    pyz.write_bytes(node_pyz())
    bare.module("good")
    for imports, code in ((["good"], 0), (["good", "absent"], 1)):
        args = {"environment": str(bare.path), "variant": {"imports": imports}, "items": [{"name": "sound"}]}
        request = {"protocol": 1, "verb": "smoke", "run": "r1", "prefix": str(tmp_path), "args": args}
        done = completed([python, "-I", str(pyz), "smoke"], input=json.dumps(request), cwd=tmp_path)
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["ok"], answer["changed"]) == (code, True, False), done.stderr
        assert answer["result"]["exit"] == code


def gaps(cuda: bool, items: tuple[str, ...], only_: tuple[str, ...] = (), **facts: object) -> list[dict[str, Any]]:
    """What is said to be missing, each of which may be published."""
    spec = smoke.Spec("/env", {}, cuda, only=only_)
    found = only.gaps(spec, [{"name": name} for name in items], [{"name": "smoke/sound", "details": facts}])
    for gap in found:
        assert public_fields(Check.from_plain(gap), {})["says"] == gap["says"]
    return found


def test_what_was_not_tried_is_said() -> None:
    (gap,) = gaps(False, ("sound", "machine", "training"), torch="1.11.0+cu113", torch_cuda="11.3")
    assert Check.from_plain(gap).level == "not-checked"
    assert gap["says"] == "no usable GPU here: nothing ran on CUDA, though torch is built for CUDA 11.3"
    assert gaps(True, ("sound", "machine"), torch="1.11.0+cu113", torch_cuda="11.3") == []
    assert gaps(False, ("sound", "machine"), torch="2.13.0+cpu", torch_cuda=None) == []
    # A torch that was imported only has computed nothing.
    assert [gap["name"] for gap in gaps(False, ("sound",), torch="2.13.0+cpu", torch_cuda=None)] == ["smoke/training"]
    assert gaps(False, ("sound",)) == [], "without torch imports are all there is"
    assert gaps(False, (), ("machine/gemm", "training"))
    assert gaps(False, ("step", "sound", "machine"), torch="2", torch_cuda="12.6")


def closure(
    bare: Bare, files: dict[str, str], only: tuple[str, ...] = (), imports: tuple[str, ...] = ("json",), **more: Any
) -> list[Check]:
    """The checks of `sound` where a source `code` lies in the environment with these files."""
    write_files(bare.path / "src" / "code", files)
    source = {"name": "code", "git": "https://git.example.org/lab/code", "commit": "0" * 40, "install": "path"}
    variant = {"python": bare.minor, "sources": [source], "imports": list(imports), **more}
    return bare.checks(SOUND, variant=variant, only=only)


def test_what_the_code_imports_and_nothing_brings_is_a_deviation_with_its_place(bare: Bare) -> None:
    bare.module("good", "raise SystemExit('it was run')\n")
    code = "import json, good\nimport own\ntry:\n    import fast\nexcept ImportError: ...\nfrom absent.part import x\n"
    files = {"own/__init__.py": code, "tests/test_own.py": "import pytest_of_nobody, absent\n", "old.py": "print 1\n"}
    files["own/lone.py"] = "import lone.part\n"  # a file is not what it imports under its own name
    sound, check = closure(bare, files)
    assert (sound.name, check.name, check.status) == ("smoke/sound", "smoke/sound/closure", "passed"), check.details
    missing = {"absent": "code/own/__init__.py:6", "lone": "code/own/lone.py:1"}
    assert check.details["open"] == missing
    assert check.details["resolved"] == ["good"]
    assert set(check.details["optional"]) == {"fast", "pytest_of_nobody"}
    assert check.says == (
        "1 of 3 modules that the code imports are there; missing: absent (code/own/__init__.py:6), "
        "lone (code/own/lone.py:1); 2 optional ones missing: fast, pytest_of_nobody"
    )
    assert check.details["deviation"] == "imports-open"
    # Beside the point where the stack's own first steps are tested.
    _, check = closure(bare, {}, smoke=[{"name": "sound"}, {"name": "step"}])
    assert (check.details["open"], check.details["beside"]) == ({}, missing)
    assert "missing, in code that the stack's first training steps do without: absent (code/own" in check.says
    # Untried where no import says that the code starts.
    _, check = closure(bare, {}, imports=())
    assert (check.status, check.details["deviation"], check.details["unimported"]) == ("passed", "imports-open", True)
    assert "; none of the code was imported: name what brings them" in check.says


def test_a_module_that_a_package_of_the_tree_lacks_is_missing_with_the_nearest_name(bare: Bare) -> None:
    bare.module("pkg_of_others")
    write_files(bare.site, {"net/__init__.py": "", "net/installed.py": ""})
    files = {
        "net/__init__.py": "", "net/metrics.py": "", "net/sub/__init__.py": "", "net/kernel.cpython-311-x.so": "",
        "net/train.py": "from net.metrcs import mse\nfrom .data import x\nfrom net import nothing\nimport net.kernel\n"
        "from .metrics import y\nfrom net.sub.deep import z\nfrom net.version import v\nimport net._made, modle\n",
        "net/soft.py": "try:\n    from .fast import f\nexcept ImportError: ...\nimport net.installed\n",
        "net/hints.py": "if TYPE_CHECKING:\n    import net.types\n",
        "tests/test_net.py": "import net.gone\n",
        "lazy/__init__.py": "def __getattr__(name): ...\n", "lazy/a.py": "import lazy.b\n",
        ".gitignore": "net/_made.py\n", "model.py": "",
    }  # fmt: skip
    _, check = closure(bare, files)
    assert check.details["open"] == {
        "modle": "code/net/train.py:8; near: model",
        "net.data": "code/net/train.py:2",
        "net.metrcs": "code/net/train.py:1; near: net.metrics",
        "net.sub.deep": "code/net/train.py:6",
    }
    assert "missing: modle (code/net/train.py:8; near: model), net.data" in check.says


def test_the_folder_of_environments_in_a_tree_is_not_its_code(tmp_path: Path) -> None:
    inside = Bare(tmp_path / "prefix" / "envs" / "x")
    write_files(tmp_path, {"prefix/tmp/planted.py": b"import absent\n", "mine.py": b"import json\n"})
    (inside.path / "src").mkdir()
    (inside.path / "src" / "code").symlink_to(tmp_path)
    _, check = closure(inside, {})
    assert (check.details["open"], check.details["optional"]) == ({}, {})


def test_closure_alone_and_of_an_environment_without_code(bare: Bare) -> None:
    bare.module("good")
    asked, *left = closure(bare, {"a.py": "import good\n"}, ("sound/closure",))
    assert (asked.name, asked.status, asked.details.get("deviation")) == ("smoke/sound/closure", "passed", None)
    assert [check.name for check in left] == ["smoke/only"]
    nothing = bare.checks(SOUND, only=("sound/closure",))[0]
    assert (nothing.status, nothing.says) == ("skipped", "no source lies in this environment as code")
