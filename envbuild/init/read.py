"""Which reader a file gets, and the statements of one file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from envbuild.init.readers import images, manifests, page, setup_py
from envbuild.init.statement import Place, Statement

Reader = Callable[[str, str], Iterator[Statement]]
# The first that fits the name or path counts.
_READERS: tuple[tuple[str, str, Reader], ...] = (
    (r"pyproject\.toml", "pyproject.toml", manifests.pyproject),
    (r"pixi\.toml", "pixi", manifests.pixi),
    (r"Pipfile", "Pipfile", manifests.pipfile),
    (
        r"(?:uv|poetry|pixi|Pipfile|conda-[\w-]+)\.lock|pylock(?:\.[\w-]+)?\.toml|[\w.-]*conda-lock\.ya?ml",
        "lock",
        manifests.locked,
    ),
    (r"setup\.py", "setup.py", setup_py.setup_py),
    (r"setup\.cfg", "setup.cfg", manifests.setup_cfg),
    (r"\.github/workflows/[^/]+\.ya?ml", "workflow", manifests.workflow),
    (r"meta\.ya?ml", "meta.yaml", manifests.meta_yaml),
    (r"(?:[\w.-]*env(?:ironment)?[\w.-]*|conda[\w.-]*)\.ya?ml", "environment.yml", manifests.environment_yml),
    (r"[\w.-]*require[\w.-]*\.(?:txt|in)|requirements/[\w.-]+\.(?:txt|in)", "requirements", manifests.requirements),
    (
        r"(?:[\w.-]*\.)?(?:Dockerfile|Containerfile)(?:[.-][\w.-]+)?|[\w.-]+\.dockerfile",
        "Dockerfile",
        images.dockerfile,
    ),
    (r"[\w.-]+\.def|Singularity(?:\.[\w.-]+)?", "Apptainer", images.apptainer),
    (r"[\w.-]+\.(?:sh|bash|slurm|sbatch|pbs|sub|job)", "script", images.script),
    (r"[\w.-]+\.(?:md|markdown)|README", "Markdown", page.markdown),
    (r"[\w.-]+\.rst", "reStructuredText", page.restructured),
)
_COMPILED = tuple((re.compile(rf"(?:.*/)?(?:{name})", re.IGNORECASE), noun, reader) for name, noun, reader in _READERS)


def reader_of(path: str) -> tuple[str, Reader] | None:
    """The format of a file by its path, and its reader; None where there is none."""
    return next(((noun, reader) for name, noun, reader in _COMPILED if name.fullmatch(path)), None)


def read(text: str, path: str, shown: str = "") -> tuple[Statement, ...]:
    """The statements of a file; if its name has no known format, by its contents. `shown`: its name in places."""
    known = reader_of(path)
    reader = known[1] if known else _by_look(text)
    name = shown or path
    try:
        return tuple(reader(text, name))
    except RecursionError:  # nested deeper than any file that somebody wrote
        return (Statement("unknown", "nested too deep", Place(name, 1), "", "reader"),)


def _by_look(text: str) -> Reader:
    if text.startswith("#!") or re.search(r"^#(?:SBATCH|PBS) ", text, re.MULTILINE):
        return images.script
    if re.search(r"^@EXPLICIT\s*$", text, re.MULTILINE):
        return manifests.locked
    if re.search(r"^FROM \S+", text, re.MULTILINE):
        return images.dockerfile
    if re.search(r"^dependencies:", text, re.MULTILINE):
        return manifests.environment_yml
    return page.markdown
