"""A report that was changed is rejected by name; an honest one holds, and says what nobody could check."""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.lock import Variant, canonical_json
from envbuild.report import evidence_file
from envbuild.report.recheck.contents import Attached, check_contents
from envbuild.report.recheck.opened import lines
from envbuild.report.recheck.verify import verify_report
from tests.report import samples
from tests.report.sealed import RUN, Sealed
from tests.support.fails import fails
from tests.support.plain import changed, places

Data = dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Sealed(tmp_path_factory.mktemp("made")).folder


@pytest.fixture
def sealed(tmp_path: Path) -> Sealed:
    return Sealed(tmp_path)


def problems(path: Path, **more: Any) -> set[str]:
    """The codes of what does not hold."""
    return {each.code for each in verify_report(path, **more)[1] if each.kind == "problem"}


def unchecked(path: Path) -> set[str]:
    return {each.topic for each in verify_report(path)[1] if each.kind == "not-checked"}


def test_an_honest_report_holds_as_folder_as_evidence_and_as_page(made: Path) -> None:
    for path in (made, made / "evidence.json", made / "report.html"):
        assert problems(path) == set()
    assert unchecked(made) == {"signature", "root", "nodes", "figures"}


def test_a_page_alone_holds_and_what_lacks_beside_the_report_or_the_page_is_named(made: Path, tmp_path: Path) -> None:
    alone = tmp_path / "mailed.html"
    shutil.copy(made / "report.html", alone)
    assert problems(alone) == set()
    assert unchecked(alone) >= {"files", "lock", "packages", "root", "nodes", "variants"}
    report, findings = verify_report(alone)
    text = "\n".join(line for line, _ in lines(report, findings))
    assert "could not be checked" in text.splitlines()[0]
    assert "not beside the report: attachments/lock.toml" in text.replace("\n", " ").replace("  ", "")
    copy = shutil.copytree(made, tmp_path / made.name)
    (copy / "report.html").unlink()
    assert unchecked(copy) == {*unchecked(made), "page"}


def first(data: Data) -> Data:
    node = data["nodes"][0]
    assert isinstance(node, dict)
    return node


def check(data: Data, name: str) -> Data:
    found = next(each for each in first(data)["checks"] if each["name"] == name)
    assert isinstance(found, dict)
    return found


def gpus(metric: str, median: float, details: Data, greatest: float = 447.0) -> Callable[[Data], None]:
    """A check of two GPUs of which one is slower, and its figure."""

    def add(data: Data) -> None:
        found = {"name": metric, "unit": "x", "n": 10, "median": median, "least": 300.0, "greatest": greatest}
        says = {"name": f"smoke/{metric}", "status": "passed", "says": ""}
        first(data)["checks"].append(says | {"metrics": [found], "details": details})

    return add


PRODUCTS = {"gpu0_bf16_tflops": 681.2, "gpu1_bf16_tflops": 316.5}
RATES = {"device_gbps": [389.1, 316.5], "peer_gbps": [[None, 389.1], [316.5, None]]}


