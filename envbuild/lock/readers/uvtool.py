"""Runs uv, the one resolver: its path, its version, and its failures as coded errors."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.node import pip_config, proc, variables
from envbuild.resolve.compat_read import load_compat
from envbuild.resolve.rules.packages import advice
from envbuild.resources import uv_bin

# uv's own words for "could not be fetched"; a resolution that fails for want of a version says something else.
_NETWORK = re.compile(
    r"(Failed to fetch|error sending request|dns error|Connection refused|Connection reset|timed out|"
    r"HTTP status (server error|client error \((401|403|407|429))|Network (is unreachable|connectivity is disabled)|"
    r"tcp connect error|invalid peer certificate|40[137] (Unauthorized|Forbidden|Proxy Authentication))",
    re.IGNORECASE,
)
# No version at all, in any index: a wrong name, or an index that answered with something else than a list of files.
_NOT_THERE = re.compile(r"(there are no versions of (\S+) and|(\S+) was not found in the)")
# What uv adds where only a source distribution would do.
_NO_WHEEL = re.compile(r"Wheels are required for `([^`]+)`")
# What uv is told besides on the machine that locks, where an index may be out of bounds.
_HERE = frozenset(("UV_CACHE_DIR", "UV_NO_INDEX", "UV_OFFLINE"))
_NO_CACHE = re.compile(r"Failed to initialize cache at `([^`]+)`")
_LINES = 10
_TIMEOUT_S = 900


def uv_version() -> str:
    """uv's version, as `0.13.8`."""
    done = subprocess.run([uv_bin(), "--version"], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()[1]


def run_uv(arguments: Sequence[str], *, environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run uv and return stdout and stderr joined. Raises EnvbuildError.

    `resolution-failed` (exit 7) when there is no solution, `package-not-found` (exit 7) when a package has no version
    at all, `not-writable` (exit 7) for uv's cache, `index-unreachable` (exit 75) when the index could not be asked,
    `uv-timeout` (exit 75) after 15 minutes.
    """
    command = [uv_bin(), *arguments]
    given = os.environ if environ is None else environ
    env = {name: value for name, value in given.items() if name in _HERE or variables.for_uv(name)}
    env["UV_PYTHON_DOWNLOADS"] = "never"
    env["NO_COLOR"] = "1"
    pip_config.tell_certificates(env, pip_config.read(env).cert)
    done = proc.run(command, timeout=_TIMEOUT_S, env=env, cwd=None if cwd is None else str(cwd))
    if done.timed_out:
        raise EnvbuildError(
            "uv-timeout", f"uv did not finish within {_TIMEOUT_S} s", hint="try again; check the index and the proxy"
        )
    if done.ok:
        return done.out + done.err
    raise _failure(done.err.strip())


def _short(output: str) -> str:
    """At most ten lines of what uv said, which repeats itself for every version that it tried."""
    lines = [line for line in output.splitlines() if line.strip()]
    if len(lines) <= _LINES:
        return output
    first, last = lines[:4], lines[-5:]
    return "\n".join([*first, f"({len(lines) - len(first) - len(last)} lines more of uv)", *last])


def _failure(output: str) -> EnvbuildError:
    why = _short(output)
    if cache := _NO_CACHE.search(output):
        hint = "set UV_CACHE_DIR to a folder that you can write"
        return EnvbuildError("not-writable", f"uv cannot write its cache {cache[1]}", why=why, hint=hint)
    if _NETWORK.search(output):
        hint = "check UV_DEFAULT_INDEX, the proxy and certificates (SSL_CERT_FILE, or pip's `cert`), then try again"
        return EnvbuildError("index-unreachable", "the package index could not be reached", why=why, hint=hint)
    if unbuilt := dict.fromkeys(_NO_WHEEL.findall(output)):
        return build_not_allowed(tuple(unbuilt), why)
    if missing := _NOT_THERE.search(output):
        what = f"the index has no version of {missing[2] or missing[3]}"
        hint = "check the name, and open the index in a browser: a proxy may show its login page"
        return EnvbuildError("package-not-found", what, why=why, hint=hint, exit_code=ExitCode.REFUSED)
    if known := advice(output, load_compat()):
        hint = f"under `constraints:`, {known}; or another version, which has a wheel"
        return EnvbuildError("resolution-failed", "setup code of a source distribution failed", why=why, hint=hint)
    return no_solution(why)


def no_solution(why: str, relaxations: Sequence[Mapping[str, str]] = ()) -> EnvbuildError:
    """The error of contradicting requirements; `relaxations`: each one that is enough to loosen."""
    names = [f"`{relaxation['was']}`" for relaxation in relaxations]
    ways = "; or ".join(
        f"loosen `{relaxation['was']}`" + (f" ({relaxation['version']} fits)" if relaxation["version"] else "")
        for relaxation in relaxations
    )
    return EnvbuildError(
        "resolution-failed",
        f"{', '.join(names[:-1])} and {names[-1]} exclude each other"
        if len(names) > 1
        else f"no set of packages fits the requirements{f' with {names[0]}' if names else ''}",
        why=why,
        hint=f"{ways}: all other requirements fit together"
        if ways
        else "loosen a requirement or a constraint, or choose another `as_of`",
        details={"relaxations": list(relaxations)} if relaxations else None,
    )


def build_not_allowed(packages: Sequence[str], why: str) -> EnvbuildError:
    """The error of packages that exist only as source distributions; its details have their names."""
    options = " ".join(f"--allow-build {name}" for name in packages)
    return EnvbuildError(
        "build-not-allowed",
        f"no wheel fits for {', '.join(packages)}, and envbuild builds no source distribution without your permission",
        why=why,
        hint=f"`{options}` lets their setup code run here. It says which packages these need, and those may need "
        "permission too. Or choose another version",
        details={"packages": list(packages)},
    )
