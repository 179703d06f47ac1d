"""What the layer of the packages holds: read once where it is made, so that a build upon it reads only what it adds.

The builder keeps a layer under the digest of its contents. A build that goes on from it takes the hashes noted here for
every file that has its noted size and that nothing has touched since the build began; all others it reads.
"""

import os
import stat

from envbuild.node import merkle, paths
from envbuild.node.env import contents
from envbuild.node.packages import installed
from envbuild.node.protocol import Json

TYPE_CHECKING = False
if TYPE_CHECKING:
    Entries = dict[str, merkle.Entry]

NOTES = "packages-layer.json"
# What Python imports at its start wherever it is on the path: a file, a package or an extension module.
_AT_START = ("sitecustomize", "usercustomize")


def note(prefix: str, environment: str, interpreter: str, told: Json) -> None:
    """Read every file of the layer, compare it with its RECORD, and keep beside it what that gave.

    `told`: the modules that were `imported` well, and what was `left_out` (see `slim.py`; None: nothing).
    """
    entries = contents.scan(prefix, environment, {"interpreter": interpreter, "sources": []})
    left_out = (told.get("left_out") or {}).get("paths") or ()
    _checked, wrong = contents.check(environment, entries, dict.fromkeys(left_out, ""))
    # What does not agree is for the build upon it to say, which compares it again.
    doubtful = {installed.normal_name(each["package"]) for each in wrong}
    agreed = sorted(set(installed.installed(environment)) - doubtful)
    for entry in entries.values():
        entry.signature = []  # of this build; the next one sees another storage
    contents.keep(os.path.join(prefix, "image", NOTES), entries, dict(told, agreed=agreed))


class Layers:
    """The layer of packages below a build, and after `install` what was added: who read what, for the stamp.

    `imported`: modules that need not be imported again; `left_out`: what has been taken out of packages on purpose;
    `evidence`: nothing where there are no notes; `scan`: what is known of the files, for `install` and `activate`.
    """

    def __init__(self, prefix: str, environment: str, seen: "dict[str, os.stat_result]") -> None:
        """Take the notes of what is there with its noted size; `install` reads everything else.

        `seen`: every path of the environment, as `added_files.look` sees it.
        """
        self.environment = environment
        self.evidence: Json = {}
        told = paths.read_json(os.path.join(prefix, "image", NOTES)) or {}
        self.imported = list(told.get("imported") or ())
        self.left_out: Json | None = told.get("left_out")
        noted = contents.entries_of(told)
        self._taken = _there(seen, noted)
        whole = len(self._taken) == len(noted)
        checked = frozenset(told.get("agreed") or ()) if whole else frozenset()
        self.scan = contents.Scan(self._taken, self._taken if whole else None, checked)

    def compare(self) -> None:
        """Look at what `install` has made of it."""
        now = self.scan.entries
        stay = [path for path, entry in self._taken.items() if now.get(path) is entry]
        # Other files of packages, or code at Python's start: what was imported before may be another thing now.
        at_start = any(_runs_at_start(self.environment, path) for path in now if path not in self._taken)
        if at_start or len(stay) < len(self._taken):
            self.imported = []
        if stay:
            read = {"files": len(now) - len(stay), "level": "measured"}
            self.evidence = {"layers": {"packages": {"files": len(stay), "level": "stamped"}, "added": read}}


def _there(seen: "dict[str, os.stat_result]", noted: "Entries") -> "Entries":
    """The noted entries of paths with the noted size, each with what will show a change from now on."""
    found = {}
    for path, entry in noted.items():
        told = seen.get(path)
        if told is None:
            continue
        if entry.tag == "link" if stat.S_ISLNK(told.st_mode) else told.st_size == entry.size:
            entry.signature = merkle.signature(told)
            found[path] = entry
    return found


def _runs_at_start(environment: str, path: str) -> bool:
    if any(part.split(".")[0] in _AT_START for part in path.split("/")):
        return True
    if not path.endswith(".pth"):
        return False
    with open(os.path.join(environment, path), "rb") as stream:
        return any(line.startswith((b"import ", b"import\t")) for line in stream)