# What a careful forger changes, who makes every page and every file digest anew, and the code that names it.
FORGED: dict[str, tuple[Callable[[Data], object], str]] = {
    "a number that is no median": (
        lambda d: check(d, "smoke/training")["metrics"][0].update(median=9e9), "report-figure-differs",
    ),
    "a number below its floor": (
        lambda d: check(d, "smoke/training")["metrics"][0].update(median=93_000.0), "report-floor-missed",
    ),
    "a floor that nothing misses": (
        lambda d: check(d, "smoke/training").update(status="failed", details={"only_floors": True}),
        "report-floor-missed",
    ),
    "a loss curve of another training": (
        lambda d: check(d, "smoke/training")["details"].update(losses=[9.0, 7.0, 5.0]), "report-figure-differs",
    ),
    "a curve that ends elsewhere": (
        lambda d: check(d, "smoke/training")["details"].update(losses=[4.41, 4.4, 4.3]), "report-figure-differs",
    ),
    "a speed that its steps do not give": (
        lambda d: check(d, "smoke/training")["details"].update(
            shape={"batch": 8, "length": 64}, step_seconds=[1.0] * 60
        ), "report-figure-differs",
    ),
    "a figure twice": (
        lambda d: check(d, "smoke/training")["metrics"].append(check(d, "smoke/training")["metrics"][0]),
        "report-figure-differs",
    ),
    "products that the slowest GPU does not have": (
        gpus("gemm_cuda_bf16_tflops", 400.0, PRODUCTS), "report-figure-differs",
    ),
    "copies that the slowest pair of GPUs does not have": (
        gpus("copy_peer_gbps", 389.1, RATES), "report-figure-differs",
    ),
    "another name of the variant": (lambda d: d["variants"][0].update(id="cu126"), "report-variant-differs"),
    "hashes left out": (lambda d: d["variants"][0]["packages"].pop(), "report-package-missing"),
    "an older run": (lambda d: d.update(run="20260301T100000Z-4f2a"), "report-run-differs"),
    "another lock": (lambda d: d.update(lock_digest="ab" * 32), "report-lock-differs"),
    "another stack": (lambda d: d.update(stack="metaseq"), "report-lock-of-another-stack"),
    "a variant that is not held": (lambda d: first(d).update(variant_digest="ef" * 32), "report-variant-unknown"),
    "another package version": (lambda d: first(d)["packages"].update(sympy="0.1"), "report-package-not-of-lock"),
    "a package left out": (lambda d: first(d)["packages"].pop("sympy"), "report-package-missing"),
    "another package hash": (
        lambda d: d["variants"][0]["packages"][0].update(sha256="12" * 32), "report-package-not-of-lock",
    ),
    "a source that is not locked": (
        lambda d: first(d).update(sources=[{"name": "apex", "commit": "0" * 40}]), "report-source-differs",
    ),
}  # fmt: skip


HONEST = (("gemm_cuda_bf16_tflops", PRODUCTS), ("copy_device_gbps", RATES), ("copy_peer_gbps", RATES))


def test_a_gpu_that_is_slower_than_all_that_the_figure_is_of_is_no_forgery(sealed: Sealed) -> None:
    sealed.forge(lambda data: [gpus(metric, 316.5, details)(data) for metric, details in HONEST])
    assert problems(sealed.folder) == set()


@pytest.mark.parametrize(("change", "code"), FORGED.values(), ids=FORGED)
def test_evidence_that_was_forged_with_care_is_rejected_by_name(
    sealed: Sealed, change: Callable[[Data], object], code: str
) -> None:
    sealed.forge(change)
    assert code in problems(sealed.folder)


def said(path: Path, topic: str) -> dict[str, list[str]]:
    """What is said of a topic, by kind."""
    found = [each for each in verify_report(path)[1] if each.topic == topic]
    return {each.kind: [one.says for one in found if one.kind == each.kind] for each in found}


def test_metrics_without_a_floor_are_not_said_to_be_compared_with_one(sealed: Sealed) -> None:
    assert said(sealed.folder, "floors") == {"checked": ["2 of 4 metrics against their floors"]}
    for node in sealed.data["nodes"]:
        for metric in (metric for each in node["checks"] for metric in each.get("metrics", ())):
            metric.pop("floor", None)
    sealed.write()
    assert said(sealed.folder, "floors") == {"not-checked": ["none of 4 metrics has one"]}


def test_a_root_that_the_list_of_files_does_not_give_is_rejected(sealed: Sealed) -> None:
    path = next(iter(sealed.files))
    sealed.reforge_files(lambda files: files.update({path: ["file", "00" * 32, 100, 0]}))
    assert problems(sealed.folder) == {"report-root-differs"}


