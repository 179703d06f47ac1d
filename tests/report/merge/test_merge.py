"""Parts of one run as one report: what they say and no more, each part untouched, and whatever was done to it told."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.report_cmd import report as command
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.kit.make import Wanted, make_kit
from envbuild.kit.verify import verify_kit
from envbuild.model.evidence import Evidence
from envbuild.report.copies import copy_report
from envbuild.report.merge.evidence import PartEvidence
from envbuild.report.merge.evidence import merged as merged_of
from envbuild.report.merge.write import merge_reports
from envbuild.report.recheck.verify import verify_report
from envbuild.report.render import render_html, render_json, render_markdown
from envbuild.report.sign import sign_report
from envbuild.report.view import make_view
from tests.report.recheck.test_verify import add, cut
from tests.report.sealed import RUN, Sealed
from tests.support.need import need

OTHER = "20260302T100000Z-5e5e"


def pair(top: Path) -> tuple[Sealed, Sealed]:
    """Parts of two nodes and of one."""
    return Sealed(top), Sealed(top, 1, first=3, run=OTHER)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("parts")
    one, other = pair(top)
    merge_reports([other.folder, one.folder], top / "merged")
    return top / "merged"


@pytest.fixture
def merged(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "merged")


def problems(path: Path, **more: Any) -> dict[str, str]:
    return {each.code: each.says for each in verify_report(path, **more)[1] if each.kind == "problem"}


def unchecked(path: Path) -> str:
    return "\n".join(each.says for each in verify_report(path)[1] if each.kind == "not-checked")


def test_a_merged_report_holds_and_says_what_merging_cannot_show(made: Path) -> None:
    report, findings = verify_report(made)
    assert [each for each in findings if each.kind == "problem"] == []
    said = [each.says for each in findings if each.topic == "parts"]
    assert said[0] == "each of 2 holds by itself, 0 of them signed"
    assert any(text.startswith("every node, check and figure is that of its part") for text in said)
    assert "no other part was left out" in unchecked(made) and "how it ended" not in unchecked(made)
    assert [each.node for each in report.evidence.nodes] == ["gpu01", "gpu02", "gpu03"]
    assert [(part.run, part.nodes) for part in report.evidence.parts] == [
        (RUN, ("gpu01", "gpu02")),
        (OTHER, ("gpu03",)),
    ]
    assert report.evidence.equality is not None
    assert report.evidence.equality.nodes == ("gpu01", "gpu02", "gpu03")
    assert report.html is not None
    assert "no other part was left out" in report.html
    assert "merged from 2 reports" in report.html
    assert f"{RUN} (gpu[01-02]), {OTHER} (gpu03)" in report.html


def test_of_many_parts_the_page_names_a_few(made: Path) -> None:
    told = json.loads((made / "evidence.json").read_text())
    rows = make_view(Evidence.from_plain({**told, "parts": told["parts"] * 32})).summary
    assert dict(rows)["Parts"].count(RUN) == 2
    assert dict(rows)["Parts"].endswith(f"{OTHER} (gpu03) and 60 more")


def test_the_order_of_the_parts_changes_nothing(made: Path, tmp_path: Path) -> None:
    merge_reports([made / "parts" / RUN, made / "parts" / OTHER], tmp_path / "again")
    assert (tmp_path / "again" / "evidence.json").read_bytes() == (made / "evidence.json").read_bytes()


def test_parts_keep_their_bytes_and_their_signatures(tmp_path: Path) -> None:
    key = tmp_path / "key"
    need("ssh-keygen")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    signers = tmp_path / "signers"
    signers.write_text(f'ada@example.org namespaces="envbuild" {key.with_suffix(".pub").read_text()}')
    one, other = pair(tmp_path)
    sign_report(one.folder, key)
    merge_reports([one.folder, other.folder], tmp_path / "merged")
    part = tmp_path / "merged" / "parts" / RUN
    for name in ("evidence.json", "evidence.dsse.json", "plan.json", "attachments/lock.toml"):
        assert (part / name).read_bytes() == (one.folder / name).read_bytes(), name
    assert any("1 of them signed" in each.says for each in verify_report(tmp_path / "merged")[1])
    assert problems(part, signers=signers) == {}
    sign_report(tmp_path / "merged", key)
    assert problems(tmp_path / "merged", signers=signers) == {}
    stranger = tmp_path / "strangers"
    stranger.write_text("")
    assert set(problems(tmp_path / "merged", signers=stranger)) == {"report-signer-unknown"}


def reverb(sealed: Sealed) -> None:
    sealed.data["command"] = ["envbuild", "smoke", "--target", "lab"]
    events = [{"kind": "run-started", "data": {"verb": "smoke", "command": sealed.data["command"]}}]
    events.append({"kind": "node-finished", "node": "gpu03", "data": {"status": "ok", "exit": 0}})
    sealed.attach("journal", "journal.jsonl", b"".join(json.dumps(event).encode() + b"\n" for event in events))
    sealed.forge(lambda data: data.update(verb="smoke"))


def change_lock(sealed: Sealed) -> None:
    text = (sealed.folder / "attachments" / "lock.toml").read_bytes() + b"# another\n"
    sealed.attach("lock", "attachments/lock.toml", text)
    sealed.forge(lambda data: data.update(lock_digest=hashlib.sha256(text).hexdigest()))


REFUSED: dict[str, tuple[Callable[[Sealed], object], str, int, str]] = {
    "another lock": (change_lock, "merge-differs", 7, "lock digest"),
    "another verb": (reverb, "merge-differs", 7, "verb"),
    "another target": (lambda s: s.forge(lambda d: d.update(target="other")), "merge-differs", 7, "target"),
    "a part that does not hold": (lambda s: s.forge(lambda d: d.update(exit=1)), "report-not-holding", 5, OTHER),
    "a part with a truncated file": (lambda s: cut(s.folder / "plan.json"), "report-not-holding", 5, OTHER),
}


@pytest.mark.parametrize(("change", "code", "exit_code", "name"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_part_of_one_run_is_refused_and_nothing_is_written(
    tmp_path: Path, change: Callable[[Sealed], object], code: str, exit_code: int, name: str
) -> None:
    one, other = pair(tmp_path)
    change(other)
    error = refused([one.folder, other.folder], tmp_path / "merged")
    assert (error.code, error.exit_code) == (code, exit_code)
    assert name in error.what
    assert not (tmp_path / "merged").exists()


def refused(paths: list[Path], output: Path) -> EnvbuildError:
    with pytest.raises(EnvbuildError) as caught:
        merge_reports(paths, output)
    return caught.value


def test_a_node_a_run_and_a_gpu_are_taken_once(tmp_path: Path, made: Path) -> None:
    one, other = pair(tmp_path)
    same = Sealed(tmp_path, 1, first=2, run="20260302T100000Z-6f6f")
    assert refused([one.folder, same.folder], tmp_path / "m").what == f"gpu02 is in {RUN} and in {same.folder.name}"
    assert refused([one.folder, other.folder, one.folder], tmp_path / "m").code == "merge-part-twice"
    assert refused([one.folder], tmp_path / "m").code == "merge-too-few"
    assert refused([made, other.folder], tmp_path / "m").code == "merge-nested"
    for sealed in (one, other):
        sealed.forge(lambda data: data["nodes"][0]["facts"]["gpus"][3].update(uuid="GPU-1234"))
    error = refused([one.folder, other.folder], tmp_path / "m")
    assert (error.code, "GPU-1234" in error.what) == ("merge-node-twice", True)
    (tmp_path / "m").mkdir()
    assert refused([made / "parts" / RUN, made / "parts" / OTHER], tmp_path / "m").code == "output-exists"


def test_other_variants_of_one_lock_are_refused(made: Path) -> None:
    parts = [verify_report(made / "parts" / run)[0].evidence for run in (RUN, OTHER)]
    odd = parts[1].nodes[0].model_copy(update={"variant_digest": "ab" * 32})
    parts[1] = parts[1].model_copy(update={"nodes": (odd,)})
    with pytest.raises(EnvbuildError, match="other variants"):
        merged_of([PartEvidence("0" * 64, parts[0]), PartEvidence("1" * 64, parts[1])], "0.1.0")


def test_nodes_that_ran_locally_are_called_by_their_host_and_steps_count_from_the_first_part(made: Path) -> None:
    step = {"name": "install", "status": "changed", "began": 1.5, "seconds": 4.0}
    parts = []
    for number, run in enumerate((RUN, OTHER)):
        data = verify_report(made / "parts" / run)[0].evidence.to_json_dict()
        data["nodes"] = [{**data["nodes"][0], "node": "localhost", "steps": [step]}]
        data |= {"equality": None, "started": f"2026-03-02T10:00:{number * 20:02}Z"}
        parts.append(PartEvidence(f"{number}" * 64, Evidence.from_plain(data)))
    found = merged_of(parts, "0.1.0")
    assert [(node.node, node.steps[0].began) for node in found.nodes] == [("gpu01", 1.5), ("gpu03", 21.5)]


def forge(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the merged evidence with care: pages and digests that hold."""
    data = json.loads((folder / "evidence.json").read_text())
    change(data)
    evidence = Evidence.from_plain(data)
    (folder / "evidence.json").write_text(render_json(evidence))
    (folder / "report.html").write_text(render_html(evidence))
    (folder / "report.md").write_text(render_markdown(evidence))


