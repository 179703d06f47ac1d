"""What activation scripts of conda packages set, for a shell that reads them and for what cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.node.build import environment as build_environment
from envbuild.node.conda import activation
from envbuild.node.env import activation_files
from envbuild.node.smoke.runner import child_environment
from tests.support.conda import ACTIVATE
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.need import need
from tests.support.programs import completed

MORE = """
export LD_LIBRARY_PATH="$CONDA_PREFIX/lib:$LD_LIBRARY_PATH" PATH="$CONDA_PREFIX/tools:$PATH"
export FORGE_TOKEN=abc SEEN="${SECRET-nothing}"
helper() { true; }
export -f helper
echo "what is printed is not taken for a variable"
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment with the scripts of two packages."""
    top = tmp_path / "an env"
    for name, text in (("a.sh", ACTIVATE), ("b.sh", MORE.encode()), ("c.csh", b"setenv A b\n")):
        write_file(top / "etc/conda/activate.d" / name, text)
    (top / "conda-meta").mkdir()
    return top


def test_what_they_set_is_known_by_name_and_has_nothing_of_the_user(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2hunter2")
    assert activation.variables(str(environment)) == {
        "CFLAGS": f"-DANSWER=7 -Wl,-rpath,{environment}/lib",
        "LD_LIBRARY_PATH": f"{environment}/lib",
        "PATH": f"{environment}/tools",
        "SEEN": "nothing",
        "TOOL_HOME": f"{environment}/share",
    }
    text = activation_files.modulefile(str(environment), "mine", {})
    assert f'setenv TOOL_HOME "{environment}/share"' in text
    assert f'prepend-path LD_LIBRARY_PATH "{environment}/lib"' in text
    (environment / "etc/conda/activate.d/z.sh").write_text("echo no licence >&2\nexit 3\n")
    with fails("conda-script-failed") as caught:
        activation.variables(str(environment))
    assert "no licence" in caught.value.why and "z.sh" in caught.value.why
    (environment / "conda-meta").rmdir()  # without conda packages nothing is run
    assert activation.onto(str(environment), {}) == {}
    assert activation.scripts(str(environment)) == []


def test_builds_and_smoke_tests_get_them_below_what_the_stack_says(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/cuda/lib")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    flags = 'export LDFLAGS="-Wl,-O2 -Wl,-rpath,$CONDA_PREFIX/lib -Wl,-rpath-link,$CONDA_PREFIX/lib -L/x"\n'
    (environment / "etc/conda/activate.d/flags.sh").write_text(flags)
    place = str(environment)
    built = build_environment.variables(place, {"TOOL_HOME": "/stack"}, {}, [], None)
    tried = child_environment(place, {"TOOL_HOME": "/stack"}, "/scratch")
    for each in (built, tried):
        assert (each["TOOL_HOME"], each["CONDA_PREFIX"]) == ("/stack", place)
        assert each["LD_LIBRARY_PATH"] == f"{place}/lib:/opt/cuda/lib"
    assert built["PATH"] == f"{place}/bin:{place}/tools:/usr/bin:/bin"
    assert tried["PATH"] == f"{place}/tools:{place}/bin:/usr/bin:/bin"
    assert built["LDFLAGS"] == f"-Wl,-O2 -Wl,-rpath-link,{place}/lib -L/x", "what is linked does not name the prefix"


@pytest.mark.parametrize("shell", ["sh", "dash", "bash"])
def test_every_shell_gets_them_and_gives_them_back(environment: Path, shell: str) -> None:
    need(shell)
    script = environment.parent / "activate.sh"
    script.write_text(activation_files.activate_sh(str(environment), "mine", {"OWN": "1"}))
    code = 'say() { echo "$TOOL_HOME|$CFLAGS|$LD_LIBRARY_PATH"; }\n. "$0"; say; deactivate; say'
    words = [shell, "-c", code, str(script)]
    before = {"PATH": "/usr/bin:/bin", "CFLAGS": "-g", "LD_LIBRARY_PATH": "/l"}
    said = completed(words, check=True, env=before)
    lines = [line for line in said.stdout.splitlines() if "|" in line]
    there = f"{environment}/share|-DANSWER=7 -Wl,-rpath,{environment}/lib|{environment}/lib:/l"
    assert (lines, said.stderr) == ([there, "|-g|/l"], "")
