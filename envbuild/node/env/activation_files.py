"""What a person loads: `.envbuild/activate.sh` for sh, bash and zsh, and a modulefile.

Start-up files are never touched.

A variable is plain text, or `{"path": ..., "if": "exists"}`: set only where the path exists when it is loaded.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from itertools import chain
from typing import Tuple

from envbuild.node import paths
from envbuild.node.conda import activation
from envbuild.node.protocol import Json, NodeError
from envbuild.node.variables import may_set

# A pip of another Python, which is found where the environment has none, installs nothing behind anybody's back.
_GUARDS = {"PYTHONNOUSERSITE": "1", "PIP_REQUIRE_VIRTUALENV": "1"}
_FUNCTIONS = """\
if [ -n "${_envbuild_old_PATH-}" ]; then deactivate; fi
_envbuild_keep() { eval "_envbuild_had_$1=\\${$1+x} _envbuild_old_$1=\\${$1-}"; }
_envbuild_back() {
    eval "if [ -n \\"\\$_envbuild_had_$1\\" ]; then export $1=\\"\\$_envbuild_old_$1\\"; else unset $1; fi"
    unset "_envbuild_had_$1" "_envbuild_old_$1"
}
deactivate() {
%s%s
    if [ -n "${_envbuild_prompt-}" ]; then PS1=$_envbuild_prompt; fi
    unset _envbuild_prompt
    unset -f _envbuild_keep _envbuild_back deactivate
    hash -r 2>/dev/null || :
}"""
_PROMPT = """\
if [ -n "${PS1-}" ] && [ -z "${VIRTUAL_ENV_DISABLE_PROMPT-}" ]; then _envbuild_prompt=$PS1 PS1=%s$PS1; fi
hash -r 2>/dev/null || :
"""
_PIP = """\
#!/bin/sh
printf '%s\\n' >&2 \\
    'error[environment-locked]: this environment holds what its lock says, and has no pip' \\
    'hint: list a package under `packages` of the stack, then `envbuild lock create` and `envbuild provision`'
