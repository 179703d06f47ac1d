"""The reviewer's kit: what is made holds, says nothing that nobody knows, and what is done to it is told by name."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings, strategies

from envbuild import __version__
from envbuild.catalog.loader import load_stack
from envbuild.cli.report_cmd import report as command
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.kit import manifest
from envbuild.kit.make import UNKNOWN, commands, computed_run, make_kit, readme, rows, verify_kit
from envbuild.kit.manifest import Manifest, listed, manifest_of, parse, render
from envbuild.kit.wheel import own_wheel, wheel_name
from envbuild.lock.files import read_lock
from envbuild.model.lock import Lock, LockedSource, LockedTree
from envbuild.regular_file import MAX_BYTES
from envbuild.report.recheck.opened import open_report
from envbuild.report.view import View
from tests.report import samples
from tests.report.recheck.test_verify import add, cut, swap
from tests.report.sealed import RUN, Sealed
from tests.report.test_publish import CANARIES, telling
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.need import need
from tests.support.programs import completed
from tests.test_docs import COMMAND, walked
from tests.transport.sshd import make_key

LOCK = "torch-smoke.exact.lock.toml"
COMMANDS = commands(samples.evidence(), "torch-smoke")


@pytest.fixture(scope="module", autouse=True)
def source() -> Iterator[dict[str, Any]]:
    """An envbuild without an address, wherever these tests run."""
    source = {"url": "", "vcs_info": {"vcs": "git", "commit_id": "b" * 40}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("envbuild.resources.own_source", lambda: source)
        patch.setattr("envbuild.kit.make.own_source", lambda: source)
        own_wheel.cache_clear()  # another test of this process may have made it, with the source it has
        yield source
    own_wheel.cache_clear()


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kits")


@pytest.fixture(scope="module")
def report(top: Path) -> Path:
    return Sealed(top).folder


@pytest.fixture(scope="module")
def made(top: Path, report: Path) -> Path:
    make_kit(report, top / "kit")
    return top / "kit"


@pytest.fixture
def kit(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "kit")


@pytest.fixture(scope="module")
def key(top: Path) -> Path:
    """A private SSH key, its public one beside it."""
    need("ssh-keygen")
    return make_key(top / "key")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sealed]:
    """Three good runs, the oldest first, where the command looks for them."""
    monkeypatch.setenv("ENVBUILD_RUNS", str(tmp_path / "runs"))
    return [Sealed(tmp_path / "runs", run=f"20260302T10000{number}Z-4f2a") for number in range(3)]


def locked(kit: Path, **change: Any) -> Lock:
    """The lock of a kit, every variant of it changed."""
    lock = read_lock(kit / LOCK)
    return lock.model_copy(update={"variants": tuple(each.model_copy(update=change) for each in lock.variants)})


def problems(path: Path, **more: Any) -> list[tuple[str, str]]:
    """Codes of what does not hold, with their sentences."""
    return [(each.code, each.says) for each in verify_kit(path, **more)[1] if each.kind == "problem"]


def unchecked(path: Path) -> str:
    return "\n".join(each.says for each in verify_kit(path)[1] if each.kind == "not-checked")


def relist(kit: Path) -> None:
    """What a careful forger does: a manifest of the files that are there."""
    files = {each.relative_to(kit).as_posix(): each.read_bytes() for each in kit.rglob("*") if each.is_file()}
    files.pop(manifest.NAME)
    found = parse((kit / manifest.NAME).read_bytes()).model_copy(update={"files": listed(files)})
    (kit / manifest.NAME).write_bytes(render(found))


def refused(path: Path) -> EnvbuildError:
    with pytest.raises(EnvbuildError) as caught:
        verify_kit(path)
    assert caught.value.exit_code == ExitCode.INTEGRITY
    return caught.value


def test_a_kit_holds_as_folder_and_as_tar_and_the_same_report_gives_the_same_bytes(
    made: Path, report: Path, tmp_path: Path
) -> None:
    assert problems(made) == []
    for name in ("one.tar", "two.tar"):
        make_kit(report, tmp_path / name / "kit.tar")
    one, two = (tmp_path / name / "kit.tar" for name in ("one.tar", "two.tar"))
    assert one.read_bytes() == two.read_bytes()
    assert problems(one) == []
    with tarfile.open(one) as tar:
        members = tar.getmembers()
    assert {(m.mtime, m.uid, m.gid, m.uname, m.mode) for m in members} == {(0, 0, 0, "", 0o644)}
    assert {m.name.removeprefix("kit/") for m in members} == {
        each.relative_to(made).as_posix() for each in made.rglob("*") if each.is_file()
    }


def test_every_command_of_a_kit_is_there_with_its_options_and_the_first_verifies_it(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (made / "README.md").read_text().replace("timeout 30m ", "").replace("\\`", "`")
    first = next(line for line in text.splitlines() if line.startswith("envbuild "))
    assert first == "envbuild report verify ."
    monkeypatch.chdir(made)
    assert command.main(first.split()[2:], standalone_mode=False) == 0
    assert "what could be checked holds" in capsys.readouterr().out
    install, *blocks = re.findall(r"```sh\n(.*?)\n```", text)
    assert install == "uv tool install --python '>=3.11' ./" + wheel_name(__version__)
    found = [*blocks, *(each[1] for each in COMMAND.finditer(text))]
    assert len(blocks) == 3
    assert f"pip install ./{wheel_name(__version__)}`" in text, "a reviewer may have neither uv nor pipx"
    assert "with Python 3." in text, "the root is of one version of Python"
    assert len(found) > 5
    for line in found:
        walked_to, rest = walked(line.partition(" -- ")[0].split()[1:])
        options = {name for each in walked_to.params for name in each.opts}
        assert {word for word in rest if word.startswith("-")} <= options, line


@pytest.mark.parametrize(
    ("command", "change", "sections"),
    [
        ([], {}, 1),
        (["envbuild", "provision", "--target", "local"], {}, 1),
        (["envbuild", "provision", "--prefix", "/data"], {}, 2),
        ([], {"flavour": "cu126"}, 2),
    ],
    ids=["published", "the same words", "another place", "only for GPUs"],
)
def test_a_build_that_one_section_names_is_in_no_other_and_is_compared_at_once(
    made: Path, command: list[str], change: dict[str, Any], sections: int
) -> None:
    """A second build of the same environment is a no-op, and a report has no difference from it."""
    lock = locked(made, **change)
    more = {"command": command} if command else {"command": [], "target": samples.evidence().target}
    text = readme(manifest_of(made), samples.evidence(**more), lock, signed=False, own=None).decode()
    builds = [line for line in text.splitlines() if re.match("(timeout 30m )?envbuild provision", line)]
    assert len(builds) == sections, builds
    after = text.partition(f"\n{builds[-1]}\n```\n")[2].splitlines()
    assert "envbuild report diff . last" in after[:6]
    where = "Kick the tires" if sections == 1 else "The artifact itself"
    assert f"after the build under *{where}*" in text and f"\n## {where}" in text
    assert ("## The artifact itself" in text) == (sections == 2)


def test_without_an_address_a_kit_has_the_wheel_of_envbuild(made: Path, tmp_path: Path, source: dict[str, Any]) -> None:
    name = wheel_name(__version__)
    assert name in unchecked(made)
    with zipfile.ZipFile(made / name) as wheel:
        names = wheel.namelist()
        assert {"envbuild/kit/make.py", "envbuild/_data/lockfiles/uv.txt"} < {*names} and len({*names}) == len(names)
        assert not [each for each in names if each.endswith(".pyc") or "/./" in each]
        rows = wheel.read(f"envbuild-{__version__}.dist-info/RECORD").decode().splitlines()
        assert [row.split(",")[0] for row in rows] == names
        wheel.extractall(tmp_path)
    code = "import envbuild.resources as r; print(r.own_source(), r.lockfiles())"
    said = completed([sys.executable, "-Sc", code], cwd=tmp_path).stdout
    assert said.startswith(f"{source} {tmp_path}/envbuild/_data/lockfiles")


def test_with_an_address_a_kit_names_it_and_its_commit(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"url": "https://git.example.org/lab/envbuild", "vcs_info": {"vcs": "git", "commit_id": "a" * 40}}
    monkeypatch.setattr("envbuild.kit.make.own_source", lambda: source)
    make_kit(report, tmp_path / "kit")
    line = f"uv tool install --python '>=3.11' git+https://git.example.org/lab/envbuild@{'a' * 40}"
    assert line in (tmp_path / "kit" / "README.md").read_text() and not list(tmp_path.glob("kit/*.whl"))
    assert problems(tmp_path / "kit") == []


def test_the_kit_says_what_to_expect_and_what_it_costs_as_measured(made: Path) -> None:
    text = (made / "README.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| training\\_tokens\\_per\\_second"))
    assert "at least 100,000 token/s" in row
    assert "\nThe stack has no document, so there is no figure to reproduce.\n" in text
    assert row.endswith("| 0.021 |")  # 2 nodes × 8 GPUs × 4.7 s

    def smoked(*nodes: Any) -> tuple[str, str]:
        """The claim of the smoke test, and what it costs."""
        (found,) = (row for row in rows(View(samples.evidence(*nodes)), COMMANDS) if "of the smoke test" in row.claim)
        return found.claim, found.hours

    for missing in (
        {"checks": [{**each, "seconds": None} for each in samples.checks(100_000.0)]},
        {"facts": None},
    ):
        assert smoked(samples.node(gpus=8, **missing))[1] == UNKNOWN
    computed = "it computes: the checks sound, machine/all-reduce, training of the smoke test; "
    assert smoked() == (computed + "training is of envbuild's own test model", "none")
    assert smoked(samples.node(checks=samples.checks()[:1]))[0] == "it imports: the checks sound of the smoke test"
    claimed = next(row for row in rows(View(samples.fleet(1)), COMMANDS) if row.claim.startswith("bench"))
    assert claimed.expected.startswith("147 TFLOP/s per GPU, or no more than 3 % worse")
    assert "8 GPUs here, 992 in the claim" in claimed.here
    assert claimed.hours == "0.689"  # 8 GPUs × 310 s


def test_a_kit_of_an_own_stack_has_its_file_and_says_how_its_code_is_started(report: Path, tmp_path: Path) -> None:
    stack, kit = Path(own_stack(tmp_path)), tmp_path / "kit"
    stack.write_text(f"{stack.read_text()}    # starts: python train.py --steps 200  (README.md:11)\n")
    _, left = make_kit(report, kit, stack=str(stack))
    assert [text for text in left if "stack" in text] == []
    assert (kit / "torch-smoke.yaml").read_bytes() == stack.read_bytes()
    text = (kit / "README.md").read_text()
    assert "envbuild provision ./torch-smoke.yaml " in text and "envbuild verify ./torch-smoke.yaml " in text
    assert "\ntimeout 30m envbuild provision ./torch-smoke.yaml --profile exact --target local\n" in text
    assert "```sh\npython train.py --steps 200  # README.md:11\n```\n" in text
    assert " torch-smoke -- COMMAND`. Without `-- COMMAND`, it opens a shell." in text
    assert problems(kit) == []
    says = [each.says for each in verify_kit(kit)[1] if each.topic == "stack" and each.kind == "checked"]
    assert "torch-smoke.yaml is the stack that the lock was made from" in says
    lock = locked(kit, trees=(LockedTree(name="mine"),))
    made = readme(manifest_of(kit), samples.evidence(), lock, signed=False, own=stack.read_bytes()).decode()
    there = """torch-smoke -- sh -c 'cd "$VIRTUAL_ENV/src/mine" && python train.py --steps 200'  # README.md:11\n"""
    assert there in made, "the command needs the folder of the code"
    own = "- own commands: the run started none of `python train.py --steps 200`; the smoke"
    assert own in made.partition("## Not checked")[2]
    path = "Its path is `PREFIX/current/torch-smoke/src/mine`."
    assert f"There, `$VIRTUAL_ENV/src/mine` has the code of mine. {path}" in made


