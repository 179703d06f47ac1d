"""Which conda variant a node gets, and what stands against one."""

from __future__ import annotations

from typing import Any

from archspec.cpu import TARGETS

from envbuild.model.plan import Decision, Resolution
from envbuild.resolve.artifacts import platform_of
from envbuild.resolve.estimate import Supply, estimate
from tests.resolve.builders import compat, digest, make_lock, node_facts, package, resolve, source, target


def archive(name: str, version: str, *requires: str, size: int = 1000) -> dict[str, Any]:
    file = f"{name}-{version}-0.conda"
    row = {"name": name, "version": version, "build": "0", "channel": "forge", "subdir": "linux-64", "file": file}
    return {**row, "sha256": digest(file), "size": size, "requires": list(requires)}


def conda(id_: str, *archives: dict[str, Any], **fields: Any) -> dict[str, Any]:
    section = {"packages": [archive("python", "3.11.9"), *archives]} | fields.pop("conda", {})
    return {"id": id_, "engine": "conda", "python": "3.11", "conda": section, **fields}


VENV = {"id": "venv", "python": "3.11", "packages": [package("six", "1.0")]}
NEW = conda("new", archive("lib", "2.0", "__glibc >=2.28,<3.0.a0"))
OLD = conda("old", archive("lib", "1.0", "__glibc >=2.17,<3.0.a0"))


def decided(node: str, *variants: dict[str, Any], supply: Supply | None = None, **fields: Any) -> Resolution:
    facts = node_facts(node, more=fields.pop("more", {}))
    return resolve(facts, make_lock(*variants), target(**{"engine": "conda", **fields}), compat(), supply)


def virtual(resolution: Resolution) -> list[Decision]:
    return [d for d in resolution.decisions if d.rule == "conda-virtual"]


def test_the_engine_of_the_target_picks_its_variant_and_the_interpreter_comes_with_the_packages() -> None:
    assert decided("cpu-laptop", VENV, OLD).variant_id == "old"
    assert decided("cpu-laptop", VENV, OLD, engine="venv").variant_id == "venv"
    assert decided("cpu-laptop", VENV, OLD, engine="container").variant_id == "venv"
    image = decided("cpu-laptop", OLD, engine="container")
    assert image.refused and any(d.rule == "engine-fits" and d.verdict == "refuse" for d in image.decisions)
    got = decided("cpu-laptop", OLD, more={"pythons": []})
    assert (got.variant_id, got.interpreter) == ("old", None)
    (told,) = [d for d in got.decisions if d.rule == "python-not-there"]
    assert told.compared == ("Python 3.11", "python-3.11.9-0.conda")
    # Its torch is asked for hardware and not for a wheel.
    pytorch = [archive("python", "3.11.9"), archive("pytorch", "2.1.0")]
    section = {"packages": pytorch, "provides": {"torch": "pytorch"}}
    row = conda("v", conda=section, torch="2.1.0", flavour="cu121")
    rules = {d.rule: d.verdict for d in decided("a100-azure", row).decisions}
    assert rules.get("driver-floor") == "refuse" or "driver-minor-compat" in rules
    assert "torch-flavour-exists" not in rules


def test_a_node_with_an_older_glibc_gets_the_variant_that_was_solved_for_it() -> None:
    got = [
        decided("cpu-laptop", NEW, OLD, more={"libc": {"kind": "glibc", "version": glibc}})
        for glibc in ("2.36", "2.27", "2.12")
    ]
    assert [each.variant_id for each in got] == ["new", "old", None]
    (refusal,) = [d for d in got[2].decisions if d.verdict == "refuse"]
    assert refusal.what == "lib 2.0 needs __glibc >=2.28,<3.0.a0, and the node has __glibc 2.12"
    assert refusal.compared == ("__glibc 2.12", "__glibc >=2.28,<3.0.a0")


def test_one_decision_a_virtual_package_names_the_strictest() -> None:
    many = conda("v", archive("a", "1", "__glibc >=2.17"), archive("b", "1", "__glibc >=2.28", "__unix"))
    said = virtual(decided("cpu-laptop", many))
    assert [d.compared[1] for d in said] == ["__glibc >=2.28", "__unix"]
    assert "b 1" in said[0].what


def test_a_processor_is_refused_where_it_was_read_and_is_older_than_a_package_asks_for() -> None:
    def said(spec: str, **cpu: str) -> tuple[str, str]:
        row = conda("v", archive("fast", "1", spec))
        (found,) = virtual(decided("cpu-laptop", row, more={"cpu": cpu}))
        return found.verdict, found.compared[0]

    old = {"vendor": "GenuineIntel", "features": " ".join(TARGETS["haswell"].features)}
    assert said("__archspec 1 skylake_avx512", **old) == ("refuse", "__archspec 1=haswell")
    assert said("__archspec 1 x86_64_v3", **old) == ("allow", "__archspec 1=haswell")
    assert said("__archspec 1 of_tomorrow", **old)[0] == "warn"
    assert said("__archspec 1 x86_64_v3") == ("warn", "__archspec 1=x86_64")


def test_a_driver_that_is_not_there_or_too_old_is_named() -> None:
    cuda = conda("v", archive("cudatoolkit", "12.4", "__cuda >=12.4"))
    (none,) = virtual(decided("cpu-laptop", cuda))
    assert (none.verdict, none.compared) == ("refuse", ("no __cuda", "__cuda >=12.4"))
    (old,) = virtual(decided("a100-azure", cuda))
    assert (old.verdict, old.compared) == ("refuse", ("__cuda 12.2", "__cuda >=12.4"))


def test_archives_are_counted_in_what_is_fetched() -> None:
    lock = make_lock(conda("v", archive("lib", "1", size=50_000_000), packages=[package("six", "1.0", size=1000)]))
    facts = node_facts("cpu-laptop")
    cost = estimate(lock.variants[0], platform_of(lock.variants[0], facts))
    assert cost.fetch_bytes == 50_000_000 + 1000 + 1000
    assert cost.disk_bytes > 150_000_000
    assert cost.rough


def test_who_reaches_the_channel_fetches() -> None:
    reach = {"reachable": {"conda:forge": False}}
    got = decided("cpu-laptop", OLD, more=reach, supply=Supply({"conda:forge": True}))
    assert (got.delivery.by, "the channel forge" in got.delivery.why) == ("controller", True)
    nobody = decided("cpu-laptop", OLD, more=reach, supply=Supply({"conda:forge": False}))
    (warned,) = [d for d in nobody.decisions if d.rule == "files-out-of-reach"]
    assert "the channel forge" in f"{warned.what} {warned.compared}"


def test_the_compiler_of_conda_is_the_one_that_nvcc_is_compared_with() -> None:
    def rules(*archives: dict[str, Any]) -> tuple[Resolution, list[str]]:
        compiled = source("ext", build={"flags": ["cuda_ext"]})
        row = conda("v", *archives, torch="2.1.0", flavour="cu121", sources=[compiled])
        facts = {"nvcc": [{"path": "/cuda/bin/nvcc", "version": "12.1"}],
                 "compilers": [{"path": f"/usr/bin/{name}", "version": "13.2"} for name in ("gcc", "g++")]}  # fmt: skip
        got = decided("h100", row, more=facts)
        return got, [d.verdict for d in got.candidates[0].decisions if d.rule == "gcc-range"]

    assert rules()[1] == ["refuse"]
    got, said = rules(archive("gcc_linux-64", "11.4.0"), archive("gxx_linux-64", "11.4.0"))
    assert (got.gcc, said) == (None, ["allow"])
