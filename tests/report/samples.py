"""Evidence as runs leave it, for tests of the report."""

from __future__ import annotations

from typing import Any

from envbuild.model.evidence import Evidence

DIGEST = "3f1c9a0b72d4" + "e5" * 26
ROOT = "9b2e44d0aa17" + "0c" * 26


def shown(html: str) -> str:
    """A page without the evidence that it carries."""
    return html.partition('<script type="application/json"')[0]


def facts(node: str, gpus: int = 0) -> dict[str, Any]:
    """NodeFacts JSON of a Debian machine, with or without GPUs."""
    gpu = {"name": "NVIDIA A100-SXM4-80GB", "memory_mib": 81920, "compute_capability": "8.0"}
    return {
        "protocol": 1,
        "node": node,
        "hostname": node,
        "user": "ada",
        "probed_at": "2026-03-02T10:00:00Z",
        "os": {"id": "debian", "version": "12", "kernel": "6.1.0-18-amd64", "arch": "x86_64"},
        "libc": {"kind": "glibc", "version": "2.36"},
        "cpus": 96,
        "memory_bytes": 1900 * 2**30,
        "pythons": [{"path": "/usr/bin/python3.11", "version": "3.11.2"}],
        "compilers": [{"path": "/usr/bin/gcc", "version": "12.2.0"}],
        "nvcc": [{"path": "/usr/local/cuda/bin/nvcc", "version": "12.4"}] if gpus else [],
        "driver": {"version": "550.54.15", "cuda_ceiling": "12.4"} if gpus else {"problem": "no NVIDIA driver"},
        "gpus": [{"index": index, **gpu} for index in range(gpus)],
        "gpus_physical": gpus or None,
        "nics": [{"name": "ib0", "kind": "infiniband", "rate_gbps": 200.0}] if gpus else [],
        "prefix": {"path": "/shared/envbuild", "writable": True},
    }


def decisions() -> list[dict[str, Any]]:
    """Decisions of each verdict but refusal."""
    return [
        {
            "rule": "driver-too-old",
            "verdict": "allow",
            "what": "the driver runs CUDA 12.4, the build needs 11.8",
            "compared": ["550.54.15 (CUDA 12.4)", ">= 450.80.02"],
            "source": "CUDA compatibility guide, table 2",
        },
        {
            "rule": "nvcc-minor-mismatch",
            "verdict": "patch",
            "what": "nvcc and torch differ in the minor version; the check of Apex is patched",
            "compared": ["12.4", "11.8"],
            "source": "Apex setup.py",
            "verified": "2026-02",
        },
        {"rule": "python-end-of-life", "verdict": "warn", "what": "Python 3.9 receives no more fixes"},
    ]


def resolution(node: str) -> dict[str, Any]:
    """A resolution with one variant refused and one chosen."""
    refused = {
        "rule": "torch-flavour-missing",
        "verdict": "refuse",
        "what": "torch 1.10.0 has no cu116 build",
        "compared": ["cu116", "cu102, cu111, cu113"],
        "source": "wheel index",
        "instead": "torch 1.12.1+cu116",
    }
    return {
        "node": node,
        "stack": "torch-smoke",
        "profile": "exact",
        "variant_id": "venv-py311-cpu",
        "variant_digest": DIGEST,
        "interpreter": "/usr/bin/python3.11",
        "decisions": decisions(),
        "candidates": [
            {"variant_id": "venv-py311-cu116", "chosen": False, "decisions": [refused]},
            {"variant_id": "venv-py311-cpu", "chosen": True, "decisions": decisions()},
        ],
    }


def checks(floor: float | None = None) -> list[dict[str, Any]]:
    """Passed, skipped and (with a floor) failed checks."""
    rate = {"name": "training_tokens_per_second", "unit": "token/s", "n": 59, "median": 115472.1}
    rate |= {"least": 92707.6, "greatest": 126524.8} | ({"floor": floor} if floor is not None else {})
    bus = {"name": "all_reduce_busbw_gbps", "unit": "GB/s", "n": 10, "median": 1.32, "least": 0.99, "greatest": 1.76}
    missed = floor is not None and floor > 115472.1
    says = "training_tokens_per_second is 115,472 token/s, below its floor 200,000"
    return [
        {
            "name": "smoke/sound",
            "status": "passed",
            "says": "3 modules imported from the locked place, 11 packages found at the locked version",
            "seconds": 3.7,
            "details": {"python": "3.11.2", "torch": "2.13.0+cpu"},
        },
        {
            "name": "smoke/machine/all-reduce",
            "status": "passed",
            "says": "the sum over 2 ranks (gloo) is exact in every size and dtype",
            "seconds": 2.9,
            "metrics": [bus],
        },
        {
            "name": "smoke/training",
            "status": "failed" if missed else "passed",
            "says": says if missed else "the loss fell from 4.41 to 0.0312 in 60 steps",
            "seconds": 4.7,
            "metrics": [rate],
            "details": {"loss_first": 4.41, "loss_last": 0.0312, "first_step_seconds": 0.043},
        },
        {"name": "verify/deep", "status": "skipped", "says": "not asked for"},
    ]