def test_a_kit_says_what_the_draft_guessed_what_the_build_takes_and_from_where(made: Path) -> None:
    source = LockedSource(name="app", git="https://git.example.org/app", commit="a" * 40, tree="b" * 40, install="path")
    lock = locked(made, sources=(source,))
    draft = b"""\
    torch: {version: 2.7.1}  # README.md:8; not said: the newest release; not said: what the index has
    python: ["3.10"]  # README.md:11
      # not said: what brings `import app`
      - "wheel"  # not said: old packages need it
"""
    step = {"name": "install", "status": "changed", "began": 0, "seconds": 88.8}
    run = samples.evidence(samples.node(variant_digest=lock.variants[0].digest, steps=[step]))
    text = readme(manifest_of(made), run, lock, signed=False, own=draft).decode()
    guessed = re.findall("^- (.*)$", text.partition("as chosen by")[2].partition("The stack")[0], re.M)
    assert guessed == [
        "`torch: {version: 2.7.1}`: the newest release; what the index has",
        "what brings `import app`",
        '`"wheel"`: old packages need it',
    ]
    assert re.search(
        "at least [0-9]+ MB to fetch, about [0-9]+ MB on disk. The authors' installation took 88.8 s", text
    )
    assert f"\n- app: `https://git.example.org/app`, commit `{'a' * 40}`\n" in text


