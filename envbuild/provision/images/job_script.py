"""The sbatch or qsub file that tests an image on every node of a job: `--print-script` where images run in jobs."""

from __future__ import annotations

import base64
import gzip
import json
import posixpath
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from envbuild.container.run_options import SAME_GPUS, ContainerFacts, choose, pyxis_options
from envbuild.errors import EnvbuildError
from envbuild.model.target import ContainerSettings
from envbuild.node.image.load import enroot_uri
from envbuild.node.program_files import carried
from envbuild.node.protocol import PROTOCOL
from envbuild.node_program import node_pyz
from envbuild.provision.images.obtain import Wanted, builds_in_job, needs_registry, settings_of, wanted
from envbuild.provision.images.plan import FILES, smoke_args, verify_args
from envbuild.provision.jobs.site import JobSite, proxies
from envbuild.provision.run.context import Prepared
from envbuild.schedule.job import JobStep
from envbuild.schedule.pbs import mpiexec

LIMIT = 3600
_NODES = '--nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1'
_HOME = {"user": '"$USER"', "home": '"$HOME"', "data": '"${XDG_DATA_HOME:-$HOME/.local/share}"'}
# mpiexec of PALS gives standard input to one rank alone, and says nothing of who printed a line.
_LABELLED = 'n=$(uname -n); "$@" < "$0" | sed "s/^/${n%%.*}: /"; exit "${PIPESTATUS[0]}"'


@dataclass(frozen=True)
class _Words:
    """How a scheduler's script says it: the number of the job, what comes first, and the runtimes that it can start.

    `run`: the lines that run a command on every node, where the file `$request` is its standard input.
    """

    number: str
    runtimes: tuple[str, ...]
    run: Callable[[str], list[str]]
    first: tuple[str, ...] = ()


def _srun(command: str) -> list[str]:
    """Slurm hands standard input to all."""
    return [f'srun {_NODES} --kill-on-bad-exit=0 --cpu-bind=none --label {command} < "$request" || code=$?']


def _mpiexec(command: str) -> list[str]:
    where = mpiexec('"$nodes"')
    return [f"{where} \\", f'  bash -c {shlex.quote(_LABELLED)} "$request" {command} || code=$?']


_WORDS = {
    "slurm": _Words("$SLURM_JOB_ID", tuple(FILES), _srun),
    "pbs": _Words(
        "$number",
        ("apptainer",),
        _mpiexec,
        ('number="${PBS_JOBID%%.*}"', 'nodes=$(sort -u -- "$PBS_NODEFILE" | wc -l)'),
    ),
}


def image_script(prepared: Prepared) -> str:
    """The whole file. Raises EnvbuildError as `image_body` and `JobSite.of` do."""
    target = prepared.target
    text = image_body(prepared)
    site = JobSite.of(target)
    job = site.job(f"envbuild-{prepared.stack.name}", [JobStep(argv=("true",))], "/", site.limit(LIMIT))
    return site.scheduler.render_body(job, text)


def image_body(prepared: Prepared) -> str:
    """What the job runs. Raises EnvbuildError `script-impossible`, `container-needs-registry` (exit 7)."""
    settings, target = settings_of(prepared), prepared.target
    words = _WORDS.get(target.scheduler.kind)
    if target.connection.kind != "job" or words is None or settings.runtime not in words.runtimes:
        raise EnvbuildError(
            "script-impossible",
            f"envbuild cannot print a script for the target {target.name}",
            why=f"connection {target.connection.kind}, scheduler {target.scheduler.kind}, runtime {settings.runtime}; "
            f"scripts are printed for jobs of Slurm with {', '.join(FILES)}, and of PBS with apptainer",
            hint="`envbuild image build` builds the image; over SSH, `envbuild provision` copies it to the nodes",
        )
    image = wanted(prepared)
    reference = settings.image or (settings.registry and f"{settings.registry}:{image.name.rpartition(':')[2]}")
    if reference is None and not builds_in_job(prepared):
        raise needs_registry("a local tag is known on the machine that built it and nowhere else")
    return "\n".join([*_head(prepared, settings, reference, words), *_file(prepared, settings, reference, image, words),
                      *_tests(prepared, settings, image)])  # fmt: skip


def _head(prepared: Prepared, settings: ContainerSettings, reference: str | None, words: _Words) -> list[str]:
    lines = [
        "#!/usr/bin/env bash",
        f"# Makes one file of the image of {prepared.stack.name}, and tests inside it on every node of the job.",
    ]
    stack = shlex.quote(prepared.reference)
    if reference is not None and settings.image is None:
        build = f"envbuild image build {stack} --push {shlex.quote(reference)}"
        lines.append(f"# The image has to be there before: {build}")
    lines += ["set -euo pipefail", "umask 022", *words.first]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(proxies(prepared.target).items())]
    return [*lines, ""]


