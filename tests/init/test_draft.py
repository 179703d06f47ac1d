"""Statements become a draft and findings: by rules, the same answer twice, and nothing is invented."""

from __future__ import annotations

from datetime import date

import pytest

from envbuild.cli.init_cmd import refuse_unrecorded_torch
from envbuild.init import write
from envbuild.init.assemble import with_python
from envbuild.init.draft import Draft, Origin, default_python, make_draft
from envbuild.init.findings import find
from envbuild.init.known import load_known
from envbuild.init.read import read
from tests.resolve.builders import make_lock, package
from tests.support.fails import fails

OWN = Origin("own", "https://git.example.org/lab/own", "0" * 40, date(2022, 6, 1))


def draft_of(text: str, path: str = "README.md", origin: Origin = OWN) -> Draft:
    return make_draft(read(text, path), origin, load_known())


def shell(*lines: str) -> Draft:
    return draft_of("\n".join(lines), "install.sh")


def rules(draft: Draft) -> dict[str, tuple[str, ...]]:
    return {each.rule: each.about for each in find(draft, load_known())}


def test_torch_of_an_index_and_of_conda() -> None:
    pip = shell("pip install torch==1.12.1+cu113 --extra-index-url https://download.pytorch.org/whl/cu113")
    assert pip.torch is not None and pip.flavour is not None
    assert (pip.torch.value, pip.flavour.value, pip.python.value) == ("1.12.1", "cu113", "3.8")
    conda = shell("conda create -n x python=3.8", "conda install pytorch=1.9.1 cudatoolkit=11.1 -c pytorch")
    assert conda.torch is not None and conda.flavour is not None
    assert (conda.torch.value, conda.flavour.value, conda.python.value) == ("1.9.1", "cu111", "3.8")
    assert "conda-torch" in rules(conda)


def test_a_torch_that_floats_is_the_newest_of_the_day() -> None:
    draft = shell("pip install 'torch>=1.8'")
    assert draft.torch is not None and draft.torch.default
    assert (draft.torch.value, draft.torch_specifier) == ("1.11.0", ">=1.8")
    assert rules(draft)["torch-floating"] == ("torch",)
    again = shell("pip install 'torch>=1.8'")
    assert find(draft, load_known()) == find(again, load_known())


@pytest.mark.parametrize(
    ("cuda", "flavour", "rule"),
    [("10.1", "cu102", "by-default"), ("11.3", "cu102", "by-default"), ("10.2", "cu102", "")],
)
def test_a_cuda_of_a_sentence_that_no_command_takes_is_said(cuda: str, flavour: str, rule: str) -> None:
    page = f"# own\n\n## Install\n\nTested with Python 3.8 and CUDA {cuda}.\n\n```\npip install 'torch>=1.8'\n```\n"
    draft = draft_of(page)
    assert draft.flavour is not None and (draft.flavour.value, draft.flavour.default) == (flavour, False)
    assert [statement.place.line for statement in draft.flavour.statements] == [5]
    flavours = {name for name in rules(draft) if name.startswith("flavour-")}
    assert flavours == ({f"flavour-{rule}"} if rule else set())


def test_torch_outside_the_catalog_is_never_said_not_to_exist() -> None:
    assert "torch-below-catalog" in rules(shell("pip install torch==1.6.0"))
    assert "torch-above-catalog" in rules(shell("pip install torch==9.1.0"))
    assert "version-missing" not in rules(shell("pip install torch==1.6.0"))
    assert rules(shell("pip install torch==1.12.1+cu999"))["flavour-missing"] == ("torch 1.12.1+cu999",)


@pytest.mark.parametrize(("day", "python"), [("2019-01-01", "3.6"), ("2022-06-01", "3.8"), ("2025-12-01", "3.12")])
def test_a_python_that_nobody_says_is_the_usual_one_of_the_time(day: str, python: str) -> None:
    assert default_python(date.fromisoformat(day)) == python
    draft = draft_of("a==1\n", "requirements.txt", Origin("x", day=date.fromisoformat(day)))
    assert (draft.python.value, draft.python.default) == (python, True)
    assert "python-open" in rules(draft)