def test_a_published_kit_names_nobody_and_a_full_one_keeps_everything_and_is_not_called_published(
    made: Path, tmp_path: Path
) -> None:
    sealed, kit, full = Sealed(tmp_path / "private"), tmp_path / "kit", tmp_path / "full"
    told = telling().to_json_dict()["nodes"][0]["facts"]
    keep = ("user", "home", "hostname", "prefix", "nics", "gpus")
    sealed.forge(lambda data: [n["facts"].update({key: told[key] for key in keep}) for n in data["nodes"]])
    make_kit(sealed.folder, kit)
    text = b"".join(each.read_bytes() for each in kit.rglob("*") if each.is_file()).decode("latin-1")
    assert [canary for canary in (*CANARIES, "gpu01", "gpu02") if canary in text] == []
    assert problems(kit) == []
    assert "the report has only fields that are public" in [each.says for each in verify_kit(kit)[1]]
    make_kit(sealed.folder, full, publish=False)
    assert problems(full) == []
    assert (full / "report" / "plan.json").is_file()
    assert "gpu01" in (full / "README.md").read_text() + (full / "report/report.md").read_text()
    edited(lambda data: data.update(form="published"))(full / "kit.json")
    text_of = readme(
        manifest_of(full), open_report(full / "report").evidence, read_lock(made / LOCK), signed=False, own=None
    )
    (full / "README.md").write_bytes(text_of)
    relist(full)
    [(code, says)] = problems(full)
    assert code == "kit-form-differs"
    assert "do not pass it on" in says


