"""What is described: `envbuild stack`, `target` and `patch`, shipped and of files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import names
from envbuild.cli.choose import stack_argument, usual_stack
from envbuild.cli.output import Ui, columns, common_options, each_checked, named
from envbuild.cli.verbs import Group
from envbuild.config import load_config
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.node.build.patch_sources import apply
from envbuild.node.protocol import NodeError
from envbuild.node.redact import redact_data
from envbuild.text import did_you_mean, plural

if TYPE_CHECKING:
    from envbuild.catalog.loader import LoadedStack
    from envbuild.model.facts import NodeFacts
    from envbuild.model.stack import CondaSpec, Profile
    from envbuild.model.target import Target


@click.group("stack", cls=Group)
def stack() -> None:
    """Stacks: the systems that can be reproduced."""


@stack.command("list")
@common_options
def stack_list(ui: Ui) -> None:
    """List the shipped stacks."""
    from envbuild.catalog.loader import list_stacks, load_stack

    rows = []
    for name in list_stacks():
        loaded = load_stack(name)
        rows.append({"name": name, "summary": loaded.stack.summary, "profiles": list(loaded.stack.profiles)})
    table = [(str(row["name"]), [str(row["summary"]), f"profiles: {', '.join(row['profiles'])}"]) for row in rows]
    ui.result({"stacks": rows}, lambda: named(table))


@stack.command("show")
@stack_argument()
@common_options
def stack_show(ui: Ui, stack: str | None) -> None:
    """Show STACK: a shipped name or a file (default: the configured one)."""
    from envbuild.catalog.loader import load_stack

    loaded = load_stack(stack or usual_stack(None, load_config()) or "torch-smoke")
    data = {"path": str(loaded.path), "shipped": loaded.shipped, "locks": _locks(loaded)}
    ui.result({**data, "stack": loaded.stack.to_json_dict()}, lambda: _described(loaded))


@stack.command("check")
@click.argument("stacks", nargs=-1, required=True, shell_complete=names.stacks)
@common_options
def stack_check(ui: Ui, stacks: tuple[str, ...]) -> int:
    """Check each of STACKS: names or files.

    The exit code is that of the first refused one.
    """
    from envbuild.catalog.loader import load_stack
    from envbuild.resolve.compat_read import load_compat
    from envbuild.resolve.profile import refuse, unlocked

    compat = load_compat()

    def load(reference: str) -> dict[str, Any]:
        stack = load_stack(reference).stack
        warnings = []
        for name, profile in stack.profiles.items():
            refuse(profile, compat)
            warnings += [f"profile {name}: {text}" for text in unlocked(profile, compat)]
        return {"name": stack.name, "warnings": warnings}

    return each_checked(ui, "stack", stacks, load)


def _locks(loaded: LoadedStack) -> dict[str, dict[str, Any]]:
    from envbuild.catalog.loader import lock_path

    paths = {profile: lock_path(loaded, profile) for profile in loaded.stack.profiles}
    return {profile: {"path": str(path), "exists": path.is_file()} for profile, path in paths.items()}


def _described(loaded: LoadedStack) -> str:
    stack = loaded.stack
    lines = [f"{stack.name}: {stack.summary}", f"file      {loaded.path}"]
    if stack.document:
        lines.append(f"document  {stack.document.title} <{stack.document.url}>")
    locks = _locks(loaded)
    for name, profile in stack.profiles.items():
        lines += ["", f"profile {name}" + (" (default)" if name == stack.default_profile else "")]
        lines += [
            f"  {label:12}{text}" for label, text in _profile_lines(profile, stack.built_on.get(name, "")) if text
        ]
        lines.append(f"  {'lock':12}{locks[name]['path']}" + ("" if locks[name]["exists"] else " (not there yet)"))
    for finding in stack.findings:
        mark = ", unverified" * finding.unverified
        lines += ["", f"finding {finding.id} ({finding.severity}{mark})", f"  says   {finding.says}"]
        lines += [f"  truth  {finding.truth}", f"  does   {finding.does}"]
    return "\n".join(lines)


def _conda_line(conda: CondaSpec) -> str:
    """What conda installs and from where, and what of pip's it installs instead."""
    instead = f"; instead of wheels: {', '.join(conda.provides)}" if conda.provides else ""
    channels = ", ".join(channel.name for channel in conda.channels)
    return f"{', '.join(conda.packages) or 'Python'} from {channels}{instead}"


def _needs(profile: Profile, built_on: str) -> str:
    """What the profile needs of a node, and the GPUs on which it was built, as far as they are known."""
    from envbuild.model.finding import package_name
    from envbuild.resolve.artifacts import flavour_cuda
    from envbuild.resolve.variant_checks import needs_nvcc

    compiles = any(source.build and needs_nvcc(source.build) for source in profile.pinned_sources)
    versions = [flavour_cuda(flavour) for flavour in profile.torch.flavours] if profile.torch and compiles else []
    nvcc = " or ".join(dict.fromkeys(str(version[0]) for version in versions if version))
    needs = [f"nvcc of CUDA {nvcc}"] * bool(nvcc) + ["nvcc of its torch's CUDA"] * (compiles and not nvcc)
    needs.append(f"Python {' or '.join(profile.python)}")
    if profile.mpi_for_one_node:
        needs.append("no MPI of the site (MPICH of a wheel, for one node)")
    elif "mpi4py" in {source.name for source in profile.sources}:
        needs.append("the site's MPI")
    elif "mpi4py" in (package_name(text) for base in profile.bases for text in base.provides):
        needs.append("the MPI of its base")
    return "; ".join(needs) + (f"; built on {built_on}" if built_on else "")


