"""`activate.fish`, `activate.csh` and `deactivate.csh`: what `activate.sh` does, for shells that cannot read it.

Rows are (`set`, `prepend`, `append`, `exists` or `unset`, name, value); see `activation_files.changes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from envbuild.node import paths

_FISH = """\
# Source this file: source %(folder)s/activate.fish
if set -q _envbuild_names; deactivate; end
set -g _envbuild_names %(names)s
for name in $_envbuild_names
    if set -q $name; set -g _envbuild_old_$name $$name; end
end
function deactivate
    for name in $_envbuild_names
        set -l old _envbuild_old_$name
        if set -q $old; set -gx $name $$old; set -e $old; else; set -e $name; end
    end
    set -e _envbuild_names
    if functions -q _envbuild_prompt
        functions -e fish_prompt
        functions -c _envbuild_prompt fish_prompt
        functions -e _envbuild_prompt
    end
    functions -e deactivate
end
%(lines)s
if test -z "$VIRTUAL_ENV_DISABLE_PROMPT"; and type -q fish_prompt
    functions -c fish_prompt _envbuild_prompt
    function fish_prompt; printf '%%s' %(prompt)s; _envbuild_prompt; end
end
"""
_CSH = """\
# Source this file: source %(folder)s/activate.csh
if ($?_envbuild_env) then
    if (-e "$_envbuild_env/.envbuild/deactivate.csh") source "$_envbuild_env/.envbuild/deactivate.csh"
endif
set _envbuild_env = %(environment)s
%(keep)s
%(lines)s
if ($?prompt && ! $?VIRTUAL_ENV_DISABLE_PROMPT) then
    set _envbuild_prompt = "$prompt"
    set prompt = %(prompt)s"$prompt"
endif
alias deactivate 'source "$_envbuild_env/.envbuild/deactivate.csh"'
rehash
"""


def fish(environment: str, stack: str, rows: Sequence[tuple[str, str, str]]) -> str:
    """The text for fish, which reads what ends in PATH as a list."""
    forms = {
        "set": "set -gx %(name)s %(value)s",
        "prepend": "set -q %(name)s; and set -gx %(name)s %(value)s:(string join : $%(name)s);"
        " or set -gx %(name)s %(value)s",
        "append": "set -gx %(name)s $%(name)s %(value)s",
        "exists": "if test -e %(value)s; set -gx %(name)s %(value)s; end",
        "unset": "set -e %(name)s",
    }
    return _FISH % _parts(environment, stack, rows, forms, _fish_quote)


def csh(environment: str, stack: str, rows: Sequence[tuple[str, str, str]]) -> str:
    """The text for csh and tcsh."""
    forms = {
        "set": "setenv %(name)s %(value)s",
        "prepend": 'if ($?%(name)s) then\n    setenv %(name)s %(value)s:"$%(name)s"\nelse\n'
        "    setenv %(name)s %(value)s\nendif",
        "append": 'setenv %(name)s "$%(name)s":%(value)s',
        "exists": "if (-e %(value)s) setenv %(name)s %(value)s",
        "unset": "unsetenv %(name)s",
    }
    keep = 'if ($?%(name)s) then\n    set _envbuild_old_%(name)s = "$%(name)s"\nendif'
    parts = _parts(environment, stack, rows, forms, csh_quote)
    return _CSH % dict(parts, keep="\n".join(keep % {"name": name} for name in _names(rows)))


def csh_undo(rows: Sequence[tuple[str, str, str]]) -> str:
    """What the alias `deactivate` of csh reads: csh has no functions."""
    block = (
        'if ($?%(old)s) then\n    setenv %(name)s "$%(old)s"\n    unset %(old)s\nelse\n    unsetenv %(name)s\nendif\n'
    )
    lines = [block % {"name": name, "old": f"_envbuild_old_{name}"} for name in _names(rows)]
    lines += ['if ($?_envbuild_prompt) then\n    set prompt = "$_envbuild_prompt"\n    unset _envbuild_prompt\nendif\n']
    return "".join(lines) + "unset _envbuild_env\nunalias deactivate\nrehash\n"


def _parts(
    environment: str,
    stack: str,
    rows: Sequence[tuple[str, str, str]],
    forms: dict[str, str],
    quote: Callable[[str], str],
) -> dict[str, str]:
    return {
        "folder": quote(paths.meta(environment, "")),
        "environment": quote(environment),
        "names": " ".join(_names(rows)),
        "lines": "\n".join(forms[kind] % {"name": name, "value": quote(value)} for kind, name, value in rows),
        "prompt": quote(f"({stack}) "),
    }


def _names(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    return sorted({name for _, name, _ in rows})


def _fish_quote(text: str) -> str:
    return "'%s'" % text.replace("\\", "\\\\").replace("'", "\\'")


def csh_quote(text: str) -> str:
    """One word of csh, always in quotes: `=1` is an entry of its directory stack without."""
    # A history event and the end of a line are looked for between any quotes.
    return "'%s'" % text.replace("'", "'\"'\"'").replace("!", "\\!").replace("\n", "\\\n")
