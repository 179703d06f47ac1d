"""One reader a format: what each says, where, and that nothing of it is run; the words that they are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.init_pages import score
from envbuild.init.draft import Origin, make_draft
from envbuild.init.known import load_known
from envbuild.init.read import read
from envbuild.init.readers.requirement import conda_spec, git_address, wheel
from envbuild.init.readers.words import commands, plain, without_prompts
from envbuild.init.statement import Statement

PATHS = (
    "README.md", "README.rst", "requirements.txt", "environment.yml", "pyproject.toml", "setup.py", "setup.cfg",
    "Pipfile",
    "pixi.lock", "Pipfile.lock", "conda-lock.yml",
    "pixi.toml", "uv.lock", "Dockerfile", "image.def", "train.slurm", "install.sh", ".github/workflows/ci.yml", "other",
)  # fmt: skip


def said(text: str, path: str, *kinds: str) -> list[str]:
    return [each.value for each in read(text, path) if each.kind in kinds and not each.optional]


def one(text: str, path: str, kind: str) -> Statement:
    (found,) = [each for each in read(text, path) if each.kind == kind]
    return found


@given(st.sampled_from(PATHS), st.text(max_size=300))
@settings(max_examples=300)
def test_no_text_stops_a_reader_and_places_are_in_it(path: str, text: str) -> None:
    lines = max(1, len(text.splitlines()))
    for statement in read(text, path):
        assert 1 <= statement.place.line <= lines + 1
        assert statement.place.column >= 1
        assert "\n" not in statement.text


PAGE = """# Thing

Tested with PyTorch 1.12 and CUDA 11.3.

## Installation

Python >= 3.8 is needed.

```bash
conda create -n thing python=3.8 -y
pip install torch==1.12.1+cu113 -f https://download.pytorch.org/whl/torch_stable.html
# pip install comment
git clone git@git.example.org:lab/helpers.git && cd helpers
git checkout v1.2
pip install -e .[dev]
```

Large sets: `pip install pyarrow` if you need them.

## Troubleshooting

```bash
pip install numpy==1.0
```

