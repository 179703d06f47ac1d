"""What is said of a run of uv that failed."""

from __future__ import annotations

from envbuild.node.packages import uv
from envbuild.node.proc import Finished

OUTPUT = """Using Python 3.11.7 environment at: /data/envbuild/envs/tiny-exact-0123456789ab
error: Request failed after 3 retries in 6.6s
  cause: dns error
"""


def test_why_begins_with_what_went_wrong_and_not_with_the_greeting_of_uv() -> None:
    error = uv.failure(Finished(2, "", OUTPUT, timed_out=True), "installing packages", "/data")
    assert error.why == "error: Request failed after 3 retries in 6.6s\n  cause: dns error"