@pytest.mark.parametrize(("there", "python"), [({"3.9", "3.13"}, "3.9"), ({"3.8", "3.9"}, "3.8"), ({"2.7"}, "3.8")])
def test_d114_where_no_python_is_said_one_that_is_there_comes_first(there: set[str], python: str) -> None:
    draft = draft_of("a==1\n", "requirements.txt", Origin("x", day=date.fromisoformat("2022-06-01")))
    assert with_python(draft, there).python.value == python


def test_the_later_of_two_commands_wins_and_one_list_says_a_package_once() -> None:
    draft = shell("pip install a==1", "pip install a==2", "pip install a")
    wanted = draft.package("a")
    assert wanted is not None and str(wanted.requirement) == "a==2"
    assert "duplicate" not in rules(draft)
    twice = draft_of('[project]\nname = "o"\nversion = "1"\ndependencies = ["a", "a==1"]\n', "pyproject.toml")
    assert rules(twice)["duplicate"] == ("a",)
    apart = make_draft([*read("a\n", "requirements.txt"), *read("a==1\n", "requirements/more.txt")], OWN, load_known())
    assert "duplicate" not in rules(apart)


def test_sources_with_their_refs_flags_and_places() -> None:
    commit = "a" * 40
    draft = shell(
        "git clone https://github.com/NVIDIA/apex && cd apex",
        f"git checkout {commit}",
        'pip install --global-option="--cuda_ext" --global-option="--cpp_ext" ./',
        "cd ..",
        "pip install git+https://git.example.org/x/loose.git",
        "git clone -b main https://git.example.org/x/moving",
    )
    apex, loose, moving = draft.sources
    assert (apex.ref, apex.flags, apex.cuda, apex.pinned) == (commit, ("--cuda_ext", "--cpp_ext"), "build", True)
    assert (loose.install, loose.ref, moving.install) == ("wheel", "", "")
    found = rules(draft)
    assert (found["git-unpinned"], found["git-branch"]) == (("loose",), ("moving",))
    assert found["pip-global-option"] == ("apex",) and "apex" in found["needs-nvcc"]
    lines = ("git clone https://git.example.org/lab/a", "pip install git+https://git.example.org/lab/b")
    unpinned = [each for each in find(shell(*lines), load_known()) if each.rule == "git-unpinned"]
    assert [(each.about, each.does.partition(" ")[0]) for each in unpinned] == [(("a",), "clones"), (("b",), "pins")]
    assert unpinned[0].does == "clones and pins nothing: only a comment of the draft names it"


SLIPS = {
    "shell-slip": "pip install numpy>=1.2",
    "sudo": "sudo apt-get install git\npip install a",
    "curl-to-shell": "curl https://x.example.org/i.sh | sh",
    "start-up-file": "echo export A=1 >> ~/.bashrc",
    "edited-by-sed": "sed -i s/a/b/ lib/x.py",
    "hard-coded-path": "sed -i s/a/b/ /opt/conda/lib/python3.8/site-packages/x.py",
    "interactive": "huggingface-cli login",
    "latest-download": "wget https://x.example.org/latest/x.tar",
    "file-elsewhere": "pip install -r requirements.txt",
    "legacy-build": "git clone https://git.example.org/x/y && cd y && python setup.py develop",
    "editable-install": "git clone https://git.example.org/x/y && pip install -e ./y",
    "conda-personal-channel": "conda install -c somebody gcc-6",
    "licence-accept": "conda install -c defaults numpy",
    "conda-pip": "conda install numpy -c conda-forge\npip install scipy",
    "package-homonym": "pip install apex",
    "no-wheel": "pip install flash-attn",
    "two-owners": "pip install opencv-python opencv-python-headless",
    "arch-list": 'export TORCH_CUDA_ARCH_LIST="7.0;7.5"',
    "conflict": "pip install torch==2.6.0 nvidia-cudnn-cu12==9.8.0.87",
    "silent-skip": "bash k2/setup.sh || exit 0",
    "ssh-clone": "git clone git@git.example.org:a/b.git",
    "short-sha": "git clone https://git.example.org/a/b && cd b && git checkout abc1234",
    "repo-moved": "git clone https://github.com/pytorch/fairseq",
    "torch-absent": "pip install timm==0.6.13",
    "index-missing": "pip install torch==1.8.2",
    "env-elsewhere": "module load conda\npython3 -m venv x --system-site-packages\npip install a",
    "platform-mismatch": "pip install pywin32==303",
    "stale-service": "git clone git://github.com/x/y",
}