def _profile_lines(profile: Profile, built_on: str) -> list[tuple[str, str]]:
    torch = f"{profile.torch.version} ({', '.join(profile.torch.flavours)})" if profile.torch else ""
    values = {name: value if isinstance(value, str) else f"{value.path} (if it exists)"
              for name, value in profile.environment.items()}  # fmt: skip
    sources = [f"{s.name} {s.commit[:12]} ({s.install})" for s in profile.pinned_sources]
    sources += [f"{tree.name} {tree.path} ({tree.install})" for tree in profile.working_trees]
    return [
        ("needs", _needs(profile, built_on)),
        ("python", f"{', '.join(profile.python)} ({', '.join(profile.interpreters)})"),
        ("torch", torch),
        ("conda", _conda_line(profile.conda) if profile.conda else ""),
        ("bases", ", ".join(base.kind for base in profile.bases)),
        ("packages", ", ".join(profile.packages)),
        ("sources", ", ".join(sources)),
        ("variables", ", ".join(f"{name}={value}" for name, value in values.items())),
        ("smoke", ", ".join(item.name for item in profile.smoke_items)),
        ("runs", profile.runs),
    ]


@click.group("target", cls=Group)
def target() -> None:
    """Targets: where environments are built."""


@target.command("list")
@common_options
def target_list(ui: Ui) -> None:
    """List the shipped targets."""
    from envbuild.catalog.loader import is_template, list_targets, load_target

    rows = []
    for name in list_targets():
        shipped = load_target(name, template=True).target
        rows.append({"name": name, "summary": shipped.summary, "template": is_template(shipped)})
    ui.result({"targets": rows}, lambda: named([(str(row["name"]), [str(row["summary"])]) for row in rows]))


@target.command("check")
@click.argument("targets", nargs=-1, required=True, shell_complete=names.targets)
@common_options
def target_check(ui: Ui, targets: tuple[str, ...]) -> int:
    """Check each of TARGETS: names or files.

    The exit code is that of the first refused one. Looks up the stack that a target names; contacts no host.
    A shipped template may leave values open; your own file must give them all.
    """
    from envbuild.catalog.loader import is_path, is_template, load_target, pick_profile
    from envbuild.model.doubts import doubts
    from envbuild.provision.survey.hosts import unsupported

    def load(reference: str) -> dict[str, Any]:
        target, stack = valid_target(reference, whole=True)
        warnings = list(doubts(target))
        if stack is not None:
            if is_path(reference) and (lender := load_target(reference, template=True).lender):
                ui.note(f"{reference}: stack: {target.stack}, from the target {lender}")
            able, why = fit(stack, pick_profile(stack, target.profile), target)
            if why:
                warnings.insert(0, f"{why}; `profile: {able}` fits" if able else why)
        for missing, instead in unsupported(target).items():
            plan = f"write `{instead}`, or see a plan with `plan --facts`"
            warnings.append(f"`provision` does not support {missing} yet; {plan}")
        unknown = unknown_gpu(target.expects.gpu) if target.expects.gpu else ""
        if doubt := unknown or several_models(target.expects.gpu):
            warnings.append(f"expects.gpu: {doubt}")
        return {"name": target.name, "template": is_template(target), "warnings": warnings}

    return each_checked(ui, "target", targets, load)


def fit(
    loaded: LoadedStack, usual: str, target: Target, nodes: Mapping[str, NodeFacts] | None = None
) -> tuple[str | None, str]:
    """The profile that fits, None where none does, and why it is not the usual one.

    Judged are the nodes; without facts, the target and its GPUs if these are known.
    """
    from envbuild.explain.view import Candidates, fitting
    from envbuild.provision.survey.ask import rules

    judged = Candidates(loaded, nodes or {}, target, rules()).fits()
    if judged[usual].fits:
        return usual, ""
    able = fitting(loaded, judged)
    if able is not None:
        return able, f"{usual} does not fit: {judged[usual].why}"
    reasons = "; ".join(f"{judgement.name}: {judgement.why}" for judgement in judged.values())
    return None, f"no profile of {loaded.stack.name} fits: {reasons}"


def valid_target(reference: str, *, whole: bool = False) -> tuple[Target, LoadedStack | None]:
    """A target or template whose stack and profile are there, and the stack; `whole`: an own file is no template."""
    from envbuild.catalog.loader import load_stack, load_target, pick_profile, refuse_template

    loaded = load_target(reference, template=True)
    if whole:
        refuse_template(loaded, contacted=False)
    name = loaded.target.stack
    stack = load_stack(name) if name else None
    if stack is not None:
        pick_profile(stack, loaded.target.profile)
    return loaded.target, stack


