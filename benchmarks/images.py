"""Images. `image dockerfile --check` over all shipped stacks; goal: < 1 s CPU in all.

Rebuild after one changed line of a source, torch's CPU build below it, against Dockerfiles written by hand on the same
base with the same wheels; goals: <= 0.6x of the obvious one, <= 1.5x of the well-ordered one. Needs root, buildah and
mmdebstrap.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.measure import Case, measure, print_table, program, ratio, spread

STACK, VARIANT = "torch-smoke", "cp311-linux_x86_64-cpu"
GIT = "https://git.example.org/counted"
# Both are what people write; the second knows that a layer is kept until something above it changes.
OBVIOUS = """
FROM {base}
WORKDIR /app
COPY . .
RUN --mount=type=bind,from=wheels,target=/wheels pip install --no-index -f /wheels -r requirements.txt
RUN pip install --no-index --no-build-isolation . && cd / && python3 -c "import counted._fast"
"""
ORDERED = """
FROM {base}
WORKDIR /app
COPY requirements.txt .
RUN --mount=type=bind,from=wheels,target=/wheels pip install --no-index -f /wheels -r requirements.txt
COPY . .
RUN pip install --no-index --no-build-isolation . && cd / && python3 -c "import counted._fast"
"""


@dataclass(frozen=True)
class Hand:
    """A Dockerfile by hand, what the table calls it, and the goal for our ratio to it."""

    says: str
    text: str
    goal: float


HANDS = {
    "obvious": Hand("by hand, the obvious", OBVIOUS, 0.6),
    "ordered": Hand("by hand, well ordered", ORDERED, 1.5),
}
_PROJECT = {
    "setup.py": 'from setuptools import Extension, setup\nsetup(name="counted", version="1.0", packages=["counted"],\n'
    '      ext_modules=[Extension("counted._fast", ["fast.c"])])\n',
    "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n',
    "counted/__init__.py": "",
    "fast.c": """
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *none) { return PyLong_FromLong(0); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_fast", "", -1, methods};
PyMODINIT_FUNC PyInit__fast(void) { return PyModule_Create(&module); }
""",
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each rebuild; 0: none")
    parser.add_argument("--ordered", action="store_true", help="rebuilds against the well-ordered Dockerfile alone")
    options = parser.parse_args()
    command = [program("envbuild"), "image", "dockerfile", "--check"]
    (sample,) = measure([Case("envbuild image dockerfile --check", command)], runs=7).values()
    print_table(
        "generated containers/ against the locks, six stacks (n = 7)",
        ["command", "wall s", "CPU s", "goal"],
        [["envbuild image dockerfile --check", spread(sample.wall), spread(sample.cpu), "< 1 s CPU"]],
    )
    if options.runs:
        rebuilds(options.runs, {"ordered": HANDS["ordered"]} if options.ordered else HANDS)


def rebuilds(runs: int, hands: dict[str, Hand]) -> None:
    """Ours and those by hand in turn, each after another change of one line."""
    from tests.container.storage import UnavailableError, opened

    with tempfile.TemporaryDirectory(prefix="envbuild-bench-", dir="/var/tmp") as text:
        (top := Path(text, "storage")).mkdir()
        try:
            with opened(top, Path(text), compiler=True) as storage:
                site = Site(Path(text), {**os.environ, **storage.env})
                site.prepare()
                commands = {"envbuild image build": site.ours()}
                commands |= {each.says: site.by_hand(name, each.text) for name, each in hands.items()}
                cases = [Case(says, argv, before=site.change, env=site.env) for says, argv in commands.items()]
                samples = measure(cases, runs=runs)
                sizes = [site.sizes(name) for name in ("ours", *hands)]
        except UnavailableError as error:
            print(f"\nrebuild of an image: not measured: {error}")
            return
    ours, *others = samples.values()
    rows = [
        [name, spread(sample.wall), spread(sample.cpu), "", *size]
        for (name, sample), size in zip(samples.items(), sizes, strict=True)
    ]
    for row, each, hand in zip(rows[1:], others, hands.values(), strict=True):
        against = f"{ratio(ours.wall, each.wall):.2f}x wall, {ratio(ours.cpu, each.cpu):.2f}x CPU"
        row[3] = f"{against} (goal <= {hand.goal}x)"
    print_table(
        f"rebuild after one changed line of a C extension, torch 2.13.0 (CPU) below it (n = {runs})",
        ["command", "wall s", "CPU s", "envbuild is", "image", "new layers"],
        rows,
    )


@dataclass(frozen=True)
class Site:
    """A stack of the user's own in `top/work`, wheels, and images in a storage of its own."""

    top: Path
    env: dict[str, str]

    @property
    def work(self) -> Path:
        """Where the stack, its lock and the project are."""
        return self.top / "work"

    def prepare(self) -> None:
        """The base with pip, the wheels, the project and the stack."""
        from tests.container.storage import BASE

        for folder in ("work", "house", "wheels", "project"):
            (self.top / folder).mkdir()
        lock = [program("envbuild"), "lock", "export", STACK, "--variant", VARIANT, "--format", "requirements"]
        requirements = subprocess.run(lock, check=True, capture_output=True, text=True).stdout
        (self.top / "project" / "requirements.txt").write_text(requirements)
        (self.top / "pip.txt").write_text("pip\n")
        uv = Path(__file__).parents[1] / "lockfiles" / "uv.txt"
        listings = {self.top / "project" / "requirements.txt": "wheels", self.top / "pip.txt": "wheels", uv: "house"}
        for listing, to in listings.items():
            words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(self.top / to)]
            subprocess.run([*words, "-r", str(listing)], check=True)
        for name, text in _PROJECT.items():
            path = self.top / "project" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        self._git("init", "-q", "-b", "main")
        (pip,) = (self.top / "wheels").glob("pip-*.whl")
        self._build(
            "base",
            f"FROM {BASE}\nRUN --mount=type=bind,from=wheels,target=/wheels rm -f /usr/lib/python3*/EXTERNALLY-MANAGED"
            f" && PYTHONPATH=/wheels/{pip.name} python3 -m pip install --no-index /wheels/{pip.name}\n",
        )

    def _git(self, *words: str) -> str:
        me = ["-c", "user.name=b", "-c", "user.email=b@example.org"]
        command = ["git", *me, "-C", str(self.top / "project"), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def change(self) -> None:
        """Another number in the C file: committed, locked, and a bundle of it in the wheelhouse."""
        from envbuild.catalog.loader import load_stack, lock_path
        from envbuild.lock.files import read_lock, write_lock
        from envbuild.model.lock import Variant

        path = self.top / "project" / "fast.c"
        before, _, after = path.read_text().partition("PyLong_FromLong(")
        number, _, rest = after.partition(")")
        path.write_text(f"{before}PyLong_FromLong({int(number) + 1}){rest}")
        self._git("add", ".")
        self._git("commit", "-q", "-m", "Count on")
        commit, tree = self._git("rev-parse", "HEAD", "HEAD^{tree}").split()
        for old in (self.top / "house").glob("*.bundle"):
            old.unlink()
        self._git("bundle", "create", "-q", str(self.top / "house" / f"counted-{commit}-{tree[:12]}.bundle"), "main")
        source = {
            "name": "counted",
            "git": GIT,
            "ref": "main",
            "commit": commit,
            "tree": tree,
            "build": {"kind": "wheel"},
        }
        own = {"imports": ["counted._fast", "torch"], "sources": [source]}
        shipped = load_stack(STACK)
        lock = read_lock(lock_path(shipped, "exact"))
        plain = next(each for each in lock.variants if each.id == VARIANT).to_json_dict()
        made = Variant.from_plain({**plain, **own})
        made = made.model_copy(update={"digest": made.compute_digest("counted", "exact")})
        write_lock(self.work / "counted.lock.toml", lock.model_copy(update={"stack": "counted", "variants": (made,)}))
        exact = shipped.stack.profiles["exact"].to_json_dict()
        torch = {**exact["torch"], "flavours": ["cpu"]}
        exact = {**exact, **own, "python": ["3.11"], "torch": torch, "bases": [{"kind": "none"}]}
        data = {"name": "counted", "summary": "torch and one source", "profiles": {"exact": exact}}
        (self.work / "counted.yaml").write_text(yaml.safe_dump(data))

    def ours(self) -> list[str]:
        """The command of `envbuild image build`."""
        place = ["--base", "localhost/base", "--fetch-image", "localhost/base", "--python", "/usr/bin/python3.11"]
        houses = ["--wheelhouse", str(self.top / "house"), "--wheelhouse", str(self.top / "wheels")]
        build = [program("envbuild"), "image", "build", str(self.work / "counted.yaml"), "--tag", "localhost/ours"]
        return [*build, *place, "--glibc", "2.36", *houses]

    def by_hand(self, name: str, text: str) -> list[str]:
        """The command that builds a Dockerfile as people do."""
        path = self.top / f"Dockerfile.{name}"
        path.write_text(text.format(base="localhost/base"))
        return [
            "buildah", "build", "--isolation", "chroot", "--layers", "--pull-never", "--network", "host",
            "--build-context", f"wheels={self.top / 'wheels'}", "-t", f"localhost/{name}", "-f", str(path),
            str(self.top / "project"),
        ]  # fmt: skip

    def _build(self, name: str, text: str) -> None:
        subprocess.run(self.by_hand(name, text), env=self.env, check=True, capture_output=True)

    def sizes(self, name: str) -> list[str]:
        """Bytes of an image on the disk, and those of the layers that one more change makes."""
        before = self._layers(name)
        self.change()
        case = self.ours() if name == "ours" else self.by_hand(name, HANDS[name].text)
        subprocess.run(case, env=self.env, check=True, capture_output=True)
        after = self._layers(name)
        new = sum(size for digest, size in after.items() if digest not in before)
        return [f"{sum(after.values()) / 1e6:.0f} MB", f"{new / 1e6:.1f} MB"]

    def _layers(self, name: str) -> dict[str, int]:
        command = ["buildah", "inspect", "--type", "image", f"localhost/{name}"]
        found = json.loads(subprocess.run(command, env=self.env, check=True, capture_output=True).stdout)
        return {each["digest"]: each["size"] for each in json.loads(found["Manifest"])["layers"]}


if __name__ == "__main__":
    main()