def test_the_report_of_a_kit_can_be_signed_and_a_full_kit_keeps_a_signature(
    report: Path, tmp_path: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signers, kit = tmp_path / "signers", tmp_path / "kit"
    signers.write_text(f'ada@example.org namespaces="envbuild" {key.with_suffix(".pub").read_text()}')
    command.main(["kit", str(report), "--key", str(key), "--output", str(kit)], standalone_mode=False)
    assert "the public key goes with the signature" in capsys.readouterr().err
    assert problems(kit, signers=signers) == []
    assert "signed |" in (kit / "README.md").read_text()
    full = ["--output", str(tmp_path / "full"), "--no-publish"]
    command.main(["kit", str(report), "--key", str(key), *full], standalone_mode=False)
    assert "public key" not in capsys.readouterr().err
    make_kit(kit / "report", tmp_path / "again", publish=False)
    assert problems(tmp_path / "again", signers=signers) == []
    make_kit(kit / "report", tmp_path / "unsigned")
    assert [code for code, _ in problems(tmp_path / "unsigned", signers=signers)] == ["report-unsigned"]


def own_stack(tmp_path: Path) -> str:
    path = tmp_path / "torch-smoke.yaml"
    data = yaml.safe_load(load_stack("torch-smoke").path.read_text())
    path.write_text(yaml.safe_dump(data))
    return str(path)


@pytest.mark.parametrize(
    ("gpus", "change", "why"),
    [
        (8, {"flavour": "cu126"}, "this stack is for machines with GPUs."),
        (
            0,
            {"flavour": "cu126"},
            "the lock of this stack has a CUDA build of torch. That build also runs on a CPU, as",
        ),
        (0, {"trees": (LockedTree(name="mine"),)}, "the code of this stack is a folder of the authors."),
    ],
)
def test_what_a_reviewer_cannot_build_without_a_gpu_is_tried_with_the_example_stack(
    made: Path, gpus: int, change: dict[str, Any], why: str
) -> None:
    lock = locked(made, **change)
    run = samples.evidence(samples.node(gpus=gpus))
    text = readme(manifest_of(made), run, lock, signed=False, own=b"").decode()
    assert "\ntimeout 30m envbuild provision torch-smoke --target local\n" in text
    assert f"This command builds envbuild's example stack, because {why}" in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: swap(f, b"python:", b"packages: [six]\n    python:"), "is not the stack that the lock was made"),
        (lambda f: swap(f, b"name: torch-smoke", b"name: torch-smokf"), "is not the stack that the lock was made from"),
        (lambda f: f.write_bytes(b"\xff"), "torch-smoke.yaml: "),
        (lambda f: f.write_bytes(b"#" * (MAX_BYTES + 1)), "torch-smoke.yaml"),
    ],
    ids=["more packages", "another name", "no text", "too large"],
)
def test_another_stack_in_a_kit_is_told_by_name(
    report: Path, tmp_path: Path, change: Callable[[Path], object], says: str
) -> None:
    make_kit(report, tmp_path / "kit", stack=own_stack(tmp_path))
    change(tmp_path / "kit" / "torch-smoke.yaml")
    relist(tmp_path / "kit")
    [(code, said)] = problems(tmp_path / "kit")
    assert code == "kit-stack-differs"
    assert says in said
    assert str(tmp_path) not in said


def test_another_stack_a_report_without_a_lock_and_what_is_there_are_refused(report: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(Path(own_stack(tmp_path)).read_text().replace("python:", "packages: [six]\n    python:", 1))
    alone = shutil.copy(report / "report.html", tmp_path / "mailed.html")
    (tmp_path / "there").mkdir()
    forged = Sealed(tmp_path / "forged")
    forged.forge(lambda data: data.update(lock_digest="ab" * 32))
    for path, output, stack, code, exit_code in (
        (report, "a", str(other), "kit-stack-differs", 2),
        (alone, "b", None, "kit-without-lock", 7),
        (report, "there", None, "output-exists", 2),
        (forged.folder, "c", None, "report-not-holding", 5),
    ):
        with fails(code, exit_code):
            make_kit(path, tmp_path / output, stack=stack)
    assert {each.name for each in tmp_path.iterdir() if each.name.startswith((".kit", "a", "b", "c"))} == set()


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def made(path: Path) -> None:
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    return made


def other_version(kit: Path) -> None:
    edited(lambda data: data.update(envbuild="9.9"))(kit / "kit.json")
    (kit / wheel_name(__version__)).rename(kit / wheel_name("9.9"))


def no_lock(kit: Path) -> None:
    """A lock that is no TOML, with digests that hold."""
    text = b"this is no lock ["
    (kit / LOCK).write_bytes(text)
    (kit / "report" / "attachments" / "lock.toml").write_bytes(text)
    row = {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)}

    def change(data: dict[str, Any]) -> None:
        next(item for item in data["attachments"] if item["kind"] == "lock").update(row)
        data["lock_digest"] = row["sha256"]

    edited(change)(kit / "report" / "evidence.json")


