"""What of a target may not be what its author means: sentences for warnings, which refuse nothing."""

import posixpath
import re
from collections.abc import Iterator

from envbuild.model.target import JOB, MODULE, HostSource, Target
from envbuild.node.protocol import user_name
from envbuild.text import did_you_mean

# What the smoke test measures, without sizes.
FIGURES = (
    "training_tokens_per_second", "gemm_cpu_float32_tflops", "gemm_cpu_float64_tflops", "gemm_cuda_float32_tflops",
    "gemm_cuda_bf16_tflops", "gemm_cuda_fp16_tflops", "copy_host_to_device_gbps", "copy_device_to_host_gbps",
    "copy_device_gbps", "copy_peer_gbps", "copy_cpu_gbps", "all_reduce_busbw_gbps", "multi_node_busbw_gbps",
)  # fmt: skip
# Folders that every Linux has for itself.
_OWN_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108 - compared with, not written to


def doubts(target: Target) -> Iterator[str]:
    """What of it may not be what its author means."""
    kind, reached = target.scheduler.kind, target.connection
    # Hosts that are a partition are refused (`unsupported`).
    if kind != "none" and reached.kind != "job" and not isinstance(target.hosts, HostSource):
        yield (
            f"`scheduler: {{kind: {kind}}}` gets no job from `provision`: with `connection: {{kind: {reached.kind}}}` "
            f"it works on the hosts themselves; for jobs write `extends: {kind}`, or {JOB}"
        )
    if reached.kind == "job" and reached.user and not reached.login:
        yield f"`connection: {{user: {reached.user}}}` has no effect without `login: {{host: …}}`"
    yield from filter(None, (_not_shared(target), _at_home(target)))
    variables = [name for name in ("CUDA_HOME", "CUDA_PATH") if name in target.environment]
    if variables:
        how = MODULE if reached.kind == "job" else "the `PATH` of the node"
        says = f"`environment: {{{variables[0]}: …}}` does not choose the CUDA toolkit of builds; {how} does"
        yield f"{says}: docs/troubleshooting.md"
    for name in target.floors:
        if re.sub(r"_[0-9]+(_mib)?(?=_)", "", name) not in FIGURES:
            yield (
                f"`floors: {{{name}: …}}`: the smoke test measures no such figure, except where the `step` of a "
                f"stack does; {did_you_mean(name, FIGURES)}"
            )


def _at_home(target: Target) -> str:
    """That the prefix looks like a folder for all that a user has; nodes refuse a home. Empty where it does not."""
    own = posixpath.join(target.prefix, "envbuild")
    if re.search(r"/(home|users)/[^/]+/?$", target.prefix):
        return f"`prefix: {target.prefix}` looks like a home folder, which nodes refuse: write {own}"
    above, _, last = target.prefix.rstrip("/").rpartition("/")
    login = target.connection.login
    users = ("{user}", user_name(), target.connection.user, login and login.user)
    if last in users and "envbuild" not in above:
        return f"`prefix: {target.prefix}` may be a folder for all that is yours, not for envbuild alone: write {own}"
    return ""


def _not_shared(target: Target) -> str:
    """Why nodes may not see the prefix that they are said to share; empty where nothing speaks against it."""
    if target.placement != "shared" or target.connection.kind == "local":
        return ""
    above = (target.tmp or "").rpartition("/")[0]
    # A folder of the user's own says nothing of the disk that it is on.
    disk = target.tmp if not above or "{" in above else above
    folder = next((f for f in (*_OWN_FOLDERS, disk) if f and f"{target.prefix}/".startswith(f"{f}/")), None)
    if folder is None:
        return ""
    holds = " (`tmp:` is there)" if folder == disk else ""
    return (
        f"`prefix: {target.prefix}` is on each node's own disk if {folder}{holds} is, and `placement: shared` needs "
        "a folder that all nodes see; for a prefix on each node write `placement: node-local` and `shared: FOLDER`"
    )