@pytest.mark.parametrize("rule", SLIPS)
def test_each_rule_finds_its_slip(rule: str) -> None:
    (finding, *_) = [each for each in find(shell(SLIPS[rule]), load_known()) if each.rule == rule]
    assert finding.truth and finding.does
    assert rule == "torch-absent" or finding.statements[0].place.file == "install.sh"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("mkdir a || true\n", "install.sh"),
        ('[build-system]\nrequires = ["poetry-core"]\nbuild-backend = "poetry.core.masonry.api"\n', "pyproject.toml"),
        ("# A\n\nIf you like, set `export TORCH_CUDA_ARCH_LIST=6.0`.\n", "README.md"),
        ("dependencies:\n  - python=3.9.1\n  - aws-c-io=0.13.28=hcfcfb64_0\n", "environment.yml"),
    ],
)
def test_what_is_no_slip_is_none(text: str, path: str) -> None:
    draft = draft_of(text, path)
    assert rules(draft) == {} and not draft.packages


def test_a_clean_page_of_a_devel_image_which_brings_the_compiler_has_no_findings() -> None:
    image = "FROM nvidia/cuda:11.8.0-devel-ubuntu22.04\nRUN pip install a==1 torch==2.1.0+cu118 git+{}\n"
    clean = draft_of(image.format(f"https://git.example.org/x/y@{'b' * 40}"), "Dockerfile")
    assert (rules(clean), clean.python.value) == ({}, "3.10")
    assert "needs-nvcc" not in rules(draft_of(image.format("https://github.com/NVIDIA/apex@v1"), "Dockerfile"))


def test_a_draft_gives_way_where_its_requirements_exclude_each_other() -> None:
    head = "# Drafted by `envbuild init` from own.\n"
    lines = '      - "swarms==4.1.1"  # requirements.txt:1\n      - "espnet"  # from imports: own/a.py:7\n'
    said = "Failed to resolve dependencies for package `espnet==0.6.0`"
    changed, name = write.without_guess(head + lines, said)
    assert name == "espnet" and changed.startswith(
        head + lines.splitlines()[0] + "\n"
        "      # not said: what brings `own/a.py:7`; espnet of the index does not fit\nfindings:\n"
        "  - id: guess-left-out\n"
    )
    assert write.bounds_of(head + lines, "swarms") == ("swarms==4.1.1", "requirements.txt:1")
    assert write.bounds_of(head + lines, "espnet") == write.bounds_of(lines, "swarms") == ("", "")
    assert '- "swarms"  # relaxed from swarms==4.1.1' in write.relaxed(head + lines, "swarms==4.1.1", "swarms")
    for text in (lines, head + lines):  # by hand, and of another package
        assert write.without_guess(text, "swarms==4.1.1 conflicts") == (text, "")
    assert write.relaxed(lines, "swarms==4.1.1", "swarms") == lines
    torch = "    torch: {version: 2.2.0, flavours: [cu118]}  # setup.sh:1\n"
    assert "[cu121]}  # relaxed from cu118, out of reach; setup.sh:1" in write.relaxed(head + torch, "cu118", "cu121")
    unrecorded = package("torch", "2.1.1+cu118", index="pytorch-cu118", sha256="unrecorded", reason="away")
    locked = make_lock({"id": "v", "python": "3.10", "packages": [unrecorded]})
    with fails("index-unreachable") as caught:
        refuse_unrecorded_torch(locked, head + torch)
    assert caught.value.details["relaxations"] == [{"was": "cu118", "becomes": "cu121"}]
    refuse_unrecorded_torch(locked, torch)  # no draft
    asked = head + torch.replace("setup.sh:1", f"setup.sh:1; cu118 {write.AS_ASKED}")
    assert write.relaxed(asked, "cu118", "cu121") == asked
