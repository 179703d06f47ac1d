"""What is said of a run of uv that failed."""

from __future__ import annotations

import pytest

from envbuild.node.packages import uv
from envbuild.node.proc import Finished

OUTPUT = """Using Python 3.11.7 environment at: /data/envbuild/envs/tiny-exact-0123456789ab
error: Request failed after 3 retries in 6.6s
  cause: dns error
"""


def test_d107_a_download_has_an_end_and_why_begins_with_what_went_wrong_not_with_the_greeting_of_uv() -> None:
    error = uv.failure(Finished(2, "", OUTPUT, timed_out=True), "installing packages", "/data")
    assert (error.code, uv.DEADLINE) == ("network-unreachable", 3600)
    assert error.why == "error: Request failed after 3 retries in 6.6s\n  cause: dns error"


@pytest.mark.parametrize(
    ("begins", "code"),
    [(b"<!DO", "html-instead-of-file"), (b"\n<ht", "html-instead-of-file"), (b"PK\3\0", "artifact-damaged")],
)
def test_d107_a_web_page_in_the_place_of_a_wheel_is_called_one(begins: bytes, code: str) -> None:
    says = f"""error: Failed to download `six==1.17.0`
  cause: Failed to extract archive: six-1.17.0-py2.py3-none-any.whl
  cause: Encountered an unexpected header (actual: 0x{int.from_bytes(begins, "little"):x}, expected: 0x4034b50).
"""
    error = uv.failure(Finished(2, "", says), "installing packages", "/data")
    assert (error.code, error.exit_code) == (code, 5)