def _path(*parts: str) -> str:
    """A path of a target as a word of the shell, where that knows user and home."""
    text = posixpath.join(*parts)
    pieces = re.split(r"\{(user|home|data)\}", text)
    return "".join(_HOME[piece] if at % 2 else shlex.quote(piece) for at, piece in enumerate(pieces) if piece)


def _file(
    prepared: Prepared, settings: ContainerSettings, reference: str | None, image: Wanted, words: _Words
) -> list[str]:
    """Making the file, once; what is half made never has its name."""
    target, extension = prepared.target, FILES[settings.runtime]
    folder = posixpath.join(target.shared or target.prefix, "images")
    name = f"{prepared.stack.name}-{image.variant.digest[:12]}"
    half = f'"$file.{words.number}"'
    # Runtimes unpack tens of gigabytes; without this in /tmp and below the home folder. enroot cannot unpack on every
    # file system of a network, so it does so only where the target says.
    tmp = _path(target.tmp or posixpath.join(target.shared or target.prefix, "tmp"))
    build = f"APPTAINER_TMPDIR={tmp} APPTAINER_CACHEDIR={tmp} apptainer build"
    unpack = f"ENROOT_TEMP_PATH={tmp} " if target.tmp else ""
    first: list[str] = []
    if reference is None:
        write = f'envbuild image dockerfile {shlex.quote(prepared.reference)} --apptainer -o "$context"'
        first = [f"# It has to be there before: {write}", f"context={_path(folder, name + '.context')}"]
        make = f'(cd -- "$context" && {build} {half} apptainer.def)'
    elif settings.runtime == "apptainer":
        make = f"{build} {half} {shlex.quote(f'docker://{reference}')}"
    else:
        make = f"{unpack}ENROOT_CACHE_PATH={tmp} enroot import --output {half} {shlex.quote(enroot_uri(reference))}"
    return [
        *first,
        f"file={_path(folder, f'{name}.{extension}')}",
        f"mkdir -p -- {_path(folder)}",
        "# On the first node alone; the others read the file, so its folder has to be one that all see.",
        'if [ ! -e "$file" ]; then',
        f"  mkdir -p -- {tmp}",
        f"  {make} < /dev/null",
        f'  mv -- {half} "$file"',
        "fi",
        "",
    ]


def _tests(prepared: Prepared, settings: ContainerSettings, image: Wanted) -> list[str]:
    """`verify` and `smoke` of the node program in the image, on every node; the program is in the script."""
    cuda = settings.gpus != "none" and bool(prepared.target.expects.gpus_per_node)
    asked = {"verify": verify_args(prepared, image), "smoke": {**smoke_args(prepared, image), "cuda": cuda}}
    program, words = node_pyz(), _WORDS[prepared.target.scheduler.kind]
    packed = base64.encodebytes(gzip.compress(program, mtime=0)).decode().splitlines()
    lines = [
        "code=0",
        f'request="$file.{words.number}.request" program="$file.{words.number}.pyz"',
        'trap \'rm -f -- "$request" "$program"\' EXIT',
        "# envbuild's node program, which tests inside and leaves nothing there; it goes in by standard input.",
        "base64 -d << 'EOF' | gzip -d > \"$program\"",
        *packed,
        "EOF",
    ]
    if settings.runtime == "pyxis":
        command = f'--container-image="$file" {shlex.join(pyxis_options(settings, gpus=cuda))}'
    else:
        facts = ContainerFacts({settings.runtime: {"works": True}}, gpus=int(cuda))
        begins = shlex.join(choose("the nodes of the job", settings, facts).command("@FILE@"))
        inside = "\n".join([*SAME_GPUS, f'exec {begins} "$@"']).replace("@FILE@", '"$0"')
        lines += ["# On each node, with the GPUs that the scheduler gives there; its $0 is the file.",
                  f"inside={shlex.quote(inside)}"]  # fmt: skip
        command = 'sh -c "$inside" "$file"'
    python = f"{image.environment}/bin/python"
    for verb, args in asked.items():
        request = {"protocol": PROTOCOL, "verb": verb, "run": "script", "prefix": image.prefix, "args": args}
        text = shlex.quote(json.dumps(request, sort_keys=True, allow_nan=False, separators=(",", ":")))
        lines += [f"# {verb}: every node prints one line of JSON.", 'cp -- "$program" "$request"',
                  f'printf %s {text} >> "$request"',
                  *words.run(f"{command} {shlex.join(carried(python, len(program), verb))}")]  # fmt: skip
    return [*lines, 'exit "$code"', ""]