```python
pip = install("nothing")
```
"""


def test_a_page_of_markdown() -> None:
    statements = read(PAGE, "README.md")
    assert said(PAGE, "README.md", "package") == ["torch==1.12.1+cu113", "pyarrow"]
    assert [each.value for each in statements if each.optional and each.kind == "package"] == ["numpy==1.0"]
    torch = next(each for each in statements if each.value.startswith("torch=="))
    assert (torch.place.line, torch.get("find_links")) == (11, "https://download.pytorch.org/whl/torch_stable.html")
    assert next(each for each in statements if each.value == "pyarrow").get("offered") == "yes"
    source = one(PAGE, "README.md", "source")
    assert (source.value, source.get("ssh")) == ("https://git.example.org/lab/helpers", "yes")
    assert one(PAGE, "README.md", "checkout").get("source") == source.value
    local = one(PAGE, "README.md", "local")
    assert (local.get("source"), local.get("editable"), local.get("extras")) == (source.value, "yes", "dev")
    assert said(PAGE, "README.md", "torch", "cuda") == ["==1.12", "11.3"]


def test_a_page_of_restructured_text_includes_no_file() -> None:
    text = (
        "Thing\n=====\n\nInstall\n-------\n\n.. include:: /etc/passwd\n\n"
        ".. code-block:: bash\n\n   pip install a==1\n\n"
        "Then::\n\n    $ pip install b\n    Collecting c\n\n.. raw:: html\n   :file: /etc/passwd\n"
    )
    assert said(text, "INSTALL.rst", "package") == ["a==1", "b"]
    assert "root:" not in str(read(text, "INSTALL.rst"))


def test_requirements_with_options_hashes_and_addresses() -> None:
    text = (
        "--extra-index-url https://user:secret@pypi.example.org/simple\n-r base.txt\na==1 \\\n    --hash=sha256:00\n"
        "b>=2 ; python_version < '3.9'  # why\n-e git+https://git.example.org/x/y.git@main#egg=y&subdirectory=py\n"
        "https://w.example.org/flash_attn-2.7.4-cp310-cp310-linux_x86_64.whl\n"
    )
    assert said(text, "requirements.txt", "package") == ["a==1", 'b>=2; python_version < "3.9"', "flash-attn==2.7.4"]
    source = one(text, "requirements.txt", "source")
    assert (source.get("ref"), source.get("name"), source.get("subdirectory")) == ("main", "y", "py")
    assert said(text, "requirements.txt", "file", "python") == ["base.txt", "==3.10.*"]
    assert "secret" not in str(read(text, "requirements.txt"))
    assert said("# platform: linux-64\nnumpy=1.21.5=py38h_0\n", "requirements.txt", "conda") == ["numpy=1.21.5"]


def test_environment_yml() -> None:
    text = "channels: [pytorch, someone]\ndependencies:\n  - python=3.9\n  - pytorch=1.9.1\n  - pip:\n    - a==1\n"
    statements = read(text, "environment.yml")
    assert [(each.kind, each.value, each.place.line) for each in statements if each.kind in ("conda", "package")] == [
        ("conda", "python=3.9", 3), ("conda", "pytorch=1.9.1", 4), ("package", "a==1", 6),
    ]  # fmt: skip
    assert said(text, "environment.yml", "channel", "python") == ["pytorch", "someone", "==3.9.*"]
    commands_of = {"env create": ["environment.yml"], "env create -f x.yml": ["x.yml"], "create -n own": []}
    assert {way: said(f"conda {way}", "install.sh", "file") for way in commands_of} == commands_of


def test_pyproject_of_all_tools() -> None:
    text = (
        '[project]\nname = "own"\nrequires-python = ">=3.9"\ndependencies = ["a", "a==1"]\n'
        '[project.optional-dependencies]\ndev = ["b"]\n[dependency-groups]\ntest = ["c", {include-group = "x"}]\n'
        '[tool.poetry.dependencies]\npython = "^3.9"\nd = "^0.2.3"\n'
        'e = {git = "https://git.example.org/e", rev = "abc"}\n'
        '[[tool.uv.index]]\nurl = "https://u:p@pypi.example.org"\n'
    )
    assert said(text, "pyproject.toml", "package") == ["a", "a==1", "d<0.3,>=0.2.3"]
    assert {each.value: each.get("extra") for each in read(text, "pyproject.toml") if each.optional} == {
        "b": "extra:dev", "c": "group:test",
    }  # fmt: skip
    exact = next(each for each in read(text, "pyproject.toml") if each.value == "a==1")
    assert (exact.place.line, exact.place.column) == (4, 22)
    assert "u:p" not in str(read(text, "pyproject.toml"))
    versions = {"^1.2": "<2,>=1.2", "~1.2": "<1.3,>=1.2", "*": "", "1.2": "==1.2", ">=1, <2": "<2,>=1"}
    for poetry, pep440 in versions.items():
        text = f'[tool.poetry.dependencies]\nd = "{poetry}"\n'
        assert said(text, "pyproject.toml", "package") == [f"d{pep440}"]


def test_setup_py_is_read_and_never_run(tmp_path: object) -> None:
    text = (
        "import subprocess, sys, torch\nfrom torch.utils.cpp_extension import CUDAExtension, CUDA_HOME\n"
        "raise SystemExit('run')\nbase = ['a', 'b>=2']\n"
        "subprocess.check_call([sys.executable, '-m', 'pip', 'install', 'ninja'])\n"
        "def lines(name='requirements.txt'):\n    return open(name).read().split()\n"
        "setup(name='own', install_requires=base + ['c'], extras_require={'gpu': ['d']}, python_requires='>=3.8',\n"
        "      ext_modules=[CUDAExtension('own._C', [])])\n"
    )
    assert said(text, "setup.py", "package") == ["a", "b>=2", "c", "ninja"]
    assert said(text, "setup.py", "extension", "python") == [">=3.8", "own._C"]
    assert {"compiles-cuda", "build-imports-torch"} <= set(said(text, "setup.py", "trait"))
    other = "def lines(name='requirements.txt'):\n    pass\nsetup(install_requires=lines())\n"
    assert said(other, "setup.py", "file") == ["requirements.txt"]


def test_dependencies_that_setup_py_looks_up_and_extras_that_it_sets_one_at_a_time() -> None:
    text = (
        "_deps = ['torch==2.6.0', 'trl>=0.18', ['nested', ['deeper']]]\ndeps = {b: a for a, b in find(_deps)}\n"
        "def deps_list(*names):\n    return [deps[name] for name in names]\nextras = {}\n"
        "extras['torch'] = deps_list('torch')\n"
        "setup(name='own', install_requires=[deps['trl'], deps['absent']], extras_require=extras)\n"
    )
    assert said(text, "setup.py", "package") == ["trl>=0.18"]
    (torch,) = [each for each in read(text, "setup.py") if each.get("extra") == "extra:torch"]
    assert (torch.value, torch.optional, torch.place.line) == ("torch==2.6.0", True, 6)
    draft = make_draft(read(text, "setup.py"), Origin("own"), load_known())
    assert draft.torch is not None and (draft.torch.value, draft.torch.default) == ("2.6.0", False)


DOCKERFILE = """ARG BASE=nvcr.io/nvidia/pytorch:23.10-py3
FROM ${BASE} AS deps
ENV FORCE_CUDA="1" MAX_JOBS=4
RUN apt-get update && apt-get install -y \\
    # a comment inside
    ninja-build \\

    git