def forge_part(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the part RUN, and the digests of the merged evidence after it."""
    path = folder / "parts" / RUN / "evidence.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    text = path.read_bytes()
    row = {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)}

    def listed(merged: dict[str, Any]) -> None:
        next(part for part in merged["parts"] if part["run"] == RUN)["sha256"] = row["sha256"]
        next(item for item in merged["attachments"] if item["path"].endswith(f"{RUN}/evidence.json")).update(row)

    forge(folder, listed)


def nest(data: dict[str, Any]) -> None:
    """A part that says to be merged itself, with a figure that its checks contradict."""
    row = {key: data[key] for key in ("run", "started", "finished", "exit")}
    names = [node["node"] for node in data["nodes"]]
    data["parts"] = [{**row, "run": OTHER, "sha256": "0" * 64, "nodes": names}]
    data["nodes"][0]["checks"][-1]["metrics"][0].update(median=9e9)


def without(run: str, change: Callable[[Path], object]) -> Callable[[Path], object]:
    """The change, and the part `run` not there."""
    return lambda folder: (change(folder), shutil.rmtree(folder / "parts" / run))


def drop(data: dict[str, Any]) -> None:
    data["nodes"].pop()
    data["equality"]["nodes"].pop()


def swap_parts(folder: Path) -> None:
    for name in (RUN, OTHER):
        (folder / "parts" / name).rename(folder / "parts" / f"{name}x")
    (folder / "parts" / f"{RUN}x").rename(folder / "parts" / OTHER)
    (folder / "parts" / f"{OTHER}x").rename(folder / "parts" / RUN)


FORGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a node left out": (lambda f: forge(f, drop), "report-merge-differs"),
    "a better figure": (
        lambda f: forge(f, lambda d: d["nodes"][0]["checks"][-1]["metrics"][0].update(n=1000)), "report-merge-differs",
    ),
    "a part that is not told": (lambda f: forge(f, lambda d: d["parts"].pop()), "report-merge-differs"),
    "nodes of another part": (
        lambda f: forge(f, lambda d: d["parts"][0].update(nodes=["gpu03"])), "report-merge-differs",
    ),
    "another digest of a part": (
        lambda f: forge(f, lambda d: d["parts"][0].update(sha256="0" * 64)), "report-part-differs",
    ),
    "a changed part": (lambda f: add(f / "parts" / RUN / "evidence.json"), "report-part-differs"),
    "a truncated part": (lambda f: cut(f / "parts" / RUN / "evidence.json"), "evidence-invalid"),
    "a file more in a part": (lambda f: add(f / "parts" / RUN / "more.json"), "report-file-unlisted"),
    "a changed plan of a part": (lambda f: add(f / "parts" / OTHER / "plan.json"), "report-file-differs"),
    "parts that changed places": (swap_parts, "report-run-differs"),
    "a merged part": (lambda f: forge_part(f, nest), "report-merge-differs"),
    "a merged part, one missing": (without(OTHER, lambda f: forge_part(f, nest)), "report-merge-differs"),
    "what a merged part says": (without(OTHER, lambda f: forge_part(f, nest)), "report-metric-invalid"),
    "a better figure, one missing": (
        without(OTHER, lambda f: forge(f, lambda d: d["nodes"][0]["checks"][-1]["metrics"][0].update(n=1000))),
        "report-merge-differs",
    ),
    "an exit code of a part, one missing": (
        without(OTHER, lambda f: forge(f, lambda d: d["parts"][0].update(exit=1))), "report-merge-differs",
    ),
    "a node of no part, one missing": (
        without(RUN, lambda f: forge(f, lambda d: d["parts"][0]["nodes"].pop())), "report-merge-differs",
    ),
    "a part without time zone": (
        lambda f: forge_part(f, lambda d: d.update(started=d["started"].rstrip("Z"))), "report-times-differ",
    ),
    "a part without time zone, one missing": (
        without(OTHER, lambda f: forge_part(f, lambda d: d.update(started=d["started"].rstrip("Z")))),
        "report-times-differ",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "code"), FORGED.values(), ids=FORGED)
def test_what_was_done_to_a_merged_report_is_told_by_name(
    merged: Path, change: Callable[[Path], object], code: str
) -> None:
    change(merged)
    assert code in problems(merged)


@pytest.mark.parametrize("missing", [RUN, OTHER])
def test_a_merged_report_without_one_of_its_parts_holds_and_says_what_was_not_compared(
    merged: Path, missing: str
) -> None:
    shutil.rmtree(merged / "parts" / missing)
    assert problems(merged) == {}
    assert f"not beside the merged report: {missing}; " in unchecked(merged)
    says = [each.says for each in verify_report(merged)[1] if each.kind == "checked" and each.topic == "parts"]
    assert "every node, check and figure of 1 part is that of its part" in says


def test_a_merged_page_alone_says_that_its_parts_are_not_there(made: Path, tmp_path: Path) -> None:
    shutil.copy(made / "report.html", tmp_path / "mailed.html")
    assert problems(tmp_path / "mailed.html") == {}
    assert f"not beside the merged report: {RUN}, {OTHER}" in unchecked(tmp_path / "mailed.html")


def test_a_merged_report_is_copied_published_and_put_into_a_kit(made: Path, tmp_path: Path) -> None:
    copy_report(made, tmp_path / "copy")
    assert problems(tmp_path / "copy") == {}
    assert (tmp_path / "copy" / "parts" / OTHER / "plan.json").is_file()
    copy_report(made, tmp_path / "public", publish=True)
    assert problems(tmp_path / "public") == {}
    assert "gpu03" not in (tmp_path / "public" / "evidence.json").read_text()
    assert "not beside the merged report" in unchecked(tmp_path / "public")
    for name, publish in (("kit", True), ("full.tar", False)):
        make_kit(made, tmp_path / name, Wanted(publish=publish))
        assert [each for each in verify_kit(tmp_path / name)[1] if each.kind == "problem"] == []


def test_the_command_merges_and_its_report_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = pair(tmp_path)
    monkeypatch.chdir(tmp_path)
    command.main(["merge", str(one.folder), str(other.folder), "--json"], standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    assert (told["parts"], told["nodes"]) == (2, 3)
    assert told["report"] == f"merged-torch-smoke-{told['run']}"
    assert command.main(["verify", told["report"]], standalone_mode=False) == ExitCode.OK