# What is done to the files of a kit, the code that tells it, and the file that is named. A careful forger relists.
TOUCHED: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a changed README": (lambda k: add(k / "README.md"), "kit-file-differs", "README.md"),
    "a shorter lock": (lambda k: cut(k / LOCK), "kit-file-differs", LOCK),
    "a missing README": (lambda k: (k / "README.md").unlink(), "kit-file-missing", "README.md"),
    "an extra file": (lambda k: (k / "run.sh").write_text("rm -rf"), "kit-file-unlisted", "run.sh"),
    "an extra file in the report": (
        lambda k: (k / "report" / "more.json").write_text("{}"), "kit-file-unlisted", "report/more.json",
    ),
    "a changed attachment": (
        lambda k: add(k / "report" / "attachments" / "variant.json"), "report-file-differs", "attachments/variant.json",
    ),
    "a README with another command": (
        lambda k: (swap(k / "README.md", b"report verify .", b"report show  ."), relist(k)), "kit-text-differs",
        "README.md",
    ),
    "a claim that nobody measured": (
        lambda k: (swap(k / "README.md", b"at least 100,000", b"at least 900,000"), relist(k)), "kit-text-differs",
        "README.md",
    ),
    "another table of figures": (
        lambda k: (add(k / "report" / "junit.xml"), relist(k)), "report-page-differs", "junit.xml",
    ),
    "a bill of materials with nothing in it": (
        lambda k: ((k / "report" / "sbom.cdx.json").write_text('{"components": []}'), relist(k)), "report-page-differs",
        "sbom.cdx.json",
    ),
    "a page that kit.json lists": (
        lambda k: ((k / "START-HERE.html").write_text("<script>"), relist(k)), "kit-file-unlisted", "START-HERE.html",
    ),
    "a page in the report that kit.json lists": (
        lambda k: ((k / "report" / "results.html").write_text("all passed"), relist(k)), "kit-file-unlisted",
        "report/results.html",
    ),
    "a script that kit.json of another version lists": (
        lambda k: ((k / "install.sh").touch(), other_version(k), relist(k)), "kit-file-unlisted", "install.sh",
    ),
    "a lock that is none, here and in the report": (
        lambda k: (no_lock(k), relist(k)), "report-lock-invalid", "lock.toml",
    ),
    "a lock that is not the report's": (lambda k: (add(k / LOCK), relist(k)), "kit-lock-differs", LOCK),
    "a lock left out with care": (lambda k: ((k / LOCK).unlink(), relist(k)), "kit-file-missing", LOCK),
    "a page that shows another number": (
        lambda k: (swap(k / "report" / "report.html", b"<td>", b"<td>9"), relist(k)), "report-page-differs",
        "report.html",
    ),
    "a document": (
        lambda k: ((k / "document.html").write_text("<p>"), relist(k)), "kit-file-unlisted", "document.html",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "code", "name"), TOUCHED.values(), ids=TOUCHED)
def test_what_was_done_to_a_kit_is_told_by_name(
    kit: Path, change: Callable[[Path], object], code: str, name: str
) -> None:
    change(kit)
    found = problems(kit)
    assert code in {each for each, _ in found}
    assert name in next(says for each, says in found if each == code)


def far(kit: Path) -> None:
    shutil.move(kit / "README.md", kit.parent / "README.md")
    (kit / "README.md").symlink_to(kit.parent / "README.md")


def far_folder(kit: Path) -> None:
    shutil.move(kit / "report", kit.parent / "report")
    (kit / "report").symlink_to(kit.parent / "report")


def grown(path: Path, size: int) -> None:
    with path.open("ab") as stream:
        stream.truncate(size)


UNSAFE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link": (far, "README.md"),
    "a folder that is a link": (far_folder, "report"),
    "a pipe": (lambda k: os.mkfifo(k / "pipe"), "pipe"),
    "a hidden file": (lambda k: (k / ".git").mkdir(), ".git"),
    "a name that acts on terminals": (lambda k: (k / "a\x1b[2J").touch(), "a\\x1b[2J"),
    "a name that is no UTF-8": (lambda k: Path(os.fsdecode(bytes(k) + b"/\xff")).touch(), ""),
    "a hundred megabytes": (lambda k: grown(k / "README.md", 100_000_000), "README.md"),
    "a manifest of two megabytes": (lambda k: grown(k / "kit.json", 2_000_000), "kit.json"),
    "too many files": (lambda k: [(k / f"f{n}").touch() for n in range(2001)], "f"),
    "no manifest": (lambda k: (k / "kit.json").unlink(), "kit.json"),
    "half a manifest": (lambda k: cut(k / "kit.json"), "kit.json"),
    "a truncated evidence": (lambda k: cut(k / "report" / "evidence.json"), "evidence.json"),
    "no evidence": (lambda k: (k / "report" / "evidence.json").unlink(), "kit.json"),
}


@pytest.mark.parametrize(("change", "name"), UNSAFE.values(), ids=UNSAFE)
def test_what_is_no_kit_or_a_hostile_one_is_refused_by_the_name_of_the_file(
    kit: Path, change: Callable[[Path], object], name: str
) -> None:
    change(kit)
    error = refused(kit)
    assert error.code == ("evidence-invalid" if name == "evidence.json" else "kit-invalid")
    assert name in error.what