def node(name: str = "localhost", gpus: int = 0, **changes: Any) -> dict[str, Any]:
    """NodeEvidence JSON of a node on which all went well, with `changes`."""
    good = {
        "node": name,
        "status": "ok",
        "exit": 0,
        "facts": facts(name, gpus),
        "resolution": resolution(name),
        "environment": "/shared/envbuild/envs/torch-smoke-exact-3f1c9a0b72d4",
        "variant_digest": DIGEST,
        "root": ROOT,
        "root_level": "measured",
        "packages": {
            "torch": "2.13.0+cpu",
            "sympy": "1.14.0",
            "numpy": "2.4.1",
            "networkx": "3.6",
            "jinja2": "3.1.6",
            "filelock": "3.20.0",
        },
        "sources": [{"name": "megatron-lm", "commit": "a8b78674" * 5, "tree": "833b89ad" * 5}],
        "checks": checks(),
        "files": 12042,
        "bytes": 747 * 2**20,
    }
    return good | changes


def evidence(*nodes: dict[str, Any], **changes: Any) -> Evidence:
    """Evidence of one provision, with `changes`; one good node when none is given."""
    data = {
        "envbuild": "0.1.0",
        "verb": "provision",
        "run": "20260302T100000Z-4f2a",
        "started": "2026-03-02T10:00:00Z",
        "finished": "2026-03-02T10:00:58Z",
        "stack": "torch-smoke",
        "profile": "exact",
        "target": "local",
        "lock_digest": "77" * 32,
        "exit": 0,
        "command": ["envbuild", "provision", "--target", "local"],
        "nodes": list(nodes) or [node()],
        "deviations": ["torch comes as the CPU build; the document names CUDA 11.6"],
        "warnings": ["the compiler is newer than the one the document names: gcc 12.2.0 instead of 9.4"],
        "tools": {"ansible-core": "2.21.5", "uv": "0.13.8"},
        "steps_run": 6,
        "phases": {"probe": 0.9, "install": 31.2, "smoke": 13.6, "activate": 4.1, "verify": 2.2},
    }
    return Evidence.from_plain(data | changes)


DIFF = """\
--- a/setup.py
+++ b/setup.py
@@ -180,4 +180,5 @@
 if "--cuda_ext" in sys.argv:
     sys.argv.remove("--cuda_ext")
     raise_if_home_none("--cuda_ext")
-    check_cuda(CUDA_HOME)
+    print("envbuild: nvcc and torch have the same CUDA major version: the check of the minor one is passed over")
+    pass
@@ -900,2 +901,3 @@
 )
+# envbuild patch apex-cuda-check: 1 hit
"""


def built_source(**build: Any) -> dict[str, Any]:
    """A source as a node tells it that patched it and built its wheel; `build` changes what it says of the build."""
    names = ("amp_C", "apex_C", "fused_layer_norm_cuda", "mlp_cuda", "syncbn", "xentropy_cuda")
    facts = {
        "key": "ab" * 32,
        "from": "built",
        "wheel": "apex-0.1-cp311-cp311-linux_x86_64.whl",
        "sha256": "cd" * 32,
        "route": "setup.py",
        "seconds": 83.2,
        "jobs": 16,
        "extensions": list(names),
        "arch": {
            "wanted": ["9.0"],
            "found": {name: [] if name == "apex_C" else ["sm_90"] for name in names},
            "how": "cuobjdump",
        },
        "network": "off",
        "ccache": False,
        "retried": False,
        "rebuild": None,
    }
    patch = {
        "name": "apex-cuda-check",
        "digest": "ef" * 32,
        "changed": True,
        "hits": 1,
        "notes": ["nvcc 12.4, torch CUDA 12.1: same major, passed over"],
        "files": [{"path": "setup.py", "hits": 1, "sha256_before": "01" * 32, "sha256_after": "02" * 32}],
        "diff": DIFF,
    }
    return {
        "name": "apex",
        "git": "https://github.com/NVIDIA/apex",
        "commit": "526871a2" * 5,
        "tree": "68d37a62" * 5,
        "install": "wheel",
        "patches": [patch],
        "build": facts | build,
    }


def steps(slow: float = 1.0) -> list[dict[str, Any]]:
    """The steps of a node as a journal gives them."""
    rows = (("toolchain", 0.9, 0.6, {}), ("install", 1.6, 31.2 * slow, {"fetch": 12.4, "link": 9.1, "record": 2.0}))
    found = [{"name": n, "status": "changed", "began": at, "seconds": took, "parts": p} for n, at, took, p in rows]
    end = 1.6 + 31.2 * slow
    found.append({"name": "smoke", "status": "ok", "began": end, "seconds": 13.6, "parts": {}})
    found.append({"name": "activate", "status": "changed", "began": end + 13.7, "seconds": 4.1, "parts": {}})
    return found


