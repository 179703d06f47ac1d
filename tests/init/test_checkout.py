"""A checkout: which files are read as what, what its imports add, what is left out; and the command around it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from envbuild.catalog.loader import load_stack
from envbuild.cli.entry import main
from envbuild.errors import EnvbuildError
from envbuild.init import closure, index, make, tree, write
from envbuild.init.assemble import Ask, Result, assemble
from envbuild.init.closure import roots, scan
from envbuild.init.draft import Origin, make_draft
from envbuild.init.known import load_known
from envbuild.init.make import draft
from envbuild.init.read import read
from envbuild.init.tree import opened, split_ref
from envbuild.lock.packages import Request
from envbuild.lock.readers.pylock import Offer, OfferedFile
from envbuild.node.probe import gpus
from tests.support.fails import fails
from tests.support.files import write_file, write_files
from tests.support.programs import executable
from tests.support.repositories import git, make_repository
from tests.support.wheels import write_wheel

Drafted = Callable[..., dict[str, Any]]
FILES = {
    "README.md": "# own\n## Install\n```\ngit clone https://git.example.org/lab/own\ncd own\n"
    "pip install -r requirements.txt\n"
    "pip install own\npip install own-nightly[eval]\n```\n## Training\n```\npython train.py --epochs 1\n```\n",
    "requirements.txt": "torch==2.6.0\neinops==0.8.0\n",
    "requirements-rocm.txt": "torch==2.6.0+rocm6.2\n",
    "pyproject.toml": '[project]\nname = "own"\nversion = "1"\nrequires-python = ">=3.10"\n'
    '[project.optional-dependencies]\neval = ["sacrebleu>=2"]\n',
    "own/__init__.py": "import einops\nimport cv2, torch\nfrom . import ops\nfrom own import ops\n",
    "own/ops.py": "try:\n    import flash_attn\nexcept ImportError:\n    pass\n"
    "try:\n    import torch_npu\nexcept ImportError:\n    torch_npu = None\n",
    "own/late.py": "def score():\n    import sacrebleu\n    import utils_of_nobody\n",
    "train.py": "import own, helper, kernel_lib\n",
    "helper.py": "",
    "kernels/setup.py": "from setuptools import setup\nsetup(name='kernel_lib', install_requires=['ninja'])\n",
    "kernels/kernel_lib/__init__.py": "",
    "tests/test_own.py": "import pytest\nimport own\n",
    "tools/torch/x.py": "",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "own", FILES)


def reach(monkeypatch: pytest.MonkeyPatch, top: Path, url: str) -> None:
    """Git finds the repositories of an address in a folder."""
    config = f'[url "file://{top}/"]\ninsteadOf = {url}\n[uploadpack]\nallowAnySHA1InWant = true\nallowFilter = true\n'
    config += '[protocol "file"]\nallow = always\n'
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(write_file(top / "gitconfig", config)))


def assembled(folder: Path) -> Result:
    return assemble(tree.of_folder(folder), load_known())


def test_a_module_that_the_own_package_lacks_is_open_and_part_of_the_digest(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = assembled(folder).imports
    write_file(folder / "own" / "late.py", "import numpy\nfrom own.opps import x\n")
    result = assembled(folder)
    closed = {closing.imported.module: closing for closing in result.closed}
    assert (closed["own.opps"].how, closed["own.opps"].where) == ("open", "own/late.py:2:1; did you mean `own.ops`?")
    (finding,) = (finding for finding in result.findings if finding.about == ("own.opps",))
    assert (finding.rule, finding.does) == ("import-open", "leaves it out: did you mean `own.ops`?")
    write_file(folder / "own" / "late.py", "import numpy\nfrom own.ops import x\n")
    assert assembled(folder).imports not in (before, result.imports)
    write_file(folder / "own" / "__init__.py", "from own.opps import x\n")
    monkeypatch.chdir(tmp_path)
    main(["init", "x.yaml", "--from", str(folder), "--offline"])
    said = capsys.readouterr()
    text = said.out + said.err
    assert "own.opps (own/__init__.py:1:1; did you mean `own.ops`?)" in text
    assert "not imported as a test: own, which needs own.opps" in text


@pytest.mark.parametrize(
    ("path", "code", "imported"),
    [
        # A folder of scripts that has the name of what they import; a package imports itself.
        ("examples/monarch/train.py", "import monarch.actor", {"monarch"}),
        ("examples/monarch/train.py", "import monarch.util", set()),
        ("pkg/deep/train.py", "import pkg.actor", {"pkg.actor"}),
        # What lies in a package is no module of its own, unless the package is the importer's folder.
        ("pkg/deep/train.py", "import data", {"data"}),
        ("pkg/train.py", "import data", set()),
        ("scripts/deep/train.py", "import tool", set()),
    ],
)
def test_a_module_is_local_where_its_importer_would_find_it(
    tmp_path: Path, path: str, code: str, imported: set[str]
) -> None:
    files = ("pkg/__init__.py", "pkg/deep/__init__.py", "pkg/data.py", "examples/monarch/util.py", "scripts/tool.py")
    whole = tree.of_folder(write_files(tmp_path / "own", dict.fromkeys(files, "") | {path: f"{code}\n"}))
    assert {found.module for found in scan(whole, roots(whole))} == imported


def test_what_the_files_do_not_list_is_closed_by_imports_and_the_tree_itself_is_no_package_of_it(folder: Path) -> None:
    whole = tree.of_folder(folder)
    firmness = {each.module: each.firmness for each in scan(whole, roots(whole))}
    assert firmness == {
        "cv2": "required", "einops": "required", "torch": "required", "sacrebleu": "required",
        "utils_of_nobody": "required", "flash_attn": "guarded", "torch_npu": "guarded", "pytest": "aside",
        "setuptools": "aside",
    }  # fmt: skip
    result = assembled(folder)
    assert {each.imported.module: each.how for each in result.closed} == {
        "cv2": "table", "einops": "declared", "torch": "declared", "sacrebleu": "offered", "utils_of_nobody": "name",
        "flash_attn": "name", "torch_npu": "vendor", "pytest": "name", "setuptools": "name",
    }  # fmt: skip
    names = {each.name: str(each.requirement) for each in result.draft.packages}
    assert names["sacrebleu"] == "sacrebleu>=2" and names["opencv-python"] == "opencv-python"
    assert not [name for name in names if name.startswith("own")] and not {"pytest", "torch-npu"} & names.keys()
    assert not any(each.url for each in result.draft.sources), "the tree itself is no source, nor one to pin"
    assert "git-unpinned" not in {each.rule for each in result.findings}
    assert result.draft.torch is not None and result.draft.torch.value == "2.6.0"
    assert "requirements-rocm.txt" in result.collected.choices
    assert [(each.folder, each.install) for each in result.projects] == [("", "path"), ("kernels", "path")]


def test_links_large_and_binary_files_are_left_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(tmp_path / "secret" / "requirements.txt", "evil\n")
    (folder / "requirements").symlink_to(tmp_path / "secret")
    (folder / "environment.yml").symlink_to(tmp_path / "secret" / "requirements.txt")
    (folder / "Dockerfile").write_bytes(b"FROM a\0b\n")
    (folder / "setup.py").write_text("#" * (tree.LARGEST + 1))
    result = assembled(folder)
    assert {"requirements", "environment.yml", "Dockerfile", "setup.py"} <= set(result.left_out)
    assert "evil" not in {each.name for each in result.draft.packages}
    monkeypatch.setattr(tree, "MOST_FILES", 3)
    assert tree.of_folder(folder).left_out["…"] == "more than 3 files"
    for name in ("Dockerfile", "setup.py"):  # alone it is an error
        with fails("file-unreadable"), opened(str(folder / name)):
            pass


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("https://h.example.org/a/b@v1", ("https://h.example.org/a/b", "v1")),
        ("https://user@h.example.org/a/b", ("https://user@h.example.org/a/b", "")),
        ("git@h.example.org:a/b", ("git@h.example.org:a/b", "")),
        ("git@h.example.org:a/b@main", ("git@h.example.org:a/b", "main")),
        ("ssh://git@h.example.org/a/b@main", ("ssh://git@h.example.org/a/b", "main")),
    ],
)
def test_the_ref_stands_behind_the_last_at(address: str, parts: tuple[str, str]) -> None:
    assert split_ref(address) == parts


def test_what_is_no_address_is_refused_with_what_to_give_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reference in ("https://h.example.org/a/b@--upload-pack=x", str(tmp_path / "nothing")):
        with fails("init-source"), opened(reference):
            pass
    monkeypatch.setattr(tree, "resolve_ref", lambda url, ref: None)
    for ref, hint in (("e8b7bfb21d0c", "write all 40 digits of a commit"), ("v1", "")):
        with fails("commit-missing") as caught, opened(f"https://h.example.org/a/b@{ref}"):
            pass
        assert caught.value.hint == hint
    write_files(tmp_path / "own.git", {"HEAD": "ref: refs/heads/main\n", "objects/info/x": ""})
    for reference, what in (
        ("file:///srv/lab.git", "file addresses are not taken, https and ssh are"),
        ("git+file:///srv/lab.git@v1", "git+file addresses are not taken, https and ssh are"),
        (str(tmp_path / "own.git"), f"{tmp_path}/own.git is a bare repository, which is no folder of code"),
    ):
        with fails("init-source") as caught, opened(reference):
            pass
        assert caught.value.what == what and "url.FOLDER/.insteadOf" in caught.value.hint


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(_: Request) -> list[Offer]:
        raise EnvbuildError("index-unreachable", "no index")

    monkeypatch.setattr(index, "resolve", unreachable)


@pytest.fixture
def drafted(
    no_index: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Drafted:
    """`envbuild init` in the test's folder, and its answer."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> dict[str, Any]:
        assert main(["init", *words, "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    return call


def test_a_draft_is_a_stack_with_the_lines_that_say_it(
    folder: Path, drafted: Drafted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = "from torch.utils.cpp_extension import CUDAExtension\nsetup(ext_modules=[CUDAExtension('_ops', [])])\n"
    write_file(folder / "models" / "ops" / "setup.py", setup)
    answer = drafted("--from", "own")
    text = (tmp_path / "own.yaml").read_text()
    assert "# compiled with nvcc, after torch: models/ops (_ops; models/ops/setup.py:2)" in text
    assert answer["path"] == "own.yaml" and answer["understood"]["statements"] > 5
    assert '- "einops==0.8.0"  # requirements.txt:2' in text
    assert '- "opencv-python"  # from imports: own/__init__.py:2' in text
    assert "# left out: torch_npu, another vendor's back end" in text
    assert "# starts: python train.py --epochs 1  (README.md:12)" in text
    stack = load_stack("./own.yaml").stack
    assert [str(each.path) for each in stack.profiles["exact"].working_trees] == ["./own", "./own/kernels"]
    assert main(["init", "--from", "own"]) == 2  # what is there is never replaced
    assert "own.yaml is there already" in capsys.readouterr().err


def test_a_flavour_is_said_by_the_page_or_asked_for_and_each_line_agrees(drafted: Drafted, tmp_path: Path) -> None:
    page = (
        "# own\n## Install\n\nTested with Python 3.10 and CUDA 12.1.\n\n\n```\npip install torch==2.7.1 einops\n```\n"
    )
    (tmp_path / "own.md").write_text(page)
    answer = drafted("--from", "own.md", "--offline")
    said = "own.md:4: Tested with Python 3.10 and CUDA 12.1; torch 2.7.1 has no cu121"
    assert f"flavours: [cu126]}}  # own.md:8; {said}\n" in (tmp_path / "own.yaml").read_text()
    (finding,) = [each for each in answer["findings"] if each["rule"] == "flavour-missing"]
    assert finding["truth"] == "torch 2.7.1 has only cu118, cu126, cu128, and no cu121" and not answer["missing"]
    (tmp_path / "same.md").write_text(page.replace("12.1", "12.6"))
    same = drafted("--from", "same.md", "--offline")
    line = "flavours: [cu126]}  # same.md:8; same.md:4: Tested with Python 3.10 and CUDA 12.6\n"
    assert line in (tmp_path / "same.yaml").read_text()
    assert not [each for each in same["findings"] if each["rule"].startswith("flavour")]
    (tmp_path / "newest.md").write_text(page.replace("==2.7.1", ">=2.1"))  # an older release may have it
    newest = drafted("--from", "newest.md", "--offline")
    assert [one["rule"] for one in newest["findings"] if "flavour" in one["rule"]] == ["flavour-by-default"]
    asked = drafted("cpu.yaml", "--from", "own.md", "--offline", "--flavour", "cpu")
    assert "flavours: [cpu]}  # own.md:8; cpu as it was asked for\n" in (tmp_path / "cpu.yaml").read_text()
    assert not asked["missing"] and not [each for each in asked["findings"] if each["rule"].startswith("flavour")]


def test_several_inputs_are_one_draft_and_their_contradictions_are_quoted(
    folder: Path, drafted: Drafted, tmp_path: Path
) -> None:
    (tmp_path / "environment.yml").write_text("dependencies:\n  - python=3.9\n  - pip:\n    - einops==0.7.0\n")
    (folder / "environment.yml").write_text("dependencies:\n  - python=3.10\n")
    recipe = "requirements:\n  run:\n    - numpy >=1.2\n    - pywin32  # [win]\n    - {{ pin }} six\n"
    (tmp_path / "meta.yaml").write_text(recipe)
    answer = drafted("--from", "environment.yml", "--from", "own", "--from", "meta.yaml")
    assert answer["path"] == "own.yaml" and {"environment/environment.yml", "meta.yaml"} <= set(answer["read"])
    (einops, python) = [each for each in answer["findings"] if each["rule"] == "contradiction"]
    assert {each["text"] for each in python["says"]} == {"- python=3.9", "- python=3.10"}
    assert {each["text"] for each in einops["says"]} >= {"einops==0.8.0", "- einops==0.7.0"}
    assert einops["does"] == "takes einops==0.7.0"
    assert {"numpy>=1.2", "six"} <= set(
        yaml.safe_load((tmp_path / "own.yaml").read_text())["profiles"]["exact"]["packages"]
    )


def test_the_draft_takes_the_first_package_of_the_same_files_and_what_one_imports_and_does_not_declare(
    drafted: Drafted, tmp_path: Path
) -> None:
    names = ("opencv-python-headless==4.10.0.84", "numpy==1.26.4", "opencv-python==4.10.0.84")
    write_file(tmp_path / "own" / "requirements.txt", "\n".join(names))
    drafted("--from", "own")
    text = (tmp_path / "own.yaml").read_text()
    assert yaml.safe_load(text)["profiles"]["exact"]["packages"] == list(names[:2])
    assert '# - "opencv-python==4.10.0.84"' in text and "opencv-python-headless holds the same files" in text
    write_file(tmp_path / "other" / "requirements.txt", "zetascale==1.4.0\n")
    drafted("--from", "other")
    why = "not said: zetascale==1.4.0 imports it and does not declare it"
    assert f'- "numexpr"  # {why}' in (tmp_path / "other.yaml").read_text()


@pytest.mark.parametrize(
    ("lead", "line"),
    [
        ("Then:", '# - {{name: flash-attention, git: "{0}", commit: {1}, install: wheel, path: "hopper"}}'),
        ("Optionally, for speed:", "# cloned, not installed: {0} {1}"),
    ],
)
def test_a_repository_that_nvcc_alone_compiles_is_a_comment_as_a_package_is(
    folder: Path, drafted: Drafted, lead: str, line: str
) -> None:
    url, commit = "https://github.com/Dao-AILab/flash-attention", "a" * 40
    clone = f"git clone {url}\ncd flash-attention/hopper\ngit checkout {commit}\npython setup.py install\n"
    page = "# own\n## Install\n```\npip install -r requirements.txt\n```\n{}\n```\n{}```\n"
    write_file(folder / "README.md", page.format(lead, clone))
    drafted("--from", "own")
    shown = (folder.parent / "own.yaml").read_text()
    assert line.format(url, commit) in shown
    assert [source.name for source in load_stack("./own.yaml").stack.profiles["exact"].sources] == ["own", "kernels"]


@pytest.mark.parametrize(
    ("flavour", "count", "compiled"), [("cu124", 1, True), ("cu124", 0, False), ("cu118", 1, False), ("cpu", 1, False)]
)
def test_nested_cuda_code_is_compiled_where_a_gpu_and_an_nvcc_of_torchs_cuda_are(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flavour: str, count: int, compiled: bool
) -> None:
    monkeypatch.setattr(gpus, "gpu_facts", lambda _: {"gpus": [{}] * count})
    setup = "from torch.utils.cpp_extension import CUDAExtension\nFORCE = os.getenv('KERNELS_FORCE_BUILD')\n"
    write_file(folder / "kernels" / "setup.py", f"{setup}setup(ext_modules=[CUDAExtension('kernels_cuda', [])])\n")
    write_file(folder / "kernels" / "kernel_lib" / "__init__.py", "import kernels_cuda\n")
    commit, _ = make_repository(folder, {})
    reach(monkeypatch, tmp_path, "https://git.example.org/lab/")
    executable(tmp_path / "cuda" / "bin" / "nvcc", "#!/bin/sh\necho 'release 12.6, V12.6.20'\n")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.chdir(tmp_path)
    draft(f"https://git.example.org/lab/own@{commit}", Path("own.yaml"), flavour=flavour, offline=True, here=True)
    profile = yaml.safe_load(Path("own.yaml").read_text())["profiles"]["exact"]
    (kernels,) = [source for source in profile["sources"] if source.get("path") == "kernels"]
    built = {"kind": "wheel", "extensions": ["kernels_cuda"], "environment": {"KERNELS_FORCE_BUILD": "TRUE"}}
    assert kernels.get("build") == (built if compiled else None)
    assert ("kernel_lib" in profile["imports"]) == compiled


@pytest.mark.usefixtures("no_index")
@pytest.mark.parametrize(
    ("wish", "ref", "mark"),
    [
        ("", "v2.1", "; not said: the version, this is the newest of the day"),
        ("==2.0", "v2.0", ""),
        (">9", "", ""),
        ("==2.2rc1", "v2.2rc1", ""),
    ],
)
def test_a_package_that_nvcc_alone_compiles_comes_of_its_repository_where_nvcc_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wish: str, ref: str, mark: str
) -> None:
    monkeypatch.setattr(gpus, "gpu_facts", lambda _: {"gpus": [{}]})
    executable(tmp_path / "cuda" / "bin" / "nvcc", "#!/bin/sh\necho 'release 12.6, V12.6.20'\n")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    write_file(folder / "requirements.txt", f"torch==2.6.0\neinops==0.8.0\nflash-attn{wish}\n")
    write_file(folder / "own" / "ops.py", "import flash_attn\n")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2026-01-03T00:00:00Z")
    make_repository(folder, {})
    flash = tmp_path / "flash-attention"
    commits = {}
    for tag, day in (("v2.0", "2026-01-01"), ("v2.1", "2026-01-02"), ("v2.2rc1", "2026-01-02"), ("v3.0", "2026-02-01")):
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"{day}T00:00:00Z")
        commits[tag], _ = make_repository(flash, {"setup.py": tag})
        git(flash, "tag", "-a", "-m", tag, tag)
    reach(monkeypatch, tmp_path, "https://github.com/Dao-AILab/")
    monkeypatch.setattr(make, "confirmed", lambda closed, _: closed)
    monkeypatch.chdir(tmp_path)
    result, _ = draft("own", Path("own.yaml"), here=True)
    profile = yaml.safe_load(Path("own.yaml").read_text())["profiles"]["exact"]
    built = [source for source in profile["sources"] if source["name"] == "flash-attn"]
    assert [(source["ref"], source["commit"]) for source in built] == ([(ref, commits[ref])] if ref else [])
    assert all(source["submodules"] and source["build"]["extensions"] == ["flash_attn_2_cuda"] for source in built)
    assert not any(text.startswith("flash-attn") for text in profile["packages"])
    assert ("own" in profile["imports"]) == bool(ref)
    lines = [line for line in Path("own.yaml").read_text().splitlines() if "name: flash-attn," in line]
    assert [line.endswith(f"; compiled with nvcc{mark}") for line in lines] == [bool(ref)]
    (finding,) = [finding for finding in result.findings if finding.rule == "needs-nvcc"]
    assert "this machine's nvcc" in finding.does


def test_the_page_of_a_draft_is_annotated_by_explain(drafted: Drafted, tmp_path: Path) -> None:
    page = "# P\n\n```bash\npip install a\npip install \\\n    b\nsource ~/.bashrc\n```\n"
    (tmp_path / "README.md").write_text(page)
    drafted("p.yaml", "--from", "README.md")
    loose = next(each for each in load_stack("./p.yaml").stack.findings if each.id == "unpinned")
    assert (loose.anchor, loose.also) == ("pip install a", ("pip install \\",))
    assert main(["explain", "./p.yaml", "--document", "README.md", "--output", "p.html"]) == 0
    assert "start-up-file" in (tmp_path / "p.html").read_text()


def test_hostile_texts_stay_texts(drafted: Drafted, tmp_path: Path) -> None:
    page = (
        "# x\n## Install\n```\npip install 'a==1\"] }\n  evil: &x' b==1 git+https://user:hunter2@h.example.org/a/b\n"
        "export TOKEN=hunter2\nexport LD_PRELOAD=/evil.so\nexport TORCH_X='a\" # b'\n"
        "pip install $(rm -rf /) ${IFS}\n```\n"
    )
    (tmp_path / "README.md").write_text(page)
    drafted("x.yaml", "--from", "README.md")
    text = (tmp_path / "x.yaml").read_text()
    assert "hunter2" not in text
    profile = yaml.safe_load(text)["profiles"]["exact"]
    assert profile["packages"] == ["b==1"]
    assert profile["environment"] == {"TORCH_X": 'a" # b'}


@pytest.mark.usefixtures("no_index")
def test_a_job_script_has_no_stack_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.slurm").write_text("#!/bin/bash\n#SBATCH -p x\nsource own/bin/activate\nsrun python train.py\n")
    assert main(["init", str(tmp_path / "x.yaml"), "--from", str(tmp_path / "train.slurm")]) == 2
    assert "init-nothing" in capsys.readouterr().err
    assert not (tmp_path / "x.yaml").exists()


def test_a_repository_by_its_address_and_branch(
    folder: Path, drafted: Drafted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach(monkeypatch, tmp_path, "https://git.example.org/lab/")
    commit, _ = make_repository(folder, {})
    drafted("--from", "https://git.example.org/lab/own@main")
    (own, *_) = load_stack("./own.yaml").stack.profiles["exact"].pinned_sources
    assert (own.git, own.commit, own.install) == ("https://git.example.org/lab/own", commit, "path")
    git(folder, "commit", "-q", "--allow-empty", "-m", "two")
    newer = git(folder, "rev-parse", "HEAD").strip()
    with pytest.raises(EnvbuildError) as raised:
        draft("https://git.example.org/lab/own", None)
    assert (raised.value.code, raised.value.exit_code) == ("output-exists", 2)
    assert raised.value.what.startswith(f"own.yaml is the draft of an older commit, {commit[:12]} of ")
    assert f"is at {newer[:12]} now" in raised.value.why
    assert raised.value.hint.startswith(
        "`envbuild up ./own.yaml` builds the older draft; for a draft of the new commit"
    )


def test_what_installs_a_submodule_installs_its_repository_at_its_commit(
    folder: Path, drafted: Drafted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach(monkeypatch, tmp_path, "https://git.example.org/lab/")
    write_files(tmp_path / "kit", {"py/setup.py": "import setuptools\n", "py/kit/__init__.py": "import nobody\n"})
    (folder / "README.md").write_text(
        "# Own\n\n```bash\npip install -r requirements.txt\npip install -e ext/kit/py\n```\n"
    )
    write_file(folder / "train.py", "import kit\n")
    for place in (tmp_path / "kit", folder):
        make_repository(place, {})
    git(folder, "submodule", "add", "-q", "../kit", "ext/kit")
    git(folder, "config", "-f", ".gitmodules", "submodule.ext/kit.url", "../kit")
    git(folder, "commit", "-qam", "two")
    drafted("--from", "https://git.example.org/lab/own")
    own, *_, kit = load_stack("./own.yaml").stack.profiles["exact"].pinned_sources
    assert (own.name, own.submodules, own.git) == ("own", True, "https://git.example.org/lab/own")
    assert (kit.name, kit.git, kit.install) == ("kit", "https://git.example.org/lab/kit", "editable")
    assert (kit.commit, kit.path) == (git(tmp_path / "kit", "rev-parse", "HEAD").strip(), "py")
    git(tmp_path, "clone", "-q", "own", "copy")
    says = "it is a submodule that is not checked out: `git submodule update --init` does that"
    assert tree.of_folder(tmp_path / "copy").left_out == {"ext/kit": says}
    assert not tree.of_folder(folder).left_out


def test_the_index_is_asked_whether_it_has_the_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offers(request: Request) -> list[Offer]:
        if "utils-of-nobody" in request.requirements:
            raise EnvbuildError("package-not-found", "the index has no version of utils-of-nobody")
        return []

    monkeypatch.setattr(index, "resolve", offers)
    result = assemble(tree.of_folder(folder), load_known(), Ask(index.confirmed))
    (lost,) = [each for each in result.closed if each.how == "open"]
    assert (lost.imported.module, lost.why) == ("utils_of_nobody", "utils-of-nobody: the index has none")
    assert "utils-of-nobody" not in {each.name for each in result.draft.packages}


@pytest.mark.parametrize(
    ("code", "compiled", "published", "taken"),
    [
        ("from own._core import run\n", "own/_core.cpython-311.so", "2026-01-04", "own-nightly==1.2"),
        ("from own._core import run\n", "own/_core.cpython-311.so", "2026-01-05", ""),
        ("from own._core import run  # later\n", "own/_core.cpython-311.so", "2026-01-04", ""),
        ("from own._core import run\n", "own/_other.cpython-311.so", "2026-01-04", ""),
    ],
)
def test_own_code_that_has_to_be_compiled_comes_as_the_wheel_that_was_built_of_the_commit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, compiled: str, published: str, taken: str
) -> None:
    write_file(folder / "own" / "__init__.py", "from own._core import run\n")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2026-01-03T00:00:00Z")
    make_repository(folder, {})
    files = {path: (folder / path).read_text() for path in ("own/ops.py", "own/late.py")}
    wheel = write_wheel(folder.parent, "own-nightly", "1.2", {**files, "own/__init__.py": code, compiled: ""})

    def offers(request: Request) -> list[Offer]:
        if request.requirements != ("own-nightly",) or str(request.as_of) < published:
            raise EnvbuildError("package-not-found", "the index has none")
        return [Offer("own-nightly", "1.2", (OfferedFile(wheel.name, wheel.as_uri(), ""),), None)]

    monkeypatch.setattr(index, "resolve", offers)
    result = assemble(tree.of_folder(folder), load_known(), Ask(own_build=index.own_build))
    assert [package.index_text for package in result.draft.packages if package.name == "own-nightly"] == [taken] * bool(
        taken
    )
    assert str(result.draft.as_of) == (published if taken else "2026-01-03")
    assert result.blocked == ({} if taken else {"own": "own._core"})


def test_ten_thousand_files_take_seconds(tmp_path: Path) -> None:
    text = "import os\nimport torch\nfrom numpy import array\n" + "x = 1\n" * 50
    write_files(tmp_path, {f"p{number // 100}/m{number}.py": text for number in range(10_000)})
    begin = time.process_time()
    assemble(tree.of_folder(tmp_path), load_known())
    assert time.process_time() - begin < 30


@pytest.mark.parametrize(
    ("importer", "module", "folder"),
    [
        ("apart/run.py", "scripts/my_models.py", "scripts"),
        ("pkg/deep/run.py", "pkg/data/__init__.py", "pkg"),
        ("pkg/part/run.py", "pkg/part/__init__.py", "pkg"),
        # A package of another project, a file that imports what has its own name, and a folder of that name.
        ("apart/run.py", "pkg/models/__init__.py", None),
        ("pkg/torchx.py", "pkg/torchx.py", None),
        ("examples/monarch/run.py", "examples/monarch/__init__.py", None),
    ],
)
def test_a_folder_goes_on_the_path_where_others_import_its_modules_by_name(
    tmp_path: Path, importer: str, module: str, folder: str | None
) -> None:
    name = module.removesuffix("/__init__.py").removesuffix(".py").rpartition("/")[2]
    files = {"pkg/__init__.py": "", "pkg/deep/__init__.py": "", module: "", importer: f"import {name}.part\n"}
    write_files(tmp_path / "own", files)
    folders = [project.folder for project in assembled(tmp_path / "own").projects if project.folder]
    assert folders == ([folder] if folder else [])


def test_a_source_without_a_ref_gets_the_commit_of_the_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reach(monkeypatch, tmp_path, "https://git.example.org/x/")
    commits = []
    git(tmp_path / "y", "init", "-q", "-b", "main")
    for day in ("2022-01-01", "2022-05-01", "2023-01-01"):
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"{day}T12:00:00Z")
        git(tmp_path / "y", "commit", "-q", "--allow-empty", "-m", day)
        commits.append(git(tmp_path / "y", "rev-parse", "HEAD"))
    git(tmp_path / "y", "tag", "v1", commits[0])
    lines = [f"pip install git+https://git.example.org/x/{name}" for name in ("y", "y2@v1", "gone")]
    (tmp_path / "y2").symlink_to("y")
    origin = Origin("own", day=date(2022, 6, 1))
    drafted = index.pinned(make_draft(read("\n".join(lines), "install.sh"), origin, load_known()))
    assert [each.commit for each in drafted.sources] == [commits[1], commits[0], ""]


def test_what_is_on_no_index_comes_from_its_repository_whoever_lists_it(folder: Path) -> None:
    (folder / "own" / "more.py").write_text("import panopticapi\n")
    (folder / "kernels" / "requirements.txt").write_text("panopticapi\n")
    result = assembled(folder)
    (closed,) = [each for each in result.closed if each.imported.module == "panopticapi"]
    assert (closed.how, closed.source) == ("source", "https://github.com/cocodataset/panopticapi")
    assert [each.name for each in result.draft.sources] == ["panopticapi"]


@pytest.mark.parametrize(
    ("code", "needs"),
    [
        ("import flash_attn", "flash_attn"),
        ("from own import layers", "flash_attn"),
        ("from own._C import forward", "own._C"),
        ("from own import helper, VALUE", ""),
        ("from multiprocessing.connection import Pipe", ""),  # the standard library's
        ("def run():\n    import flash_attn", ""),
        ("try:\n    import flash_attn\nexcept ImportError: ...", ""),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import flash_attn", ""),
    ],
)
def test_an_own_module_is_not_tested_where_its_import_needs_what_is_left_out(code: str, needs: str) -> None:
    files = {
        "src/own/__init__.py": f"{code}\nVALUE = 1\n",
        "src/own/layers.py": "import flash_attn.ops\n",
        "src/own/helper.py": "import os\n",
        "src/own/multiprocessing.py": "",
    }
    made = tree.Tree(Origin("own"), tuple(files), lambda path: files[path].encode())
    assert closure.blocked(made, ("src", "src/own"), "own", {"flash_attn"}) == needs


def test_packages_of_the_system_are_named_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("PyAudio==0.2.14\nnumpy\n")
    result = assemble(tree.of_folder(tmp_path), load_known())
    assert result.system == {"portaudio19-dev": "pyaudio"}
    (finding,) = [finding for finding in result.findings if finding.rule == "no-wheel"]
    assert "packages of the system: portaudio19-dev" in finding.does
    drafted = write.text(result, "own", tmp_path, tmp_path)
    assert '{name: "portaudio19-dev", why: "pyaudio is compiled against it"}' in drafted


def test_what_an_extra_brings_and_tests_import_is_taken(folder: Path) -> None:
    (folder / "tests" / "test_own.py").write_text("import pytest\nimport parameterized\nimport own\n")
    write_file(folder / "docs" / "conf.py", "import sphinx\n")
    extras = '[project.optional-dependencies]\ndev = ["pytest==8.3.4", "sphinx", "black"]\n'
    (folder / "pyproject.toml").write_text(f'[project]\nname = "own"\nversion = "1"\n{extras}')
    result = assembled(folder)
    named = {package.name for package in result.draft.packages}
    assert "pytest" in named and named.isdisjoint(("parameterized", "sphinx", "black"))
    drafted = write.text(result, "own", folder, folder)
    assert '- "pytest==8.3.4"  # from imports: tests/test_own.py:1, as pyproject.toml:5 has it' in drafted


def test_of_a_tree_it_is_told_what_blocks_its_own_module_and_what_brings_another(tmp_path: Path) -> None:
    setup = "from torch.utils.cpp_extension import CUDAExtension\nsetup(ext_modules=[CUDAExtension('_ops', [])])\n"
    files = {"setup.py": "setup()", "own/__init__.py": "import kernels\n", "fast/setup.py": setup}
    nested = write_files(tmp_path / "nested", {**files, "fast/kernels/__init__.py": "import _ops\n"})
    assert assembled(nested).blocked["own"] == "_ops", "a nested project of CUDA code is what it needs"

    image = "FROM ubuntu:22.04\nRUN pip install git+https://git.example.org/x/fvlib\n"
    files = {"setup.py": "setup()", "own/__init__.py": "import fvlib\n", "docker/Dockerfile": image}
    result = assembled(write_files(tmp_path / "offered", files))
    assert [(closed.imported.module, closed.how != "declared") for closed in result.closed] == [("fvlib", True)]
