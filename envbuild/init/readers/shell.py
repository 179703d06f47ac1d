"""Commands of a shell, a Dockerfile or a page: what each says about the environment. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, takewhile
from pathlib import PurePosixPath

from envbuild.init.readers.installers import Position, conda, pip
from envbuild.init.readers.requirement import git_address, requirement
from envbuild.init.readers.words import Command, commands, plain, without_prompts
from envbuild.init.statement import Kind, Statement, quoted, without_credentials

_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_LEADING = frozenset(
    ("if", "then", "else", "elif", "do", "while", "until", "!", "{", "time", "env", "exec", "nohup", "command", "eval")
)
_STRUCTURE = frozenset(
    ("fi", "done", "for", "case", "esac", "}", "[", "[[", "test", "function", "return", "break", "continue", "shift",
     "read", "local", "declare", "set", "trap", "exit", "true", "false", ":", "echo", "printf", "mkdir", "ls", "cat",
     "rm", "mv", "cp", "ln", "pwd", "cd", "nvidia-smi", "nvcc", "which", "date", "sleep", "wait", "unset", "grep",
     "awk", "head", "tail", "find", "xargs", "tee", "chmod", "chown", "tar", "unzip", "gunzip", "alias", "hostname",
     "scontrol", "ulimit", "touch", "df", "du", "ps", "kill", "popd", "update-alternatives", "ssh", "slogin", "scp",
     "rsync", "xz", "jupyter", "tensorboard", "vim", "nano", "code")
)  # fmt: skip
_SYSTEM = frozenset(("apt-get", "apt", "aptitude", "yum", "dnf", "apk", "zypper", "brew", "pacman"))
_MANAGERS = frozenset(("poetry", "pipenv", "pdm", "pixi", "hatch"))
# What is built or installed by the command before `|| true`.
_INSTALLERS = frozenset(
    ("pip", "pip3", "uv", "conda", "mamba", "bash", "sh", "make", "cmake", "git", "python", "python3", "apt-get", "apt")
)
_SCRIPTS = frozenset(("sh", "bash", "zsh"))
_LAUNCHERS = frozenset(
    ("torchrun", "deepspeed", "accelerate", "srun", "mpirun", "mpiexec", "horovodrun", "ray", "sbatch", "qsub")
)
_PYTHON = re.compile(r"(?:\$\{?\w*\}?/?)?(?:[\w./~-]*/)?python(?:3(?:\.[0-9]+)?)?$")
_IMPORT = re.compile(r"(?:^|;|\n)\s*(?:import\s+([\w.]+(?:\s*,\s*[\w.]+)*)|from\s+([\w.]+)\s+import)")
_STARTUP = re.compile(r"(?:^|/)\.(?:bashrc|bash_profile|profile|zshrc|bash_login)$")
_ABSOLUTE = re.compile(
    r"/(?:home|fsx|scratch|data|mnt|work|workspace|gpfs|lustre|projects?|share|root|opt|usr/local/lib|raid)\b/?\S*"
)
_OF_A_SITE = re.compile(r"/(?!usr|bin|etc|dev|tmp|proc|sys|var|lib|opt|run|path|your|the/)[\w.-]+/[\w.-]+\S*")
_RANK = re.compile(r"(?<!\\)\$\{?(?:SLURM_PROCID|SLURM_LOCALID|SLURM_NODEID)\b")
_PORT = re.compile(r"[A-Z_]*PORT")
_IMAGE = re.compile(r"[a-z0-9.-]+(?::[0-9]+)?(?:/[\w.-]+)+(?::[\w.-]+)?")


@dataclass
class Shell(Position):
    """One shell over all commands of a file: its folder, the clones in it, its variables."""

    session: bool = False  # a page shows it, with prompts and what was printed
    image: bool = False  # its folders are those of an image that it makes
    batch: bool = False  # a scheduler runs it once for all ranks
    variables: dict[str, str] = field(default_factory=dict)

    def read(self, text: str, line: int = 1, column: int = 1) -> Iterator[Statement]:
        """The statements of commands that begin at `line` and `column` of the file."""
        previous = ""
        for command in commands(without_prompts(text) if self.session else text):
            self._line, self._text = line + command.line - 1, quoted(command.text)
            self._column = column + command.column - 1
            if self.batch and any(_RANK.search(word) for word in command.words if not word.startswith("'")):
                why = "the batch shell expands the rank once, so every rank gets the same one"
                yield self.make("trait", "rank-slip", why=why)
            yield from self.command(command)
            yield from self._operators(command, previous)
            previous = command.words[0]

    def command(self, command: Command) -> Iterator[Statement]:
        """The statements of one simple command."""
        words = [plain(word, self.variables) for word in command.words]
        self._via = ""
        words = list(dropwhile(_LEADING.__contains__, words))
        for redirect in command.redirects:
            yield from self._written(redirect.operator, redirect.target, words)
        pairs = (_ASSIGNED.fullmatch(word) for word in words)
        assigned = [(match[1], match[2]) for match in takewhile(bool, pairs) if match]
        words = words[len(assigned) :]
        if not words:
            self.variables.update({name: value for name, value in assigned if "$" not in value})
            for name, value in assigned:
                yield from self._assigned(name, value)
            return
        if words[0] in ("sudo", "doas"):
            self._via = "sudo"
            yield self.make("trait", "sudo")
            words = [word for word in words[1:] if not word.startswith("-")]
        if not words:
            return
        builds = any(word in ("install", "wheel", "build_ext", "develop", "bdist_wheel") for word in words)
        for name, value in assigned:
            if builds and name.isupper() and not re.search(r"[$\n]", value):
                yield self.make("environment", f"{name}={value}", scope="command")
        yield from self._program(words, command)

    def _assigned(self, name: str, value: str) -> Iterator[Statement]:
        """What a variable of a script says about the machine that it was written on."""
        if self.session or self.image:
            return
        if _PORT.fullmatch(name) and value.isdigit():
            yield self.make("trait", "site-specific", why=f"a fixed port, {name}={value}")
        if _OF_A_SITE.fullmatch(value):
            yield self.make("trait", "hard-coded-path", path=value)

    def _program(self, words: list[str], command: Command) -> Iterator[Statement]:
        program, words = _unwrapped(words)
        if program in _LOOKS_AT:
            yield from _LOOKS_AT[program](self, words)
        elif program in ("pip", "uv"):
            self._via = self._via or "pip"
            yield from pip(self, words, command)
        elif _PYTHON.match(program):
            yield from self._python(words)
        elif program in _SCRIPTS and len(words) > 1:
            yield from self._script(words)
        elif re.match(r"\.{0,2}/[\w./-]+\.sh$", program):
            yield from self._script(["sh", *words])
        elif program not in _STRUCTURE and re.match(r"[A-Za-z0-9_./][A-Za-z0-9_./-]*$", program):
            # A program with long options that no rule knows is one that the installed code brings.
            starts = any(word.startswith("--") for word in words[1:]) and re.search("[a-z][-_][a-z]", program)
            yield self.make("run" if starts else "unknown", quoted(" ".join(words)) if starts else program)

    def _operators(self, command: Command, previous: str) -> Iterator[Statement]:
        words = command.words
        goes_on = words[0] in ("exit", "true", ":") and words[1:] in ((), ("0",))
        if command.before == "||" and goes_on and PurePosixPath(previous).name in _INSTALLERS:
            yield self.make("trait", "silent-skip")
        program = PurePosixPath(words[0]).name
        if command.before == "|" and previous in ("curl", "wget") and (program in _SCRIPTS or "python" in program):
            yield self.make("trait", "curl-to-shell")
        if command.before == "&" and previous in ("cd", "git", "pip", "conda", "export", "source", "mkdir"):
            yield self.make("trait", "shell-slip", why=f"`{previous} … & {words[0]} …`: one & where && is meant")

    def _written(self, operator: str, target: str, words: Sequence[str]) -> Iterator[Statement]:
        if operator in (">", ">>") and _STARTUP.search(target):
            yield self.make("startup", target, written="yes")
        if operator == ">" and target.startswith("=") and words[:1] and words[0] in ("pip", "pip3", "uv", "conda"):
            yield self.make("trait", "shell-slip", why=f"an unquoted `>{target}` writes a file of that name")
        if target == "/etc/sudoers" and any("NOPASSWD" in word for word in words):
            yield self.make("trait", "security", why="sudo without a password")

    # programs

    def _git(self, words: list[str]) -> Iterator[Statement]:
        verbs = [word for word in words[1:] if not word.startswith("-")]
        if not verbs:
            return
        if verbs[0] == "clone":
            yield from self._clone(words[words.index("clone") + 1 :])
        elif verbs[0] in ("checkout", "switch", "reset") and len(verbs) > 1 and "--" not in words:
            at = words.index("-C") + 1 if "-C" in words[:-1] else 0
            source = self.clones.get(words[at].lower(), "") if at else self.where[0]
            ref = next((word for word in verbs[1:] if word != (words[at] if at else "")), "")
            if "-b" not in words and ref:
                yield self.make("checkout", ref, source=source)
        elif verbs[0] == "submodule":
            yield self.make("trait", "submodules", source=self.where[0])
        elif verbs[0] in ("apply", "am"):
            yield self.make("edit", verbs[-1], by=f"git {verbs[0]}", source=self.where[0])

    def _clone(self, words: list[str]) -> Iterator[Statement]:
        ref, positional, skip = "", list[str](), False
        for word, following in zip(words, [*words, ""][1:], strict=True):
            if skip:
                skip = False
            elif word in ("-b", "--branch"):
                ref, skip = following, True
            elif word.startswith("--branch="):
                ref = word.partition("=")[2]
            elif word in ("--depth", "-j", "--jobs", "-o", "--origin", "-c", "--config", "-u", "--upload-pack"):
                skip = True
            elif not word.startswith("-"):
                positional.append(word)
        address = git_address(positional[0]) if positional else None
        if address is None:
            yield self.make("unknown", "git clone")
            return
        folder = positional[1] if len(positional) > 1 else PurePosixPath(address.url).name
        self.clones[folder.rstrip("/").rpartition("/")[2].lower()] = address.url
        if {"--recursive", "--recurse-submodules"} & set(words):
            yield self.make("trait", "submodules", source=address.url)
        yield self.source(address._replace(ref=ref), "clone", folder=folder, pinned_by="branch" if ref else "")

    def _cd(self, words: list[str]) -> Iterator[Statement]:
        yield from self.enter(words[1] if len(words) > 1 else "~")

    def enter(self, target: str) -> Iterator[Statement]:
        """Another folder; a clone is known by its name, whatever its case."""
        source, inside = self.where
        parts = PurePosixPath(target).parts if target else ()
        if target.startswith("/") and not any(part.lower() in self.clones for part in parts):
            parts = ("/",)
        for part in parts:
            if part == "..":
                source, inside = (source, inside.rpartition("/")[0]) if inside else ("", "")
            elif part == "/" or part.startswith(("~", "$")):
                source, inside = "", ""
            elif self.clones.get(part.lower(), source) != source and not (source and inside):
                source, inside = self.clones[part.lower()], ""
                own = PurePosixPath(source).name
                if part != own and part.lower() == own.lower():
                    yield self.make("trait", "shell-slip", why=f"the clone's folder is {own}")
            elif part != ".":
                inside = f"{inside}/{part}".strip("/")
        self.where = (source, inside)
        if _ABSOLUTE.fullmatch(target) and not self.image:
            yield self.make("trait", "hard-coded-path", path=target)

    def _export(self, words: list[str]) -> Iterator[Statement]:
        for word in words[1:]:
            if match := _ASSIGNED.fullmatch(word):
                name, value = match.groups()
                if "$" in value or "\n" in value:
                    continue
                self.variables[name] = value
                yield self.make("environment", f"{name}={value}")
                yield from self._assigned(name, value)

    def _system(self, words: list[str]) -> Iterator[Statement]:
        if "install" in words or "add" in words:
            first = next(place for place, word in enumerate(words) if word in ("install", "add"))
            for word in words[first + 1 :]:
                if re.fullmatch(r"[a-z0-9][a-z0-9.+-]*(=\S+)?", word):
                    yield self.make("system", word.partition("=")[0], program=words[0])

    def _download(self, words: list[str]) -> Iterator[Statement]:
        for word in words[1:]:
            if re.match(r"https?://", word):
                address = without_credentials(word)
                self.wheels[PurePosixPath(address).name] = address
                yield self.make("download", address, program=words[0])

    def _edit(self, words: list[str]) -> Iterator[Statement]:
        if any(word.startswith(("-i", "--in-place")) or re.fullmatch(r"-[nErs]*i[nErs]*", word) for word in words[1:]):
            yield self.make("edit", words[-1], by="sed", source=self.where[0])
            if words[-1].startswith("/") or "site-packages" in words[-1]:
                yield self.make("trait", "hard-coded-path", path=words[-1])
            if match := re.search(r"python(3\.[0-9]+)/site-packages", words[-1]):
                yield self.make("python", f"=={match[1]}.*", inferred="path")

    def _patch(self, words: list[str]) -> Iterator[Statement]:
        yield self.make("edit", words[-1], by="patch", source=self.where[0])

    def _module(self, words: list[str]) -> Iterator[Statement]:
        if words[1:2] in (["load"], ["add"]):
            for word in words[2:]:
                yield self.make("module", word)
                yield self.make("trait", "site-specific", why=f"module {word} is there at one site")
                if match := re.match(r"cuda(?:toolkit)?[/-]([0-9]+\.[0-9]+)", word, re.IGNORECASE):
                    yield self.make("cuda", match[1], by="module")
                if match := re.match(r"python/(3\.[0-9]+)", word, re.IGNORECASE):
                    yield self.make("python", f"=={match[1]}.*", inferred="module")

    def _source(self, words: list[str]) -> Iterator[Statement]:
        target = words[1] if len(words) > 1 else ""
        if _STARTUP.search(target):
            yield self.make("startup", target)
        elif target == "activate" or target.endswith("/bin/activate"):
            named = words[2] if len(words) > 2 else target.removesuffix("activate").removesuffix("/bin/")
            yield self.make("activate", named)
        elif target and self.batch:
            yield self.make("activate", target)
        elif target:
            yield self.make("file", target, by="source")
        if _ABSOLUTE.fullmatch(target):
            yield self.make("trait", "hard-coded-path", path=target)

    def _find(self, words: list[str]) -> Iterator[Statement]:
        for word in words[1:]:
            if _ABSOLUTE.fullmatch(word):
                yield self.make("trait", "hard-coded-path", path=word)

    def _login(self, words: list[str]) -> Iterator[Statement]:
        if "login" in words:
            yield self.make("trait", "interactive", why=f"`{' '.join(words[:2])}` waits for an answer")

    def _build(self, words: list[str]) -> Iterator[Statement]:
        yield self.make("build", self.where[1] or ".", source=self.where[0], by=words[0])

    def _docker(self, words: list[str]) -> Iterator[Statement]:
        if "run" in words or "pull" in words:
            names = [word for word in words[2:] if _IMAGE.fullmatch(word)]
            for name in names[:1]:
                yield replace(self.make("image", name, by="docker"), optional=True)
            if "--privileged" in words:
                yield self.make("trait", "security", why="a privileged container")

    def _container(self, words: list[str]) -> Iterator[Statement]:
        """A run in an image of Apptainer: the environment is the image's."""
        if words[1:2] in (["exec"], ["run"], ["shell"], ["pull"], ["build"]):
            for word in words[2:]:
                if match := re.match(r"(?:docker|oras|library)://(\S+)", word):
                    yield replace(self.make("image", match[1], by="apptainer"), optional=True)
                if words[1] not in ("pull", "build") and (word.endswith(".sif") or match):
                    yield self.make("activate", match[1] if match else word)
                    return

    def _conda(self, words: list[str]) -> Iterator[Statement]:
        self._via = "conda"
        yield from conda(self, words)

    def _launch(self, words: list[str]) -> Iterator[Statement]:
        yield self.make("run", quoted(" ".join(words)), program=words[0])
        for word in words:
            if match := re.match(r"--container-image=(?:docker://)?([\w.#/:-]+)", word):
                yield replace(self.make("image", match[1].replace("#", "/"), by=words[0]), optional=True)
                yield self.make("activate", match[1])

    def _managed(self, words: list[str]) -> Iterator[Statement]:
        """poetry, pipenv, pdm, pixi and hatch: what they install stands in their manifest, or behind `add`."""
        manifest = {"pipenv": "Pipfile", "pixi": "pixi.toml"}.get(words[0], "pyproject.toml")
        verb, names = words[1] if len(words) > 1 else "", [word for word in words[2:] if not word.startswith("-")]
        if verb in ("install", "sync", "shell") and not (words[0] == "pipenv" and names):
            yield self.make("file", manifest, by="-r", source=self.where[0])
        elif verb in ("add", "install"):
            for name in names:
                kind: Kind = "package" if requirement(name) is not None else "unknown"
                yield self.make(kind, name if kind == "package" else words[0])

    def _script(self, words: list[str]) -> Iterator[Statement]:
        if "-c" in words:
            inner = words[words.index("-c") + 1 : words.index("-c") + 2]
            if inner and "$" not in inner[0]:
                for command in commands(inner[0]):
                    yield from self.command(command)
            return
        script = next((word for word in words[1:] if not word.startswith("-")), "")
        if script.startswith(("http:", "https:")):
            yield self.make("trait", "curl-to-shell")
        elif re.search(r"(?:^|/)(?:make|build|compile|install)[\w-]*\.sh$|setup\.sh$", script):
            folder = str(PurePosixPath(self.where[1], PurePosixPath(script).parent))
            yield self.make("build", folder, source=self.where[0], by=script)
            yield self.make("file", script, by=words[0])
        elif re.search(r"Miniconda|Anaconda|Miniforge|Mambaforge|Micromamba", script, re.IGNORECASE):
            yield self.make("download", script, program=words[0])
        elif re.search(r"train|finetune|(?:\b|_)(?:run|eval|infer|demo|test|launch)", script):
            yield self.make("run", quoted(" ".join(words)), program="sh")
        else:
            yield self.make("file", script, by=words[0])

    def _python(self, words: list[str]) -> Iterator[Statement]:
        rest = words[1:]
        script = next((word for word in rest if not word.startswith("-")), "")
        if rest[:1] == ["-c"] and len(rest) > 1:
            for match in _IMPORT.finditer(rest[1]):
                for module in (match[1] or match[2]).split(","):
                    yield self.make("import", module.strip())
        elif script.endswith("setup.py"):
            yield from self._setup_py(rest[rest.index(script) + 1 :], str(PurePosixPath(script).parent))
        elif rest[:1] == ["-m"]:
            if script == "venv" and "--system-site-packages" in rest:
                yield self.make("activate", rest[-1] if not rest[-1].startswith("-") else rest[-2], base="yes")
            if script in ("venv", "virtualenv", "ipykernel", "http.server", "unittest", "pytest", "build"):
                return
            yield self.make("run", quoted(" ".join(words)), program="python", module=script)
        elif script.endswith(".py"):
            yield self.make("run", quoted(" ".join(words)), program="python", script=script, folder=self.where[1])

    def _setup_py(self, arguments: list[str], folder: str) -> Iterator[Statement]:
        verbs = [word for word in arguments if word in ("install", "develop", "build", "build_ext", "bdist_wheel")]
        inside = str(PurePosixPath(self.where[1], folder))
        if verbs and not {"install", "develop"} & set(verbs):
            yield self.make("build", inside, source=self.where[0], by=f"setup.py {verbs[-1]}")
        elif verbs:
            yield self.make(
                "local", inside, source=self.where[0], legacy=verbs[-1],
                editable="yes" if "develop" in verbs else "",
                flags=" ".join(word for word in arguments if word.startswith("--") and "=" not in word),
            )  # fmt: skip