ROW = {"path": "x", "sha256": "0" * 64, "bytes": 1}
MANIFESTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a key twice": (lambda f: swap(f, b'"form"', b'"form": "full", "form"'), "there twice"),
    "a path that leaves": (edited(lambda d: d["files"].append({**ROW, "path": "../x"})), "path"),
    "a file twice": (edited(lambda d: d["files"].insert(0, d["files"][0])), "listed once"),
    "itself": (edited(lambda d: d["files"].insert(3, {**ROW, "path": "kit.json"})), "listed once"),
    "a huge number": (edited(lambda d: d["files"][0].update(bytes=10**18)), "bytes"),
    "an unknown key": (edited(lambda d: d.update(more=1)), "more"),
    "no version": (edited(lambda d: d.pop("form")), "form"),
    "a newer schema": (edited(lambda d: d.update(schema_version="3.0")), "this envbuild reads"),
}


@pytest.mark.parametrize(("change", "why"), MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_that_means_two_things_or_none_is_refused(
    kit: Path, change: Callable[[Path], Any], why: str
) -> None:
    change(kit / "kit.json")
    error = refused(kit)
    assert error.code == "kit-invalid"
    assert why in error.why


def test_a_kit_of_another_envbuild_names_the_texts_that_this_one_makes_otherwise(kit: Path) -> None:
    other_version(kit)
    swap(kit / "README.md", f"Install envbuild {__version__} (".encode(), b"Install envbuild 9.9 (")
    for _ in ("uv", "pip", "files"):
        swap(kit / "README.md", wheel_name(__version__).encode(), wheel_name("9.9").encode())
    relist(kit)
    assert problems(kit) == []
    assert "envbuild 9.9" not in unchecked(kit)
    add(kit / "README.md")
    add(kit / "report" / "junit.xml")
    relist(kit)
    assert problems(kit) == []
    for name in ("README.md", "junit.xml"):
        assert f"{name}: envbuild 9.9 (commit {'b' * 12}) made it; envbuild {__version__} (commit " in unchecked(kit)
    assert "Trust no command or figure in it" in unchecked(kit)
    edited(lambda data: data.update(envbuild=__version__, commit="c" * 40))(kit / "kit.json")
    (kit / wheel_name("9.9")).rename(kit / wheel_name(__version__))
    relist(kit)
    assert problems(kit) == []
    assert f"README.md: envbuild {__version__} (commit {'c' * 12}) made it; envbuild {__version__}" in unchecked(kit)


def packed(files: dict[str, bytes], *members: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for member in members:
            tar.addfile(member)
    return out.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = kind, link, size
    return found


def chained(kind: bytes) -> bytes:
    """A tar file of headers that each speak of the next one, which tarfile reads one inside the other."""
    return (member("x", kind, size=12).tobuf(tarfile.USTAR_FORMAT) + b"12 path=aaa\n".ljust(512, b"\0")) * 3000


ALONE = render(Manifest(envbuild="1", form="full"))
TARS: dict[str, tuple[bytes, str]] = {
    "a way out": (packed({"../evil": b""}), "../evil"),
    "a way out further in": (packed({"kit/a/../../../evil": b""}), "evil"),
    "an absolute path": (packed({"/etc/cron.d/evil": b""}), "/etc/cron.d/evil"),
    "a link": (packed({}, member("kit/README.md", tarfile.SYMTYPE, "/etc/passwd")), "README.md"),
    "a device": (packed({}, member("kit/null", tarfile.CHRTYPE)), "kit/null"),
    "a file twice": (packed({"kit/a": b"1"})[:1024] + packed({"kit/a": b"2"}), "kit/a"),
    "a file below a file": (packed({"kit/a": b"1", "kit/a/b": b"2"}), "kit/a/b"),
    "a file said to be huge": (member("kit/a", size=10**12).tobuf(tarfile.GNU_FORMAT) + packed({}), "kit/a"),
    "a name that acts on terminals": (packed({"kit/\x1b[2J": b""}), "\\x1b[2J"),
    "an empty file": (b"", "kit.tar"),
    "half of one": (packed({"kit/kit.json": b"x" * 9000})[:4000], "kit.tar"),
    "no manifest": (packed({"kit/a": b""}), "kit.json"),
    "D73, a manifest alone": (packed({"k/kit.json": ALONE}), "kit.json"),
    "a file beside the kit": (packed({"kit/kit.json": b"", "README.html": b""}), "README.html"),
    "a folder beside the kit": (packed({"a/kit.json": b"", "b/kit.json": b""}), "b"),
    **{f"headers without end {kind!r}": (chained(kind), "") for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME)},
}


@pytest.mark.parametrize(("data", "name"), TARS.values(), ids=TARS)
def test_a_hostile_tar_file_is_refused_by_name_and_writes_nothing_elsewhere(
    tmp_path: Path, data: bytes, name: str
) -> None:
    path = tmp_path / "in" / "kit.tar"
    write_file(path, data)
    error = refused(path)
    assert (error.code, name in error.what) == ("kit-invalid", True)
    assert {each.name for each in tmp_path.rglob("*")} == {"in", "kit.tar"}


def test_a_tar_file_larger_than_any_kit_is_refused_before_it_is_read(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = tmp_path / "again.tar"
    subprocess.run(["tar", "-cf", str(again), "-C", str(kit.parent), "./kit"], check=True)
    assert problems(again) == [], "somebody made it of the folder"
    packed_one = tmp_path / "kit.tar.gz"
    packed_one.write_bytes(b"\x1f\x8b")
    assert manifest.is_kit(packed_one)
    assert "not an uncompressed tar file" in refused(packed_one).why
    grown(again, 10**10)
    assert refused(again).code == "kit-invalid"
    assert refused(tmp_path / "none.tar").code == "kit-missing"
    monkeypatch.setattr(manifest, "LARGEST_ALL", 10_000)
    assert refused(kit).code == "kit-invalid", "its files together are larger than any kit"


def accepted(path: Path) -> bool:
    """Whether its files are those of its manifest; what the report says is another test's."""
    try:
        with manifest.opened(path) as (folder, there):
            findings = list(manifest.check_files(folder, there, manifest.manifest_of(folder)))
    except EnvbuildError as error:
        assert error.exit_code == ExitCode.INTEGRITY
        return False
    return all(each.kind != "problem" for each in findings)


def test_no_byte_of_a_file_in_a_tar_can_be_another_and_no_byte_at_all_breaks_the_reader(
    report: Path, tmp_path: Path
) -> None:
    path = tmp_path / "kit.tar"
    make_kit(report, path)
    data = path.read_bytes()
    with tarfile.open(path) as tar:
        spans = [(m.offset_data, m.offset_data + m.size) for m in tar if not m.name.endswith("kit.json")]
    chance, missed = random.Random(15), []
    for _ in range(30):
        at = chance.randrange(len(data))
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :])
        if accepted(path) and any(begin <= at < end for begin, end in spans):
            missed.append(at)
    assert missed == []
    path.write_bytes(data)
    assert accepted(path)