@target.command("show")
@click.argument("target", required=False, shell_complete=names.targets)
@common_options
def target_show(ui: Ui, target: str | None) -> None:
    """Show TARGET, a name or a file, with what its `extends:` adds.

    Without TARGET, the configured one.
    """
    from envbuild.catalog.loader import is_template, load_target

    loaded = load_target(target or load_config().target, template=True)
    data = loaded.target.to_json_dict()
    template = is_template(loaded.target)
    files = [str(path) for path in loaded.files]
    if template:
        ui.note("this is a template: extend it and say what stands in <angle brackets>")
    result = {"path": str(loaded.path), "files": files, "shipped": loaded.shipped, "template": template, "target": data}
    ui.result(result, lambda: "".join([*(f"# from {path}\n" for path in files), _as_file(redact_data(data))]))


def unknown_gpu(model: str) -> str:
    """That a GPU model is not in our tables, with the nearest that is; empty where it is."""
    from envbuild.provision.survey.ask import rules
    from envbuild.resolve.compat import rows_like

    near = did_you_mean(model.upper(), [gpu.name for gpu in rules().gpus.values()])
    known = rows_like(model.removeprefix("NVIDIA "), rules())
    return "" if known else f"{model!r} is no GPU model that envbuild knows; {near}"


def several_models(name: str | None, usual: str = "") -> str:
    """That a GPU's name fits several models, those first that `usual` fits too; empty where it fits one."""
    from envbuild.provision.survey.ask import rules
    from envbuild.resolve.compat import is_model, rows_like

    models = sorted(
        (gpu.name for gpu in rows_like(name, rules())), key=lambda model: not (usual and is_model(usual, model))
    )
    return f"{name} fits {', '.join(models)}; name the one that `nvidia-smi -L` prints" if len(models) > 1 else ""


def _as_file(data: dict[str, Any]) -> str:
    """As a target file says it that extends no other."""
    import yaml

    plain = _plain({key: value for key, value in data.items() if key != "extends"})
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100))


def _plain(value: Any) -> Any:
    """A value without its empty parts."""
    if not isinstance(value, dict):
        return [_plain(item) for item in value] if isinstance(value, list) else value
    plain = {key: _plain(item) for key, item in value.items()}
    return {key: item for key, item in plain.items() if item not in (None, {}, [], "")}


@click.group("patch", cls=Group)
def patch() -> None:
    """Patches: edits of pinned sources, counted and checked."""


@patch.command("list")
@common_options
def patch_list(ui: Ui) -> None:
    """List every patch, and how many commits it was tried on."""
    from envbuild.catalog.patches import digest_of, load_patches

    patches = load_patches()
    data = {"patches": [{**one.to_json_dict(), "digest": digest_of(name)} for name, one in patches.items()]}
    rows = [(patch.name, str(len(patch.tried)), patch.summary) for patch in patches.values()]
    ui.result(data, lambda: columns([("patch", "commits", "what it does"), *rows]))


@patch.command("apply")
@click.argument("name", shell_complete=names.patches)
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when the patch is not applied yet.")
@click.option("--diff", is_flag=True, help="Print the unified diff.")
@click.option(
    "--commit",
    metavar="HASH",
    help="Commit of DIRECTORY; where the patch was tried on it, the number of hits must be exact.",
)
@click.option("--digest", metavar="SHA256", help="Refuse a patch that changed after it was locked.")
@common_options
def patch_apply(
    ui: Ui, /, name: str, directory: Path, check: bool, diff: bool, commit: str | None, digest: str | None
) -> int:
    """Apply the patch NAME to the checkout DIRECTORY.

    --check changes nothing and prints what would change. Changes all files or none. A patch that is
    already applied is reported, and changes nothing.
    """
    from envbuild.catalog.patches import digest_of, load_patch

    patch = load_patch(name)
    if digest is not None and digest_of(name) != digest:
        raise EnvbuildError(
            "patch-changed",
            f"the patch {name} is not the one that was locked",
            why=f"it has digest {digest_of(name)[:12]}, wanted is {digest[:12]}",
            hint="find out why it differs; then `envbuild lock create STACK` locks the patch as it is now",
        )
    try:
        (result,) = apply(str(directory), [patch.spec(patch.expected(commit))], check=check)
    except NodeError as error:
        raise EnvbuildError.from_dict(error.as_dict()) from None
    ui.result({"ok": True, **result}, lambda: _applied(result, diff=diff))
    return ExitCode.CHECK_FAILED if check and not result["already"] else ExitCode.OK


def _applied(result: dict[str, Any], *, diff: bool) -> str:
    done = "already applied" if result["already"] else "would be applied" if result["check"] else "applied"
    lines = [f"{result['name']}: {done}, {plural(result['hits'], 'place')}"]
    for row in result["files"]:
        before, after = row["sha256_before"][:12], row["sha256_after"][:12]
        lines.append(f"  {row['path']}: {row['hits']}, {before if before == after else f'{before} -> {after}'}")
    return "\n".join(lines) + "\n" + (result["diff"] if diff else "")
