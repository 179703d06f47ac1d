"""What is no report, or a hostile one, is a coded error in an instant."""

from __future__ import annotations

import base64
import json
import lzma
import os
from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.report.recheck.verify import verify_report
from tests.report.samples import evidence
from tests.support.fails import fails

GOOD = json.dumps(evidence().to_json_dict())


def edited(old: str, new: str) -> bytes:
    """The evidence with the first `old` replaced."""
    assert old in GOOD
    return GOOD.replace(old, new, 1).encode("utf-8", "surrogateescape")


NESTED = '"phases": {"x": ' + "[" * 80 + "]" * 80 + ", "
OUT = '"attachments": [{"kind": "plan", "path": "../plan.json", "sha256": "%s", "bytes": 1}]' % ("0" * 64)
TWICE = json.loads(GOOD) | {"nodes": 2 * json.loads(GOOD)["nodes"]}
# The bytes of a file, the code of the error, and words of its reason.
BAD = {
    "truncated": (GOOD[:-500].encode(), "evidence-invalid", "ends in the middle"),
    "empty": (b"", "evidence-invalid", "not JSON"),
    "a byte order mark": (b"\xef\xbb\xbf" + GOOD.encode(), "evidence-invalid", "byte order mark"),
    "invalid UTF-8": (edited("torch", "\udcff"), "evidence-invalid", "UTF-8"),
    "a key twice": (edited('"exit"', '"exit": 5, "exit"'), "evidence-invalid", "'exit' is there twice"),
    "NaN": (edited('"exit": 0', '"exit": NaN'), "evidence-invalid", "NaN is not a finite number"),
    "infinity by its size": (edited("31.2", "1e999"), "evidence-invalid", "1e999 is not a finite number"),
    "a number of 5000 digits": (edited('"exit": 0', '"exit": ' + "9" * 5000), "evidence-invalid", "digits"),
    "deeply nested": (b"[" * 200_000, "evidence-invalid", "nested"),
    "nested where it may be": (edited('"phases": {', NESTED), "evidence-invalid", "nested"),
    "a list": (b"[]", "evidence-invalid", "object"),
    "a section that no schema has": (edited('"exit"', '"note": "good", "exit"'), "evidence-invalid", "note"),
    "an attachment that leads out": (edited('"attachments": []', OUT), "evidence-invalid", "attachments.0.path"),
    "no id of a run": (edited(evidence().run, "../../etc"), "evidence-invalid", "run"),
    "a node twice": (json.dumps(TWICE).encode(), "evidence-invalid", "localhost is there twice"),
    "a command of a shell": (edited('["envbuild", "provision"', '["sh", "-c"'), "evidence-invalid", "`envbuild`"),
    "an old schema version": (edited('"2.0"', '"1.4"'), "evidence-invalid", "reads schema 2.0"),
    "no text as schema version": (edited('"2.0"', "2"), "evidence-invalid", "reads schema 2.0"),
    "nothing but a version": (b'{"schema_version": "2.0"}', "evidence-invalid", "more"),
    "a newer major version": (edited('_version": "2.', '_version": "3.'), "evidence-invalid", "newer envbuild"),
    "an older version": (edited('_version": "2.', '_version": "1.'), "evidence-invalid", "this envbuild reads schema"),
    "a page without evidence": (b"<!doctype html><p>hello", "report-page-invalid", "exactly once"),
    "half a page": (b'<html><script type="application/json" id="evidence">\n{', "report-page-invalid", "truncated"),
    "a page that unpacks to 100 MB": (
        b'<html><script type="application/x-xz;base64" id="evidence">\nBOMB\n</script>', "report-page-invalid",
        "larger than",
    ),
    "a page that is no UTF-8": (b"<html>\xff", "report-page-invalid", "UTF-8"),
    "a hundred megabytes": (b"HUGE", "evidence-invalid", "larger than"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "code", "why"), BAD.values(), ids=BAD)
def test_what_is_no_report_is_refused_with_the_reason(tmp_path: Path, data: bytes, code: str, why: str) -> None:
    path = tmp_path / "evidence.json"
    if b"BOMB" in data:
        data = data.replace(b"BOMB", base64.b64encode(lzma.compress(b" " * 100_000_000, preset=0)))
    path.write_bytes(data)
    if data == b"HUGE":
        os.truncate(path, 100_000_000)
    with fails(code, ExitCode.INTEGRITY) as caught:
        verify_report(path)
    assert why in caught.value.why


def test_nothing_there_is_a_coded_error(tmp_path: Path) -> None:
    with fails("evidence-missing", 2) as missing:  # a wrong path breaks no integrity
        verify_report(tmp_path / "none.json")
    assert missing.value.why == "there is none; a run that is refused or ends early writes none"
    (tmp_path / "none.json").mkdir()
    with pytest.raises(EnvbuildError) as caught:
        verify_report(tmp_path / "none.json")
    assert caught.value.exit_code == 5
