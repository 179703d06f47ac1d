"""Signed reports: verified here and by plain ssh-keygen; what was changed is not accepted."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.report.evidence_file import SIGNATURE
from envbuild.report.publish import copy_report, sign_report
from envbuild.report.recheck.verify import verify_report
from tests.report.sealed import RUN, Sealed
from tests.support.fails import fails
from tests.support.need import need
from tests.support.programs import completed
from tests.transport.sshd import make_key

NAME = "author@example.org"


class Keys:
    """Two SSH keys, and an allowed_signers that has the first."""

    def __init__(self, folder: Path) -> None:
        """Make them."""
        need("ssh-keygen")
        self.own, self.other = make_key(folder / "own"), make_key(folder / "other")
        self.signers = folder / "allowed_signers"
        self.signers.write_text(f'{NAME} namespaces="envbuild" {self.own.with_suffix(".pub").read_text()}')
        self.empty = folder / "empty"
        self.empty.write_text("# nobody\n")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> Path:
    folder = Sealed(tmp_path_factory.mktemp("signed")).folder
    sign_report(folder, keys.own)
    return folder


@pytest.fixture
def copy(signed: Path, tmp_path: Path) -> Path:
    shutil.copytree(signed, tmp_path / RUN)
    return tmp_path / RUN


def problems(path: Path, signers: Path | None) -> set[str]:
    return {each.code for each in verify_report(path, signers=signers)[1] if each.kind == "problem"}


def signature_of(path: Path, signers: Path | None) -> list[tuple[str, str]]:
    return [(each.kind, each.says) for each in verify_report(path, signers=signers)[1] if each.topic == "signature"]


def test_a_signed_report_holds_in_every_form_and_without_signers_nobody_knows_whose_key_it_is(
    signed: Path, keys: Keys, tmp_path: Path
) -> None:
    for path in (signed, signed / "evidence.json", signed / "report.html"):
        assert problems(path, keys.signers) == set()
        ((kind, says),) = signature_of(path, keys.signers)
        assert kind == "checked"
        assert says.startswith(f"{NAME} signed exactly this evidence, with the key SHA256:")
    assert [kind for kind, _ in signature_of(signed, None)] == ["checked", "not-checked"]
    assert signature_of(Sealed(tmp_path).folder, None) == [
        ("not-checked", "there is none: anyone who can write these files could have invented them")
    ]


def test_plain_ssh_keygen_verifies_it_as_the_documentation_says(copy: Path, keys: Keys) -> None:
    text = (Path(__file__).parents[2] / "docs/reports.md").read_text()
    (block,) = re.findall(r"<!-- plain -->\n\n((?:    .*\n)+)", text)
    script = "set -e\n" + block.replace("author@example.org", NAME).replace("allowed_signers", str(keys.signers))
    for damage, good in ((b"", True), (b" ", False)):
        (copy / "evidence.json").write_bytes((copy / "evidence.json").read_bytes() + damage)
        done = completed(["sh", "-c", script], cwd=copy)
        assert (done.returncode == 0) == good, done.stderr
        assert (f'Good "envbuild" signature for {NAME}' in done.stdout) == good


def test_what_does_not_hold_is_not_signed_and_what_is_signed_can_be_signed_again(tmp_path: Path, keys: Keys) -> None:
    sealed = Sealed(tmp_path)
    honest = sealed.data["lock_digest"]
    sealed.forge(lambda data: data.update(lock_digest="ab" * 32))
    with fails("report-not-holding", ExitCode.INTEGRITY, match="fails its check"):
        sign_report(sealed.folder, keys.own)
    assert not (sealed.folder / SIGNATURE).exists()
    sealed.forge(lambda data: data.update(lock_digest=honest))
    sign_report(sealed.folder, keys.other)
    sign_report(sealed.folder, keys.own)
    assert problems(sealed.folder, keys.signers) == set()


def test_a_key_that_is_none_and_signers_that_cannot_be_read_are_coded_errors(copy: Path, keys: Keys) -> None:
    with fails("report-not-signed"):
        sign_report(copy, keys.signers)
    assert problems(copy, keys.signers) == set()
    with fails("file-unreadable"):
        verify_report(copy, signers=copy / "none")


def put(folder: Path, signature: bytes) -> None:
    """Replace the signature, in the page too, as a careful forger does."""
    old = (folder / SIGNATURE).read_bytes()
    (folder / SIGNATURE).write_bytes(signature)
    page = folder / "report.html"
    page.write_bytes(page.read_bytes().replace(old, signature))


def edit(folder: Path, old: bytes, new: bytes) -> None:
    put(folder, (folder / SIGNATURE).read_bytes().replace(old, new, 1))


def swapped(folder: Path, keys: Keys) -> None:
    """The right signature of the same author over another report."""
    other = Sealed(folder.parent / "other")
    other.forge(lambda data: data["warnings"].append("another"))
    sign_report(other.folder, keys.own)
    put(folder, (other.folder / SIGNATURE).read_bytes())


def evidence_changed(folder: Path, _: Keys) -> None:
    """A number that contradicts nothing, in the file and in the pages."""
    for name in ("evidence.json", "report.html", "report.md"):
        path = folder / name
        path.write_bytes(path.read_bytes().replace(b"115472.1", b"115999.1").replace(b"115,472", b"115,999"))


def unsigned_page(folder: Path, _: Keys) -> None:
    page = folder / "report.html"
    block = r'<script type="text/plain" id="signature">.*?</script>\n'
    page.write_text(re.sub(block, "", page.read_text(), flags=re.DOTALL))


def other_plan(folder: Path, _: Keys) -> None:
    plan = folder / "plan.json"
    plan.write_bytes(plan.read_bytes().replace(b"gpu01", b"gpu09"))


REJECTED: dict[str, tuple[Callable[[Path, Keys], object], str]] = {
    "a tampered number": (evidence_changed, "report-signature-invalid"),
    "a swapped signature": (swapped, "report-signature-invalid"),
    "an unknown key": (lambda f, k: sign_report(f, k.other), "report-signer-unknown"),
    "an edited signature": (lambda f, k: edit(f, b"U1NIU0lH", b"U1NIU0lI"), "report-signature-invalid"),
    "a second signature": (lambda f, k: put(f, (f / SIGNATURE).read_bytes() * 2), "report-signature-invalid"),
    "an unsigned line": (lambda f, k: edit(f, b"-----BEGIN", b"all good\n-----BEGIN"), "report-signature-invalid"),
    "a line broken elsewhere": (lambda f, k: edit(f, b"U1NI", b"U1NI\n"), "report-signature-invalid"),
    "no signature inside": (lambda f, k: put(f, b"AA==\n"), "report-signature-invalid"),
    "a signature taken away": (lambda f, k: (f / SIGNATURE).unlink(), "report-unsigned"),
    "a signature taken out of the page": (unsigned_page, "report-page-of-another"),
    "a file that the evidence names": (other_plan, "report-file-differs"),
}


@pytest.mark.parametrize(("change", "code"), REJECTED.values(), ids=REJECTED)
def test_a_signed_report_that_was_changed_is_rejected_by_name(
    copy: Path, keys: Keys, change: Callable[[Path, Keys], object], code: str
) -> None:
    change(copy, keys)
    assert code in problems(copy, keys.signers)


def test_an_unsigned_line_that_ends_its_element_in_the_page_is_told_of_signature_and_page(
    copy: Path, keys: Keys
) -> None:
    edit(copy, b"U1NIU0lH", b"U1NI</script><h1>all passed</h1>")
    assert "<h1>all passed</h1>" in (copy / "report.html").read_text()
    assert problems(copy, keys.signers) == {"report-signature-invalid", "report-page-differs"}


def test_an_older_report_of_the_same_author_is_not_the_one_that_was_asked_for(copy: Path, keys: Keys) -> None:
    asked = "20260309T100000Z-aaaa"
    found = verify_report(copy, run=asked, signers=keys.signers)[1]
    assert {each.code for each in found if each.kind == "problem"} == {"report-run-differs"}
    replayed = copy.rename(copy.parent / asked)
    assert problems(replayed, keys.signers) == {"report-run-differs"}


def test_signers_without_the_key_or_for_something_else_are_nobody(copy: Path, keys: Keys, tmp_path: Path) -> None:
    assert problems(copy, keys.empty) == {"report-signer-unknown"}
    for number, option in enumerate(('namespaces="git"', 'valid-before="20200101"')):
        signers = tmp_path / f"signers-{number}"
        signers.write_text(f"{NAME} {option} {keys.own.with_suffix('.pub').read_text()}")
        assert problems(copy, signers) == {"report-signer-unknown"}


def test_a_copy_of_a_signed_report_holds_as_the_report_does(signed: Path, keys: Keys, tmp_path: Path) -> None:
    written, left = copy_report(signed, tmp_path / "copy")
    assert (len(written), left) == (12, [])
    assert problems(tmp_path / "copy", keys.signers) == set()
    (tmp_path / "copy" / "plan.json").unlink()
    left = copy_report(tmp_path / "copy", tmp_path / "again")[1]
    assert left == ["plan.json is missing from the report"]


def flipped(folder: Path, chance: random.Random) -> tuple[Path, bytes]:
    """A file of the report with one bit changed, and what it was; of the journal what the evidence covers."""
    told = json.loads((folder / "evidence.json").read_text())
    covered = {each["path"]: each["bytes"] for each in told["attachments"]}
    path = chance.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    before = path.read_bytes()
    place = chance.randrange(covered.get(path.relative_to(folder).as_posix(), len(before)))
    changed = bytearray(before)
    changed[place] ^= 1 << chance.randrange(8)
    path.write_bytes(changed)
    return path, before


def is_accepted(folder: Path, signers: Path) -> bool:
    try:
        return not problems(folder, signers)
    except EnvbuildError as error:
        assert error.exit_code == ExitCode.INTEGRITY
        return False


def test_no_flipped_bit_of_a_signed_report_is_ever_accepted_and_the_original_always(copy: Path, keys: Keys) -> None:
    chance = random.Random(0)
    for number in range(20):
        path, before = flipped(copy, chance)
        assert not is_accepted(copy, keys.signers), f"{path.name}, number {number}"
        path.write_bytes(before)
    assert is_accepted(copy, keys.signers)
