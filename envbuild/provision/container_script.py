"""The sbatch file that tests an image on every node of a job: what `--print-script` says where images run in jobs."""

from __future__ import annotations

import json
import posixpath
import shlex

from envbuild.container.engine import ContainerFacts, choose, pyxis_options
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.container import ContainerSettings
from envbuild.node.protocol import PROTOCOL
from envbuild.provision.container_image import Wanted, settings_of, wanted
from envbuild.provision.container_plan import smoke_args
from envbuild.provision.job_site import JobSite
from envbuild.provision.prepare import Prepared
from envbuild.schedule.job import JobStep, seconds_of

FILES = {"pyxis": "sqsh", "enroot": "sqsh", "apptainer": "sif"}
LIMIT = 3600
_NODES = '--nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1'


def image_script(prepared: Prepared) -> str:
    """The whole file. Raises EnvbuildError as `image_body` and `JobSite.of` do."""
    target = prepared.target
    text = image_body(prepared)
    site = JobSite.of(target)
    limit = seconds_of(target.scheduler.time_limit) if target.scheduler.time_limit else LIMIT
    job = site.job(f"envbuild-{prepared.stack.name}", [JobStep(argv=("true",))], "/", limit)
    return site.scheduler.render_body(job, text)


def image_body(prepared: Prepared) -> str:
    """What the job runs. Raises EnvbuildError `script-of-image`, `container-needs-registry` (exit 7)."""
    settings, target = settings_of(prepared), prepared.target
    extension = FILES.get(settings.runtime)
    if target.connection.kind != "job" or target.scheduler.kind != "slurm" or extension is None:
        raise EnvbuildError(
            "script-of-image",
            f"there is no script that does without envbuild what {target.name} asks for",
            why=f"connection {target.connection.kind}, scheduler {target.scheduler.kind}, runtime {settings.runtime}; "
            f"scripts are printed for jobs of Slurm with {', '.join(FILES)}",
            hint="`envbuild image build` makes the image; where nodes take SSH, `envbuild provision` brings it to them",
            exit_code=ExitCode.REFUSED,
        )
    image = wanted(prepared)
    reference = settings.image or (settings.registry and f"{settings.registry}:{image.name.rpartition(':')[2]}")
    if reference is None:
        raise EnvbuildError(
            "container-needs-registry",
            "the nodes of a job need an image from a registry",
            why="a local tag is known on the machine that built it and nowhere else",
            hint="say `registry:` or `image:` in the `container:` section of the target",
            exit_code=ExitCode.REFUSED,
        )
    folder = posixpath.join(target.shared or target.prefix, "images")
    name = f"{prepared.stack.name}-{image.variant.digest[:12]}.{extension}"
    return "\n".join([*_head(prepared, settings, reference), *_file(settings, reference, folder, name),
                      *_tests(prepared, settings, image)])  # fmt: skip


def _head(prepared: Prepared, settings: ContainerSettings, reference: str) -> list[str]:
    lines = [
        "#!/usr/bin/env bash",
        f"# Makes one file of the image of {prepared.stack.name}, and tests inside it on every node of the job.",
    ]
    if settings.image is None:
        build = f"envbuild image build {shlex.quote(prepared.reference)} --push {shlex.quote(reference)}"
        lines.append(f"# The image has to be there before: {build}")
    return [*lines, "set -euo pipefail", "umask 022", ""]


def _file(settings: ContainerSettings, reference: str, folder: str, name: str) -> list[str]:
    """Making the file, once; what is half made never has its name."""
    if settings.runtime == "apptainer":
        make = f'apptainer build "$file.$SLURM_JOB_ID" {shlex.quote(f"docker://{reference}")}'
    else:
        registry, _, path = reference.partition("/")
        # enroot writes a digest as if it were a tag.
        uri = f"docker://{registry}#{path.replace('@', ':')}"
        make = f'enroot import --output "$file.$SLURM_JOB_ID" {shlex.quote(uri)}'
    return [
        f"file={shlex.quote(posixpath.join(folder, name))}",
        f"mkdir -p -- {shlex.quote(folder)}",
        "# On the first node alone; the others read the file, so its folder has to be one that all see.",
        'if [ ! -e "$file" ]; then',
        f"  {make} < /dev/null",
        '  mv -- "$file.$SLURM_JOB_ID" "$file"',
        "fi",
        "",
    ]


def _tests(prepared: Prepared, settings: ContainerSettings, image: Wanted) -> list[str]:
    """`verify` and `smoke` of the node program in the image, on every node; srun hands standard input to all."""
    cuda = settings.gpus != "none" and bool(prepared.target.expects.gpus_per_node)
    verify = {"stack": prepared.stack.name, "deep": True, "variant": image.variant.to_json_dict(), "limit": 20}
    asked = {"verify": verify, "smoke": {**smoke_args(prepared, image), "cuda": cuda}}
    entry = f"{image.prefix}/image/entrypoint.sh"
    program = [f"{image.environment}/bin/python", f"{image.prefix}/image/envbuild-node.pyz"]
    if settings.runtime == "pyxis":
        words = ["--container-image=@FILE@", *pyxis_options(settings), "/bin/sh", entry, *program]
    else:
        facts = ContainerFacts({settings.runtime: {"works": True}}, gpus=int(cuda))
        words = [*choose("the nodes of the job", settings, facts).command("@FILE@", entry), *program]
    command = shlex.join(words).replace("@FILE@", '"$file"')
    lines = ["code=0"]
    for verb, args in asked.items():
        request = {"protocol": PROTOCOL, "verb": verb, "run": "script", "prefix": image.prefix, "args": args}
        text = json.dumps(request, sort_keys=True, allow_nan=False, separators=(",", ":"))
        lines += [
            f"# {verb}: every node prints one line of JSON.",
            f"srun {_NODES} --kill-on-bad-exit=0 --label {command} {verb} <<< {shlex.quote(text)} || code=$?",
        ]
    return [*lines, 'exit "$code"', ""]
