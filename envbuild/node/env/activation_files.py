"""What a person loads: `.envbuild/activate.sh` for one shell, and a modulefile. Start-up files are never touched.

A variable is plain text, or `{"path": ..., "if": "exists"}`: set only where the path exists when it is loaded.
"""

import os
import re
import shlex

from envbuild.node import paths
from envbuild.node.protocol import NodeError
from envbuild.node.variables import may_set

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_VARIABLE = re.compile(r"\A[A-Za-z_][A-Za-z0-9_]*\Z")


def checked_variables(variables: "dict[str, Any]") -> "dict[str, Any]":
    """`variables` when every name and value can be written; raises NodeError `request-invalid`."""
    for name, value in variables.items():
        text = value.get("path") if isinstance(value, dict) else value
        good = isinstance(text, str) and not any(ord(c) < 32 or ord(c) == 127 for c in text)
        if not (good and _VARIABLE.match(name) and may_set(name, site=True)):
            raise NodeError("request-invalid", "variable %r cannot be set" % name[:100])
    return variables


def activate_sh(environment: "str", stack: "str", variables: "dict[str, Any]") -> "str":
    """A POSIX sh text that sets PATH, VIRTUAL_ENV, ENVBUILD_ENV, ENVBUILD_STACK and `variables`, values literally."""
    quoted = shlex.quote(environment)
    lines = [
        "# Source this file: . %s" % shlex.quote(paths.meta(environment, "activate.sh")),
        "export VIRTUAL_ENV=%s" % quoted,
        "export ENVBUILD_ENV=%s" % quoted,
        "export ENVBUILD_STACK=%s" % shlex.quote(stack),
        "export PYTHONNOUSERSITE=1",
        "unset PYTHONHOME PYTHONPATH",
        'export PATH=%s"${PATH:+:$PATH}"' % shlex.quote(os.path.join(environment, "bin")),
    ]
    for name in sorted(variables):
        value = variables[name]
        if isinstance(value, dict):
            path = shlex.quote(value["path"])
            lines.append("if [ -e %s ]; then export %s=%s; fi" % (path, name, path))
        else:
            lines.append("export %s=%s" % (name, shlex.quote(value)))
    return "\n".join(lines) + "\n"


def tcl_quote(text: "str") -> "str":
    """`text` as one Tcl word that is taken literally."""
    return '"' + re.sub(r'([\\"$\[\]{}])', r"\\\1", text) + '"'


def modulefile(environment: "str", stack: "str", variables: "dict[str, Any]") -> "str":
    """A Tcl modulefile that does what `activate_sh` does; read by environment-modules and by Lmod."""
    env = tcl_quote(environment)
    says = tcl_quote("envbuild environment of %s" % stack)
    lines = [
        "#%Module1.0",
        "proc ModulesHelp { } {",
        "    puts stderr %s" % says,
        "}",
        "module-whatis %s" % says,
        "setenv VIRTUAL_ENV %s" % env,
        "setenv ENVBUILD_ENV %s" % env,
        "setenv ENVBUILD_STACK %s" % tcl_quote(stack),
        "setenv PYTHONNOUSERSITE 1",
        "prepend-path PATH %s" % tcl_quote(os.path.join(environment, "bin")),
    ]
    for name in sorted(variables):
        value = variables[name]
        if isinstance(value, dict):
            path = tcl_quote(value["path"])
            lines.append("if { [file exists %s] } {\n    setenv %s %s\n}" % (path, name, path))
        else:
            lines.append("setenv %s %s" % (name, tcl_quote(value)))
    return "\n".join(lines) + "\n"


def write(environment: "str", stack: "str", variables: "dict[str, Any]") -> "bool":
    """Write `activate.sh`, and the variables as JSON beside; True when one of them was not so already."""
    changed = paths.read_json(paths.meta(environment, "variables.json")) != variables
    if changed:
        paths.write_json(paths.meta(environment, "variables.json"), variables)
    return _write(paths.meta(environment, "activate.sh"), activate_sh(environment, stack, variables)) or changed


def write_modulefile(prefix: "str", environment: "str", stack: "str", variables: "dict[str, Any]") -> "bool":
    """Write the stack's modulefile for this environment; True when it was not so already."""
    return _write(paths.modulefile(prefix, stack), modulefile(environment, stack, variables))


def _write(path: "str", text: "str") -> "bool":
    data = os.fsencode(text)
    try:
        with open(path, "rb") as stream:
            if stream.read() == data:
                return False
    except OSError:
        pass  # not there yet
    paths.write_atomic(path, data)
    return True