def test_a_lock_changed_by_hand_and_one_of_another_profile_are_rejected(sealed: Sealed) -> None:
    path = sealed.folder / "attachments" / "lock.toml"
    before = path.read_bytes()
    sealed.reattach(
        "lock", "attachments/lock.toml", before.replace(sealed.variant.packages[0].version.encode(), b"0.0.1")
    )
    assert problems(sealed.folder) >= {"report-lock-invalid", "report-lock-differs"}
    sealed.attach("lock", "attachments/lock.toml", before)
    profile = json.loads((sealed.folder / "attachments" / "profile.json").read_text())
    profile["contents"]["deviations"] = ["torch from another source"]
    sealed.reattach("profile", "attachments/profile.json", canonical_json(profile))
    assert problems(sealed.folder) == {"report-profile-differs"}


def test_a_list_of_files_that_unpacks_to_100_megabytes_is_rejected(sealed: Sealed) -> None:
    sealed.reattach("files", "attachments/files.json.gz", gzip.compress(b" " * 100_000_000, 1), sealed.root)
    assert problems(sealed.folder) == {"report-file-invalid"}


def test_a_variant_that_is_not_of_the_lock_is_rejected(sealed: Sealed) -> None:
    other = sealed.variant.model_copy(update={"packages": sealed.variant.packages[1:]})
    sealed.reattach("variant", "attachments/variant.json", canonical_json(other.to_json_dict()), sealed.variant.digest)
    assert "report-variant-differs" in problems(sealed.folder)
    digest = other.compute_digest("torch-smoke", "exact")
    other = other.model_copy(update={"digest": digest})
    sealed.reattach("variant", "attachments/variant.json", canonical_json(other.to_json_dict()), digest)
    assert "report-variant-not-of-lock" in problems(sealed.folder)