exit 7
"""
# (`set`, `prepend`, `append`, `exists` or `unset`, name, value); `exists`: where the path is.
Row = Tuple[str, str, str]
_UNSET = [("unset", name, "") for name in ("PYTHONHOME", "PYTHONPATH")]
_FORMS = {
    "sh": {
        "set": "export %(name)s=%(value)s",
        "prepend": 'export %(name)s=%(value)s"${%(name)s:+:$%(name)s}"',
        "append": 'export %(name)s="$%(name)s":%(value)s',
        "exists": "if [ -e %(value)s ]; then export %(name)s=%(value)s; fi",
        "unset": "unset %(name)s",
    },
    "module": {
        "set": "setenv %(name)s %(value)s",
        "prepend": "prepend-path %(name)s %(value)s",
        "append": "append-path %(name)s %(value)s",
        "exists": "if { [file exists %(value)s] } {\n    setenv %(name)s %(value)s\n}",
    },
}
_VARIABLE = re.compile(r"\A[A-Za-z_][A-Za-z0-9_]*\Z")


def checked_variables(variables: Json) -> Json:
    """`variables` when every name and value can be written; raises NodeError `request-invalid`."""
    for name, value in variables.items():
        text = value.get("path") if isinstance(value, dict) else value
        good = isinstance(text, str) and not any(ord(c) < 32 or ord(c) == 127 for c in text)
        if not (good and _VARIABLE.match(name) and may_set(name, site=True)):
            raise NodeError("request-invalid", f"variable {name[:100]!r} cannot be set")
    return variables


def activate_sh(environment: str, stack: str, variables: Json) -> str:
    """A POSIX sh text that sets PATH, VIRTUAL_ENV, ENVBUILD_ENV, ENVBUILD_STACK and `variables`, values literally.

    It puts the stack before a prompt, and makes the function `deactivate`, which takes all of it back. Where conda
    packages are, CONDA_PREFIX is set, and their scripts are run: those of `activate.d`, at the end of `deactivate.d`. A
    shell that is neither bash nor zsh may end at what they hold, and gets what they set. Raises NodeError as
    `activation.variables` does.
    """
    own, theirs, asked = _changes(environment, stack, variables)
    names = sorted({name for _, name, _ in [*_UNSET, *own, *theirs, *asked]})
    lines = [f"# Source this file: . {shlex.quote(paths.meta(environment, 'activate.sh'))}"]
    undo = "".join(f"    {line}\n" for line in _run(activation.scripts(environment, "deactivate.d")[::-1]))
    lines += [_FUNCTIONS % (undo, "\n".join(f"    _envbuild_back {name}" for name in names))]
    lines += [f"_envbuild_keep {name}" for name in names] + _lines("sh", [*_UNSET, *own])
    lines += _run(activation.scripts(environment), _lines("sh", theirs)) + _lines("sh", asked)
    return "\n".join(lines + [_PROMPT % shlex.quote(f"({stack}) ")])


def _changes(environment: str, stack: str, variables: Json) -> tuple[list[Row], list[Row], list[Row]]:
    """What a shell has to do, in order: for the environment, in the place of conda's scripts, and for the stack.

    Raises as `activation.variables`.
    """
    conda = ["CONDA_PREFIX"] if activation.is_conda(environment) else []
    own = [("set", name, environment) for name in ["VIRTUAL_ENV", "ENVBUILD_ENV", *conda]]
    own += [("set", *item) for item in [("ENVBUILD_STACK", stack), *_GUARDS.items()]]
    # Where the environment has no pip, one that says what to do instead; behind them the programs of its base.
    own += [("prepend", "PATH", folder) for folder in (paths.meta(environment, "bin"), f"{environment}/bin")]
    own += [("append", "PATH", folder) for folder in paths.base_programs(environment)]
    theirs = activation.variables(environment).items()
    asked = [
        ("exists", name, value["path"]) if isinstance(value, dict) else ("set", name, value)
        for name, value in sorted(variables.items())
    ]
    return own, [("prepend" if activation.is_list(name) else "set", name, value) for name, value in theirs], asked


def _lines(shell: str, rows: Sequence[Row]) -> list[str]:
    """The rows as lines of `sh` or of a `module`, values literally."""
    quote = {"sh": shlex.quote, "module": tcl_quote}[shell]
    return [_FORMS[shell][kind] % {"name": name, "value": quote(value)} for kind, name, value in rows]


def _run(scripts: list[str], instead: Sequence[str] = ()) -> list[str]:
    """Lines that source `scripts` in a shell that can read them; the lines `instead` in another."""
    if not scripts:
        return []
    lines = ['if [ -n "${BASH_VERSION-}${ZSH_VERSION-}" ]; then']
    lines += [f"    . {shlex.quote(script)}" for script in scripts]
    return lines + (["else"] if instead else []) + ["    " + line for line in instead] + ["fi"]


def tcl_quote(text: str) -> str:
    """`text` as one Tcl word that is taken literally; escaped where Lmod would take UTF-8 for Latin-1."""
    word = re.sub(r'([\\"$\[\]{}])', r"\\\1", text)
    return '"%s"' % re.sub("[\x80-\ud7ff\ue000-\uffff]", lambda match: f"\\u{ord(match.group()):04x}", word)


def modulefile(environment: str, stack: str, variables: Json) -> str:
    """What `activate_sh` does, as a Tcl modulefile (environment-modules, Lmod); of conda's scripts what they set."""
    says = tcl_quote(f"envbuild environment of {stack}")
    lines = ["#%Module1.0", "proc ModulesHelp { } {", f"    puts stderr {says}", "}", f"module-whatis {says}"]
    return "\n".join(lines + _lines("module", list(chain(*_changes(environment, stack, variables))))) + "\n"


def write(environment: str, stack: str, variables: Json) -> bool:
    """Write what shells load, what that needs, and the variables as JSON; True when one of them was not so already."""
    changed = paths.read_json(paths.meta(environment, "variables.json")) != variables
    if changed:
        paths.write_json(paths.meta(environment, "variables.json"), variables)
    for name in ("pip", "pip3"):
        changed = _write(os.path.join(paths.meta(environment, "bin"), name), _PIP, 0o777) or changed
    text = activate_sh(environment, stack, variables)
    return _write(paths.meta(environment, "activate.sh"), text) or changed


def write_modulefile(prefix: str, environment: str, stack: str, variables: Json) -> bool:
    """Write the stack's modulefile for this environment; True when it was not so already."""
    return _write(paths.modulefile(prefix, stack), modulefile(environment, stack, variables))


def _write(path: str, text: str, mode: int = 0o666) -> bool:
    data = os.fsencode(text)
    try:
        with open(path, "rb") as stream:
            if stream.read() == data:
                return False
    except OSError:
        pass  # not there yet
    paths.write_atomic(path, data, mode)
    return True