_LOOKS_AT: dict[str, Callable[[Shell, list[str]], Iterator[Statement]]] = {
    program: look
    for look, programs in (
        (Shell._git, ("git",)),
        (Shell._cd, ("cd", "pushd")),
        (Shell._export, ("export",)),
        (Shell._download, ("wget", "curl")),
        (Shell._edit, ("sed",)),
        (Shell._patch, ("patch",)),
        (Shell._module, ("module", "ml")),
        (Shell._source, ("source", ".")),
        (Shell._find, ("find",)),
        (Shell._login, ("huggingface-cli", "wandb", "hf")),
        (Shell._build, ("make", "cmake", "ninja")),
        (Shell._conda, ("conda", "mamba", "micromamba")),
        (Shell._system, _SYSTEM),
        (Shell._managed, _MANAGERS),
        (Shell._launch, _LAUNCHERS),
        (Shell._docker, ("docker", "nvidia-docker")),
        (Shell._container, ("apptainer", "singularity")),
    )
    for program in programs
}


def _unwrapped(words: list[str]) -> tuple[str, list[str]]:
    """The program that a command is about, with the words as if it had been called itself."""
    program = PurePosixPath(words[0]).name if not words[0].startswith(("./", "../")) else words[0]
    if re.fullmatch(r"pip(?:3(?:\.[0-9]+)?)?", program):
        return "pip", ["pip", *words[1:]]
    if _PYTHON.match(words[0]) and words[1:3] == ["-m", "pip"]:
        return "pip", ["pip", *words[3:]]
    if program == "mim" and words[1:2] == ["install"]:
        return "pip", ["pip", *words[1:], "-f", "https://download.openmmlab.com"]
    if program == "conda" and words[1:2] == ["run"] and "pip" in words:
        return "pip", words[words.index("pip") :]
    if program in ("poetry", "pipenv", "pdm", "pixi", "hatch", "uv") and words[1:2] == ["run"] and len(words) > 2:
        return _unwrapped(words[2:])
    return program, [program, *words[1:]]