def _by_size(name: str, unit: str, parts: dict[int, float], most: float) -> list[dict[str, Any]]:
    rates = {size: most * part for size, part in parts.items()}
    return [
        {"name": name.format(size), "unit": unit, "n": 10, "median": rate, "least": 0.9 * rate, "greatest": 1.02 * rate}
        for size, rate in rates.items()
    ]


def _copies(seed: int) -> dict[str, Any]:
    """Copies between eight GPUs, one pair of the third node slower."""

    def rate(a: int, b: int) -> float | None:
        return None if a == b else 210.5 if (seed, a, b) == (2, 1, 6) else 380.0 - (seed * 5 + a * 3 + b) % 9

    matrix = [[rate(a, b) for b in range(8)] for a in range(8)]
    metrics = _by_size("copy_device_gbps", "GB/s", {0: 1.0}, 2600.0)
    return {
        "name": "smoke/machine/copies", "status": "passed", "seconds": 2.2, "metrics": metrics,
        "says": "copies arrive whole on GPUs, from and to the host; 56 pairs of GPUs", "details": {"peer_gbps": matrix},
    }  # fmt: skip


def gpu_checks(seed: int = 0) -> list[dict[str, Any]]:
    """What eight GPUs measure: matrix products of each, a training with its curve, a bench beside its claim."""
    rates = [693.0 - (seed * 7 + gpu * 3) % 11 - (90 if seed == 3 and gpu == 5 else 0) for gpu in range(8)]
    median = sorted(rates)[4]
    gemm = {"name": "gemm_cuda_bf16_tflops", "unit": "TFLOP/s", "n": 160, "median": median}
    gemm |= {"least": min(rates), "greatest": max(rates), "floor": 600.0}
    smaller = {1024: 0.4, 2048: 0.8, 4096: 0.95}
    sums = _by_size("all_reduce_{}_mib_busbw_gbps", "GB/s", {1: 0.05, 64: 0.8, 512: 0.95, 8192: 1.0}, 360.0)
    losses = [round(4.41 * 0.93**step + 0.03, 4) for step in range(60)]
    times = [0.31] + [round(0.02 + (step * (seed + 3)) % 7 / 1000, 4) for step in range(59)]
    training = checks(100_000.0)[2]
    training["details"] = {**training["details"], "losses": losses, "step_seconds": times}
    comparison = {
        "measured": 128.4,
        "unit": "TFLOP/s per GPU",
        "gpus": 8,
        "gpu": "NVIDIA A100-SXM4-80GB",
        "share": 41.2,
    }
    comparison |= {"claim": 147.0, "where": "OPT paper, section 2.5", "source": "opt-175b", "claim_gpus": 992}
    comparison |= {"claim_gpu": "NVIDIA A100-SXM4-80GB", "claim_share": 47.1, "percent": 87.3}
    comparison |= {"verdict": "not-comparable", "why": "8 GPUs here, 992 in the claim"}
    bench = {"name": "bench", "status": "passed", "says": "128.4 TFLOP/s per GPU", "seconds": 310.0}
    return [
        checks()[0],
        {
            "name": "smoke/machine/gemm", "status": "passed", "seconds": 21.0,
            "metrics": [*_by_size("gemm_cuda_bf16_{}_tflops", "TFLOP/s", smaller, median), gemm],
            "says": "matrix products equal their float64 reference on CPU and GPUs",
            "details": {"size": 8192} | {f"gpu{gpu}_bf16_tflops": rate for gpu, rate in enumerate(rates)},
        },
        _copies(seed),
        {**checks()[1], "metrics": sums, "details": {"bytes": 8 << 30}},
        training,
        *([bench | {"comparison": comparison}] if not seed else []),
        checks()[3],
    ]  # fmt: skip


def fleet(count: int = 8) -> Evidence:
    """A run on GPU nodes of which the evidence holds everything that a page can draw."""
    names = [f"gpu{number:02}" for number in range(1, count + 1)]
    disk = {"path": "/shared/envbuild", "writable": True, "filesystem": "ext4", "total_bytes": 2**40}
    nodes = []
    for index, name in enumerate(names):
        told = {**facts(name, 8), "prefix": disk | {"free_bytes": 2**40 - 2**36 * (index % 12 + 1)}}
        nodes.append(
            node(
                name, 8, facts=told, checks=gpu_checks(index), steps=steps(1 + index % 5 / 8), sources=[built_source()],
                packages={**node()["packages"], "numpy": "2.4.0" if index == 2 else "2.4.1"},
            )
        )  # fmt: skip
    rows = [
        {"name": name, "version": version, "file": f"{name}.whl", "sha256": f"{len(name):02x}" * 32, "index": "pypi"}
        for name, version in node()["packages"].items()
    ]
    found = {"id": "hydra-unpinned", "severity": "wrong", "truth": "hydra has a release that breaks it", "does": "pins"}
    return evidence(
        *nodes, target="lab", findings=[found], equality={"root": ROOT, "nodes": names},
        variants=[{"id": "venv-py311-cpu", "digest": DIGEST, "packages": rows}],
    )  # fmt: skip