RUN --mount=type=cache,target=/root/.cache pip install a==1 && \\
    pip uninstall -y b
RUN echo 'x ALL=(ALL) NOPASSWD:ALL' >> /etc/sudoers
FROM scratch AS src
FROM deps
ONBUILD RUN pip install never
RUN bash ./setup.sh || exit 0
"""


def test_a_dockerfile() -> None:
    assert said(DOCKERFILE, "Dockerfile", "image") == ["nvcr.io/nvidia/pytorch:23.10-py3"]
    assert said(DOCKERFILE, "Dockerfile", "system") == ["ninja-build", "git"]
    assert said(DOCKERFILE, "Dockerfile", "package", "remove") == ["a==1", "b"]
    assert said(DOCKERFILE, "Dockerfile", "environment") == ["FORCE_CUDA=1", "MAX_JOBS=4"]
    assert said(DOCKERFILE, "Dockerfile", "trait") == ["security", "silent-skip"]
    assert one(DOCKERFILE, "Dockerfile", "package").place.line == 9


def test_a_job_script_says_its_scheduler_and_no_package() -> None:
    text = (
        "#!/bin/bash\n#SBATCH --partition=big  # ours\nmodule load cuda/12.4\nsource ~/.bashrc\n"
        "source own/bin/activate\n"
        "MASTER_PORT=6000\nexport NCCL_DEBUG=INFO\nsrun python train.py\n"
    )
    assert said(text, "train.slurm", "scheduler", "module", "activate", "startup", "cuda") == [
        "--partition=big", "cuda/12.4", "12.4", "~/.bashrc", "own",
    ]  # fmt: skip
    assert said(text, "train.slurm", "package") == []
    assert said(text, "train.slurm", "trait") == ["site-specific"] * 3  # partition, module, port


@pytest.mark.parametrize(
    ("text", "url", "ref"),
    [
        ("git+https://u:p@git.example.org/a/b.git@v1#egg=b", "https://git.example.org/a/b", "v1"),
        ("b @ git+ssh://git@git.example.org/a/b", "https://git.example.org/a/b", ""),
        ("git@git.example.org:a/b.git", "https://git.example.org/a/b", ""),
        ("git://git.example.org/a/b", "https://git.example.org/a/b", ""),
        # What is none, for git may be asked about no other (D69).
        *((text, None, None) for text in (
            "ext::sh -c evil", "--upload-pack=evil", "file:///etc", "/local", "https://", "a b", "https://[/a",
            "ssh://-oProxyCommand=x/a", "ssh://-lroot@h.example.org/a", "https://h.example.org/a@--upload-pack=x", "git+https://h.example.org:x/a",
        )),
    ],
)  # fmt: skip
def test_addresses_of_git(text: str, url: str | None, ref: str | None) -> None:
    address = git_address(text)
    assert (address and address.url, address and address.ref) == (url, ref)


def test_names_of_wheels_and_specs_of_conda() -> None:
    built = wheel("flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp310-cp310-linux_x86_64.whl")
    assert built is not None and (built.name, built.version, built.python) == ("flash-attn", "2.7.4.post1", "3.10")
    spec = conda_spec("conda-forge::numpy=1.21.*")
    assert spec is not None and spec.requirement == "numpy==1.21" and spec.channel == "conda-forge"


def test_what_is_nested_too_deep_is_not_understood_and_nothing_breaks() -> None:
    for path, text in (
        ("setup.py", "x = " + "(" * 5000),
        ("README.md", ">" * 5000 + " a"),
        ("pyproject.toml", "a=" + "[" * 9000),
    ):
        assert all(each.kind == "unknown" for each in read(text, path))


def test_prose_outside_of_setup_sections_says_the_least_python() -> None:
    page = "# tool\n\nA small tool for training (Python 3.10+).\n\n## History\n\nOnce it was for Python 2.7.\n"
    assert [(s.kind, s.value) for s in read(page, "README.md")] == [("python", ">=3.10")]


PAGES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "pages.yaml").read_text())["pages"]


@pytest.mark.parametrize("page", PAGES, ids=[page["id"] for page in PAGES])
def test_a_page_gives_what_a_reader_derives(page: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    row = score(page, Path(), verbose=True)
    missing = capsys.readouterr().out
    assert row["facts"] == row["of facts"], missing
    assert row["findings"] == row["of findings"], missing
    assert (row["false"], row["others"]) == (0, 0), missing


SHELL = st.text(st.sampled_from("ab=1 \t\n\\'\"`$(){}#;&|<>-/.é"), max_size=120)


def words(text: str) -> list[tuple[str, ...]]:
    return [tuple(plain(word, {}) for word in command.words) for command in commands(text)]


def test_commands_are_what_a_shell_makes_of_lines() -> None:
    text = "pip install 'a>=1' \\\n  \"b c\" d#e # f\n# pip install g\ncd x && make; true"
    assert words(text) == [("pip", "install", "a>=1", "b c", "d#e"), ("cd", "x"), ("make",), ("true",)]
    (command,) = commands("pip install numpy>=1.2")
    assert command.words == ("pip", "install", "numpy")
    assert [(each.operator, each.target) for each in command.redirects] == [(">", "=1.2")]
    assert words("cat <<'EOF' > x\npip install evil\nEOF\npip install good") == [("cat",), ("pip", "install", "good")]
    first, second, third = commands("cd a & wget b || exit 0")
    assert (first.after, second.before, second.after, third.before) == ("&", "&", "||", "||")
    assert plain('"${A}/$B-${C:-d}"', {"A": "x"}) == "x/$B-d" and plain("'$A'", {"A": "x"}) == "$A"
    session = words(without_prompts("$ pip install a \\\n    b\nCollecting a\n$ ls\n"))
    assert session == [("pip", "install", "a", "b"), ("ls",)]


@given(SHELL)
@settings(max_examples=300)
def test_every_command_lies_where_it_says(text: str) -> None:
    lines = text.split("\n")
    for command in commands(text):
        assert lines[command.line - 1][command.column - 1 :].startswith(command.words[0].split("\n")[0])
