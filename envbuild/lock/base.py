"""What a base provides, and which packages come on top of it. uv decides, on the interpreter that is there."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError
from envbuild.lock.packages import Request, arguments, environment
from envbuild.lock.readers.uvtool import run_uv
from envbuild.model.stack import Base

_PROBE = (
    "import importlib.metadata as m, json, sys;"
    "print(json.dumps({'python': '%d.%d' % sys.version_info[:2], 'packages':"
    "[(d.metadata['Name'], d.version) for d in m.distributions() if d.metadata['Name']]}))"
)
# uv's change list, as `uv pip install --dry-run` prints it: ` + name==version`, ` - name==version`.
_CHANGE = re.compile(r"^ ([-+~]) (\S+?)==(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class BasePython:
    """An interpreter that is there, its minor version and what it provides (normalised name to version)."""

    path: Path
    python: str
    packages: dict[str, str]


def read_base(path: Path) -> BasePython:
    """Ask an interpreter what it provides (user site left out). Raises EnvbuildError `base-python-broken` (exit 2)."""
    try:
        done = subprocess.run([str(path), "-I", "-c", _PROBE], capture_output=True, text=True, timeout=120, check=True)
        data = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise EnvbuildError(
            "base-python-broken",
            f"{path} does not say which packages it has",
            why=str(getattr(error, "stderr", "") or error),
            hint="name a working interpreter: --base-python /path/to/python3",
        ) from error
    # As for an import, the first on sys.path counts.
    packages = {str(canonicalize_name(name)): version for name, version in reversed(data["packages"])}
    return BasePython(path, data["python"], dict(sorted(packages.items())))


def check_provides(base: Base, provided: dict[str, str]) -> None:
    """Raise EnvbuildError `base-lacks` (exit 7) where the base does not provide what the stack relies on."""
    for text in base.provides:
        requirement = Requirement(text)
        version = provided.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            raise EnvbuildError(
                "base-lacks",
                f"the base does not provide {text}",
                why=f"it has {requirement.name} {version}" if version else f"it has no {requirement.name}",
                hint="choose another base, or another interpreter with --base-python",
            )


def on_top(request: Request, base: BasePython) -> tuple[str, ...]:
    """Pins (`name==version`) of the packages that the requirements need and the base does not have.

    Raises EnvbuildError `replaces-base-package` (exit 7), and what uv's resolution raises.
    """
    if not request.requirements:
        return ()
    with tempfile.TemporaryDirectory(prefix="envbuild-base-") as folder:
        work = Path(folder)
        needs = work / "requirements.txt"
        needs.write_text("\n".join(request.requirements) + "\n", encoding="utf-8")
        said = run_uv(
            [
                *("pip", "install", "--dry-run", "--break-system-packages", "--python", str(base.path)),
                *("--requirements", str(needs), *arguments(work, request)),
            ],
            environ=environment(request),
            cwd=work,
        )
    changes = _CHANGE.findall(said)
    added = {name: version for sign, name, version in changes if sign == "+"}
    removed = {name: version for sign, name, version in changes if sign == "-"}
    for name, version in removed.items():
        raise EnvbuildError(
            "replaces-base-package",
            f"{name} {version} of the base would be replaced by {added.get(name, 'nothing')}",
            why="a requirement of the stack, or of a package that it needs, does not accept the base's version",
            hint="loosen the requirement, or choose a base that fits; a base's packages are never replaced",
        )
    return tuple(f"{name}=={version}" for name, version in sorted(added.items()))
