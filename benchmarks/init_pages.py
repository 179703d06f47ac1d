"""Scores drafts of setup pages against what a careful reader derives: `python -m benchmarks.init_pages EXPECTED PAGES`.

EXPECTED is a YAML list of pages with `expected`, `findings_must`, `findings_may`, `findings_must_not`; PAGES a folder
with `<id>/<file>` for each that has no `text`. Prints one line a page and the sums; `-v` what is missing and what is
too much.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuild.init.draft import Draft, Origin, make_draft, same_repository
from envbuild.init.findings import DraftFinding, find
from envbuild.init.known import exact_version, load_known
from envbuild.init.read import read
from envbuild.init.readers.requirement import conda_spec


def draft_of(page: dict[str, Any], folder: Path) -> Draft:
    text = page.get("text") or next((folder / page["id"]).iterdir()).read_text(errors="replace")
    origin = Origin(page["id"], f"https://github.com/{page['repo']}", page["commit"], date.fromisoformat(page["date"]))
    return make_draft(read(text, page["path"]), origin, load_known())


def facts(page: dict[str, Any], draft: Draft) -> Iterator[tuple[str, bool]]:
    """Each expected fact, and whether the draft has it."""
    expected = page["expected"]
    yield "python", _python(expected.get("python"), draft)
    yield from _torch(expected.get("torch"), draft)
    yield from _others(page["id"], expected, draft)


def _torch(torch: Any, draft: Draft) -> Iterator[tuple[str, bool]]:
    if torch is None:
        yield "torch", draft.torch is None or draft.torch.default
    else:
        if torch.get("version"):
            yield (
                f"torch {torch['version']}",
                draft.torch is not None and draft.torch.value.startswith(torch["version"]),
            )
        if torch.get("flavour"):
            yield f"torch {torch['flavour']}", draft.flavour is not None and draft.flavour.value == torch["flavour"]
        if torch.get("specifier"):
            yield f"torch {torch['specifier']}", draft.torch_specifier == torch["specifier"]


def _others(own: str, expected: dict[str, Any], draft: Draft) -> Iterator[tuple[str, bool]]:
    for text in (*expected.get("packages", ()), *expected.get("conda_packages", ())):
        yield f"package {text}", _package(text, draft)
    for source in expected.get("sources", ()):
        yield f"source {source['git']}", _source(source, draft)
    for name, value in (expected.get("env") or {}).items():
        said = draft.environment.get(name)
        yield f"env {name}", said is not None and said.value == f"{name}={value}"
    if expected.get("docker_base"):
        yield "image", draft.image is not None and draft.image.value == expected["docker_base"]
    for name in expected.get("apt_packages", ()):
        yield f"system {name}", any(each.value == name for each in draft.of("system"))
    for name in expected.get("not_packages", ()):
        yield f"no package {name}", draft.package(str(canonicalize_name(name.partition("==")[0]))) is None
    for kind, key in (("module", "modules"), ("import", "imports"), ("remove", "removed"), ("channel", "channels")):
        for name in expected.get(key, ()) or ():
            yield f"{kind} {name}", any(each.value == name for each in draft.of(kind)) or name == own


def _python(expected: Any, draft: Draft) -> bool:
    if expected is None:
        return draft.python.default or not draft.python.statements
    if isinstance(expected, dict):
        return draft.python.value in expected.get("from", [expected.get("value")])
    return draft.python.value == expected


def _package(text: str, draft: Draft) -> bool:
    plain = text.partition(" (")[0]
    spec = conda_spec(plain)
    if any(each.get("name") == (spec.name if spec else "") for each in draft.of("conda")):
        have = next(each for each in draft.of("conda") if spec and each.get("name") == spec.name)
        return (spec is not None and have.get("version") == spec.version) or not spec
    try:
        wanted = Requirement(plain)
    except InvalidRequirement:
        return spec is not None and draft.package(spec.name) is not None
    have = draft.package(str(canonicalize_name(wanted.name)))
    if have is None:
        return False
    one, other = exact_version(wanted.specifier), exact_version(have.requirement.specifier)
    return one == other.partition("+")[0] and (bool(one) or str(wanted.specifier) == str(have.requirement.specifier))


def _source(expected: dict[str, Any], draft: Draft) -> bool:
    for source in draft.sources:
        if same_repository(source.url, f"https://github.com/{expected['git']}"):
            wanted = expected["ref"]
            cuda = expected.get("needs_cuda_build")
            right = source.cuda == ("build" if cuda is True else "run-time" if cuda == "run-time" else "")
            return (wanted == "context" or (wanted or "") == source.ref) and (right or cuda == "judge" or source.own)
    return expected["ref"] == "context"  # the page's own repository, whose commit is known


def _names(about: Any) -> set[str]:
    listed = about if isinstance(about, list) else [about]
    return {str(canonicalize_name(str(name).partition(" ")[0].partition("==")[0])) for name in listed}


def _fits(row: dict[str, Any], finding: DraftFinding) -> bool:
    if row["rule"] != finding.rule:
        return False
    about = row["about"]
    if not isinstance(about, list):
        return True
    own = {str(canonicalize_name(name)) for name in finding.about}
    return bool(_names(about) & own) or any(one in other or other in one for one in own for other in _names(about))


def score(page: dict[str, Any], folder: Path, *, verbose: bool) -> dict[str, float]:
    begin = time.perf_counter()
    draft = draft_of(page, folder)
    findings = find(draft, load_known())
    seconds = time.perf_counter() - begin
    checks = list(facts(page, draft))
    must, may, never = (page.get(f"findings_{name}", ()) for name in ("must", "may", "must_not"))
    hit = [any(_fits(row, each) for each in findings) for row in must]
    parse = [good for good, row in zip(hit, must, strict=True) if row["by"] in ("parse", "data")]
    allowed = [*must, *may]
    wrong = [each for each in findings if not any(row["rule"] == each.rule for row in allowed)]
    false = [each for each in wrong if any(row["rule"] == each.rule for row in never)]
    if verbose:
        for what, good in checks:
            if not good:
                print(f"    missing fact: {what}")
        for row, good in zip(must, hit, strict=True):
            if not good:
                print(f"    missing finding: {row['rule']} ({row['by']}): {row['about']}")
        for each in wrong:
            mark = "FALSE" if each in false else "not asked for"
            print(f"    {mark}: {each.rule} {', '.join(each.about)[:100]}: {each.truth[:80]}")
    return {
        "facts": sum(good for _, good in checks), "of facts": len(checks),
        "findings": sum(hit), "of findings": len(hit),
        "mechanical": sum(parse), "of mechanical": len(parse), "false": len(false), "others": len(wrong) - len(false),
        "seconds": seconds,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("expected", type=Path)
    parser.add_argument("pages", type=Path, nargs="?", default=Path())
    parser.add_argument("-v", "--verbose", action="store_true")
    given = parser.parse_args()
    pages = yaml.safe_load(given.expected.read_text())["pages"]
    sums: dict[str, float] = {}
    for page in pages:
        row = score(page, given.pages, verbose=given.verbose)
        sums = {name: sums.get(name, 0) + value for name, value in row.items()}
        print(f"{page['id']:18}", _line(row))
    print(f"{'all':18}", _line(sums))


def _line(row: dict[str, float]) -> str:
    return (
        f"facts {row['facts']:.0f}/{row['of facts']:.0f}  findings {row['findings']:.0f}/{row['of findings']:.0f} "
        f"(by text or data {row['mechanical']:.0f}/{row['of mechanical']:.0f})  false {row['false']:.0f}  "
        f"not asked for {row['others']:.0f}  {row['seconds']:.2f} s"
    )


if __name__ == "__main__":
    main()
