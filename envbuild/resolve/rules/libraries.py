"""Libraries of the system that wheels load and do not bring: what is not there is said before anything is fetched."""

from __future__ import annotations

from envbuild.model.facts import NodeFacts, PythonFacts
from envbuild.model.lock import Variant
from envbuild.model.target import Target
from envbuild.resolve.compat import Compat
from envbuild.resolve.decision import NOTHING, Decisions, decision
from envbuild.resolve.rules.packages import meets

# What wheels expect of every Linux, and a small one may lack: Debian's name, and what others call it where they differ.
PACKAGES = {
    "libstdc++.so.6": "Debian, Ubuntu: package libstdc++6; Red Hat, Fedora: libstdc++",
    "libgomp.so.1": "Debian, Ubuntu: package libgomp1; Red Hat, Fedora: libgomp",
    "libgcc_s.so.1": "Debian, Ubuntu: package libgcc-s1; Red Hat, Fedora: libgcc",
}
_CXX = "libstdc++.so.6"


def install_words(library: str) -> str:
    """How a library of the system comes to a node, as what to do next."""
    package = PACKAGES.get(library)
    return f"install {library} on that node{f' ({package})' if package else ''}"


def finds_libstdcxx(variant: Variant, python: PythonFacts | None, facts: NodeFacts) -> bool | None:
    """Whether the variant will find libstdc++.so.6; None where no probe asked, and where conda brings it.

    An interpreter that the toolchain brings has none of its own: it finds what the others there find, and where these
    differ, as one of conda brings its own, nobody knows (None).
    """
    if variant.conda is not None:
        return None
    if python is not None:
        return python.libstdcxx
    known = {each.libstdcxx for each in facts.pythons if each.libstdcxx is not None}
    return known.pop() if len(known) == 1 else None


def library_rule(variant: Variant, target: Target, found: bool | None, compat: Compat) -> Decisions:
    """`libstdcxx-absent`: a package loads libstdc++.so.6, and `found` says that the node's loader has none.

    Refused where the wheel was read; a run that sets LD_LIBRARY_PATH itself may know better.
    """
    if found is not False:
        return NOTHING
    own_path = "LD_LIBRARY_PATH" in {**variant.environment, **target.environment}
    out = []
    for row in compat.libstdcxx:
        package = next((each for each in variant.packages if each.name == row.has.name), None)
        if package is None or not meets(package.version, row.has):
            continue
        name = f"{package.name} {package.version}"
        what = f"{name} loads {_CXX} when it is imported, and this node has none"
        compared = (f"no {_CXX}", f"{name} needs it and does not bring it")
        note = row.note.but("the run sets LD_LIBRARY_PATH" if own_path else None)
        out.append(decision("libstdcxx-absent", "refuse", what, compared, note, install_words(_CXX)))
    return tuple(out)