def test_the_command_makes_a_kit_and_checks_it(
    report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command.main(["kit", str(report), "--output", f"kit-torch-smoke-{RUN}.tar", "--json"], standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    assert told["kit"] == f"kit-torch-smoke-{RUN}.tar"
    assert stat.S_ISREG(Path(told["kit"]).stat().st_mode)
    assert command.main(["verify", told["kit"], "--json"], standalone_mode=False) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    Path("broken.tar").write_bytes(Path(told["kit"]).read_bytes().replace(b"at least 100,000", b"at least 900,000"))
    assert command.main(["verify", "broken.tar", "--json"], standalone_mode=False) == 5
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "kit-file-differs"


def test_d114_the_kit_is_of_the_run_that_computed_and_a_failed_run_is_said_with_the_last_that_passed(
    runs: list[Sealed], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked(data: dict[str, Any]) -> None:
        data["verb"] = "verify"
        for node in data["nodes"]:
            node["checks"] = [check for check in node["checks"] if not check["name"].startswith("smoke/")]

    def says(name: str) -> str:
        command.main(["kit", "--output", str(tmp_path / name)], standalone_mode=False)
        return capsys.readouterr().err

    older, good, idle = runs
    idle.forge(looked)
    newer = f"that ran a test or a benchmark; the newer run {idle.folder.name} ran none"
    assert f"kit of {good.folder.name}, the last run {newer}" in (told := says("kit"))
    assert "failed" not in told
    monkeypatch.setattr("envbuild.kit.make.require_holding", open_report)  # what is forged below does not
    idle.forge(lambda data: data.update(verb="bench", exit=1, nodes=[{**data["nodes"][0], "checks": []}]))
    assert f"kit of {good.folder.name}, the last run that" in (told := says("refused"))
    assert f"the newer run {idle.folder.name} failed and ran none" in told
    good.forge(lambda data: data.update(exit=1))
    shutil.rmtree(idle.folder)
    failed = f"which failed; the last that passed: `envbuild report kit {older.folder.name}`"
    assert f"kit of {good.folder.name}, the last run, {failed}" in says("failed")
    _, left = make_kit(good.folder, tmp_path / "again")
    assert any("failed (exit 1)" in text for text in left)
    older.forge(looked)
    assert computed_run([older.folder, good.folder]) == older.folder


def test_a_kit_of_a_run_that_took_the_contents_from_the_stamp_has_the_report_that_measured_them(
    runs: list[Sealed], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stamped(data: dict[str, Any]) -> None:
        for node in data["nodes"]:
            node.update(root_level="stamped", checks=[check for check in node["checks"] if check["name"] != "files"])

    built, used, other = runs
    used.forge(stamped)
    other.forge(lambda data: data["nodes"].clear())
    kit = tmp_path / "kit"
    command.main(["kit", used.folder.name, "--output", str(kit)], standalone_mode=False)
    assert f"the report of {built.folder.name}, which measured them, is added" in capsys.readouterr().err
    assert problems(kit) == []
    says = [finding.says for finding in verify_kit(kit)[1] if finding.kind == "checked"]
    assert f"environment/: the run {built.folder.name} measured the contents that {used.folder.name} used" in str(says)
    text = " ".join((kit / "README.md").read_text().split())
    assert f"`environment/` is that of run {built.folder.name}, which read every file of the same environment." in text
    assert "root " + built.root[:12] + " (measured), in environment/ " in text
    swap(kit / "environment" / "report.html", b"<td>", b"<td>9")
    relist(kit)
    assert [(code, says.partition(" ")[0]) for code, says in problems(kit)] == [
        ("report-page-differs", "environment/:")
    ]
    shutil.rmtree(kit / "environment")
    shutil.copytree(other.folder, kit / "environment")
    relist(kit)
    assert "report-root-differs" in dict(problems(kit))


def test_a_kit_of_a_stack_is_of_its_last_run(
    runs: list[Sealed], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first, second = runs
    second.forge(lambda data: data.update(stack="newer"))
    stack = Path(own_stack(tmp_path))
    edited_run = Sealed(tmp_path / "runs", run="20260302T100005Z-4f2a")
    edited_run.attach("profile", "attachments/profile.json", b"{}")
    edited_run.write()
    command.main(["kit", "-s", str(stack), "--output", str(tmp_path / "kit")], standalone_mode=False)
    assert f"kit of {first.folder.name}, the last run of torch-smoke" in capsys.readouterr().err
    swap(stack, b"python:", b"packages: [six]\n    python:")
    monkeypatch.setattr("envbuild.kit.make.require_holding", open_report)  # nor does what is forged above
    with fails("kit-stack-differs") as differs:
        command.main(["kit", "-s", str(stack), "--output", str(tmp_path / "more")], standalone_mode=False)
    assert f"`envbuild report kit {edited_run.folder}` takes the file that the run kept" in differs.value.hint
    swap(stack, b"name: torch-smoke", b"name: another")
    with fails("evidence-missing"):
        command.main(["kit", "-s", str(stack)], standalone_mode=False)


def test_a_kit_of_code_that_went_on_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed, tree = Sealed(tmp_path), {"mine": {"path": "/home/ada/mine", "commit": "a" * 40}}
    sealed.forge(lambda data: [node["facts"].update(trees=tree) for node in data["nodes"]])
    for commit, says in (
        ("b", [f"was at commit {'a' * 12} in the run {RUN}, which the kit is of; it is at {'b' * 12} now"]),
        ("a", []),
    ):
        monkeypatch.setattr("envbuild.kit.make.tree_state", lambda _, now=commit: {"commit": now * 40})
        _, left = make_kit(sealed.folder, tmp_path / commit)
        assert [text.partition("source mine ")[2] for text in left if "mine" in text] == says


def test_a_kit_that_nobody_could_read_is_not_written(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = listed({f"report/f{number:04}": b"" for number in range(2001)})
    monkeypatch.setattr("envbuild.kit.make.listed", lambda files: rows)
    with fails("kit-invalid") as caught:
        make_kit(report, tmp_path / "kit")
    assert "2000" in caught.value.why
    assert not (tmp_path / "kit").exists()


def test_the_projects_own_citation_names_its_version_and_nobody_who_is_not_there() -> None:
    cited = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text())
    assert cited["version"] == __version__
    assert cited["authors"] == [{"name": "envbuild contributors"}]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=strategies.data())
def test_whatever_a_tar_file_holds_it_is_read_or_refused(tmp_path: Path, data: strategies.DataObject) -> None:
    whole = packed({"kit/kit.json": b"{}", "kit/report/evidence.json": b"{}" * 300}, member("kit/x", tarfile.DIRTYPE))
    for _ in range(data.draw(strategies.integers(1, 4))):
        at = data.draw(strategies.integers(0, 2600))
        piece = data.draw(strategies.binary(max_size=14))
        whole = whole[:at] + piece + whole[at + data.draw(strategies.sampled_from([0, len(piece), 512])) :]
    path = tmp_path / "kit.tar"
    path.write_bytes(whole)
    try:
        with manifest.opened(path) as (folder, there):
            assert all((folder / name).is_file() for name in there)
    except EnvbuildError as error:
        assert error.exit_code == ExitCode.INTEGRITY


VALUES = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats() | strategies.text(),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner),
)


@settings(max_examples=40, deadline=None)
@given(key=strategies.sampled_from(["schema_version", "envbuild", "form", "files"]), value=VALUES)
def test_whatever_a_manifest_holds_it_is_read_or_refused(key: str, value: Any) -> None:
    plain = {"schema_version": "2.0", "envbuild": "0.1.0", "form": "full", "files": []}
    try:
        parse(json.dumps({**plain, key: value}).encode("utf-8", "surrogatepass"))
    except EnvbuildError as error:
        assert error.exit_code == ExitCode.INTEGRITY