# What is done to the files of a report, and the code that names it.
TOUCHED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a truncated attachment": (lambda f: cut(f / "attachments" / "lock.toml"), "report-file-truncated"),
    "a changed attachment": (lambda f: swap(f / "plan.json", b"gpu01", b"gpu99"), "report-file-differs"),
    "a longer attachment": (lambda f: add(f / "attachments" / "variant.json"), "report-file-differs"),
    "a changed journal": (lambda f: swap(f / "journal.jsonl", b"ok", b"no"), "report-file-differs"),
    "a file that nobody lists": (lambda f: add(f / "attachments" / "more.json"), "report-file-unlisted"),
    "a link instead of a file": (lambda f: link(f / "plan.json"), "report-file-unsafe"),
    "a folder instead of a file": (lambda f: folder(f / "plan.json"), "report-file-unsafe"),
    "a page that shows another number": (lambda f: swap(f / "report.html", b"<td>", b"<td>9"), "report-page-differs"),
    "a page with other evidence": (
        lambda f: swap(f / "report.html", b'"exit":0', b'"exit":1'), "report-page-of-another",
    ),
    "a page without its evidence": (
        lambda f: swap(f / "report.html", b'id="evidence"', b'id="other"'), "report-page-invalid",
    ),
    "a page with a section more": (
        lambda f: swap(f / "report.html", b"</main>", b"<p>All good.</p></main>"), "report-page-differs",
    ),
    "half a page": (lambda f: half(f / "report.html"), "report-page-invalid"),
    "another text beside it": (lambda f: add(f / "report.md"), "report-page-differs"),
}  # fmt: skip


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def half(path: Path) -> None:
    text = path.read_text("utf-8")  # half a character would be refused as no text at all
    path.write_text(text[: len(text) // 2], "utf-8")


def add(path: Path) -> None:
    path.write_bytes((path.read_bytes() if path.exists() else b"") + b"\n")


def swap(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


def link(path: Path) -> None:
    path.rename(path.with_suffix(".kept"))
    path.symlink_to(path.with_suffix(".kept"))


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(("change", "code"), TOUCHED.values(), ids=TOUCHED)
def test_files_that_were_touched_are_rejected_by_name(
    made: Path, tmp_path: Path, change: Callable[[Path], object], code: str
) -> None:
    copy = tmp_path / RUN
    shutil.copytree(made, copy)
    change(copy)
    assert problems(copy) == {code}


def test_a_report_in_the_folder_of_another_run_or_of_another_than_the_asked_one_is_rejected(
    made: Path, tmp_path: Path
) -> None:
    shutil.copytree(made, tmp_path / "20260303T100000Z-aaaa")
    assert problems(tmp_path / "20260303T100000Z-aaaa") == {"report-run-differs"}
    assert problems(made, run="20260303T100000Z-aaaa") == {"report-run-differs"}
    assert problems(made, run=RUN) == set()


def test_the_verdict_on_a_report_of_a_failed_run_says_that_the_run_failed_and_why(made: Path, sealed: Sealed) -> None:
    def fail(data: Data) -> None:
        data.update(exit=3)
        first(data)["checks"][0].update(status="failed", says="numpy fails\x1b[2J")

    assert "failed" not in lines(*verify_report(made))[0][0]
    sealed.forge(fail)
    report, _ = verify_report(sealed.folder)
    for findings in ([], verify_report(sealed.folder)[1]):
        text, style = lines(report, findings)[0]
        assert ". The run itself failed (exit 3): torch-smoke (exact) fails 1 check: record: numpy fails\\x1b" in text
        assert "green" not in style


def test_what_a_report_says_does_not_act_on_the_terminal(sealed: Sealed) -> None:
    sealed.forge(lambda data: data.update(profile="\x1b[2J\u202egnp.exe"))
    report, findings = verify_report(sealed.folder)
    text = "".join(line for line, _ in lines(report, findings))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\x1b[2J" in text
    assert "hint: `envbuild help report-" in text


def test_the_evidence_in_a_page_is_the_file_byte_for_byte_and_cannot_leave_its_element(sealed: Sealed) -> None:
    sealed.forge(lambda data: first(data)["checks"][0].update(says="</script><script>alert(1)</script><!--"))
    html = (sealed.folder / "report.html").read_text()
    assert evidence_file.carried(html, sealed.folder)[0] == (sealed.folder / "evidence.json").read_bytes()
    assert html.count("<script") == html.count("</script") == 1
    assert problems(sealed.folder) == set()


@pytest.mark.parametrize(("of", "least"), [("report-", 20), ("kit-", 8)])
def test_every_code_is_in_the_documentation(of: str, least: int) -> None:
    package = Path(__file__).parents[3] / "envbuild"
    files = [*(package / "report" / "recheck").glob("*.py"), *(package / "kit").glob("*.py")]
    codes = {code for path in files for code in re.findall(rf'"({of}[a-z-]+[a-z])"', path.read_text())}
    told = (Path(__file__).parents[3] / "docs" / "reports.md").read_text()
    assert len(codes) > least
    assert sorted(code for code in codes if f"`{code}`" not in told) == []


NASTY = (None, True, -1, 10**18, 1e308, "", "\x1b[2J", "../../x", "0" * 64, [], {}, [[]], {"a": {"b": []}})


def test_whatever_a_report_holds_it_is_judged_or_refused_and_nothing_breaks(made: Path, tmp_path: Path) -> None:
    good = json.loads((made / "evidence.json").read_text())
    _, *ways = places(good)
    chance = random.Random(15)
    path = tmp_path / "evidence.json"
    shutil.copytree(made / "attachments", tmp_path / "attachments")
    judged = 0
    for _ in range(80):
        data = changed(good, chance.choice(ways), chance.choice(NASTY))
        path.write_text(json.dumps(data))
        try:
            verify_report(path)
            judged += 1
        except EnvbuildError as error:
            assert error.exit_code == ExitCode.INTEGRITY
    assert 5 < judged < 80


def conda_variant() -> Variant:
    """A variant of two archives and one wheel."""
    archive = {"build": "h0_0", "channel": "conda-forge", "subdir": "linux-64", "sha256": "ab" * 32}
    names = (("python", "3.11.7"), ("numpy", "1.26.4"))
    packages = [{**archive, "name": n, "version": v, "file": f"{n}-{v}-h0_0.conda"} for n, v in names]
    wheel = {"name": "alpha", "version": "1.0", "files": [{"file": "alpha-1.0-py3-none-any.whl", "sha256": "cd" * 32}]}
    plain = {"id": "conda", "digest": "0" * 64, "engine": "conda", "python": "3.11", "packages": [wheel]}
    made = Variant.from_plain({**plain, "conda": {"packages": packages}})
    return made.model_copy(update={"digest": made.compute_digest("small", "exact")})


@pytest.mark.parametrize(
    ("packages", "sha256", "codes"),
    [
        ({"python": "3.11.7 h0_0 (conda)", "numpy": "1.26.4 h0_0 (conda)", "alpha": "1.0"}, "ab" * 32, set()),
        ({"numpy": "1.26.4", "alpha": "1.0"}, "ab" * 32, set()),  # a verb that only looks knows no archives
        ({"python": "3.11.7 h0_0 (conda)", "alpha": "1.0"}, "ab" * 32, {"report-package-missing"}),
        ({"numpy": "1.26.5 h0_0 (conda)", "python": "3.11.7 h0_0 (conda)", "alpha": "1.0"}, "ab" * 32,
         {"report-package-not-of-lock"}),
        ({"alpha": "1.0"}, "ef" * 32, {"report-package-not-of-lock"}),
    ],
)  # fmt: skip
def test_archives_of_conda_are_compared_with_the_lock_too(
    packages: dict[str, str], sha256: str, codes: set[str]
) -> None:
    variant = conda_variant()
    row = {"name": "numpy", "version": "1.26.4", "file": "numpy-1.26.4-h0_0.conda", "index": "conda-forge"}
    others = [
        {"name": "python", "version": "3.11.7", "file": "python-3.11.7-h0_0.conda", "index": "conda-forge",
         "sha256": "ab" * 32},
        {"name": "alpha", "version": "1.0", "file": "alpha-1.0-py3-none-any.whl", "index": "pypi", "sha256": "cd" * 32},
    ]  # fmt: skip
    told = samples.evidence(
        samples.node(variant_digest=variant.digest, packages=packages, sources=[], resolution=None),
        stack="small",
        variants=[{"id": "conda", "digest": variant.digest, "packages": [{**row, "sha256": sha256}, *others]}],
    )
    found = check_contents(told, Attached(variants={variant.digest: variant}))
    assert {each.code for each in found if each.kind == "problem"} == codes


def test_sixty_four_nodes_and_15000_files_are_checked_in_a_second_of_one_core(tmp_path: Path) -> None:
    folder = Sealed(tmp_path, 64, 15_000).folder
    begun = time.process_time()
    assert problems(folder) == set()
    assert time.process_time() - begun < 2  # 0.4 s; a laden machine counts more


def test_a_page_with_packed_evidence_is_checked_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envbuild.report.evidence_file._LARGE", 1000)
    sealed = Sealed(tmp_path)
    page = sealed.folder / "report.html"
    assert 'type="application/x-xz;base64" id="evidence"' in page.read_text()
    assert [each for each in verify_report(page)[1] if each.kind == "problem"] == []
    text = page.read_text()
    at = text.index("base64") + 30
    for cut in (at, at + 400):
        page.write_text(text[:cut] + ("A" if text[cut] != "A" else "B") + text[cut + 1 :])
        with fails("report-page-invalid"):
            verify_report(page)


def test_no_changed_sign_of_packed_evidence_is_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envbuild.report.evidence_file._LARGE", 10)
    form, packed = evidence_file.block(b'{"exit": 0}\n' * 90)
    element = f'<script type="{form}" id="evidence">\n%s\n</script>'
    good = evidence_file.carried(element % packed, Path("page"))[0]
    chance = random.Random(15)
    signs = "".join(sorted(set(packed) | {" ", "\n", "="}))
    for at in range(len(packed) + 1):
        for other in (packed[:at] + chance.choice(signs.replace(packed[at : at + 1], "")) + packed[at + 1 :],
                      packed[:at] + chance.choice(signs) + packed[at:]):  # fmt: skip
            if other == packed:
                continue
            try:
                assert evidence_file.carried(element % other, Path("page"))[0] != good
            except EnvbuildError as error:
                assert error.code == "report-page-invalid"
