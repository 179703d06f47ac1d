from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from envbuild.errors import ExitCode
from envbuild.lock.check import check_lock
from envbuild.lock.create import create_lock
from envbuild.lock.files import parse_lock, read_lock
from envbuild.lock.packages import read_base
from envbuild.lock.readers.torch_wheels import can_reach
from envbuild.lock.record import render_lock
from envbuild.model.lock import ArtifactFile, LockedInterpreter
from envbuild.model.stack import Stack
from envbuild.node.env.foundation import examine
from envbuild.resolve.compat_read import load_compat
from envbuild.resolve.profile import findings
from tests.e2e.world import MINOR, World
from tests.lock.build import MakeSupply, index_at, make, make_wheel, make_wheels, sha256, stack, versions
from tests.lock.conftest import Repos
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.served import served

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_packages_and_what_they_need_are_locked_with_hash_and_size(tmp_path: Path, supply: MakeSupply) -> None:
    house = tmp_path / "house"
    first = make_wheel(house, "alpha", "1.0", requires=["beta>=1"])
    second = make_wheel(house, "beta", "2.0")
    lock = make(stack(packages=["alpha"], imports=["alpha"], environment={"A": "$(x)"}), supply(house))
    (variant,) = lock.variants
    assert variant.id == "cp311-linux_x86_64"
    assert versions(lock) == {"alpha": "1.0", "beta": "2.0"}
    assert [(f.file, f.sha256, f.size) for p in variant.packages for f in p.files] == [
        (wheel.name, sha256(wheel), wheel.stat().st_size) for wheel in (first, second)
    ]
    assert variant.imports == ("alpha",)
    assert variant.environment == {"A": "$(x)"}
    assert set(lock.created_with) == {"envbuild", "git", "uv"}
    assert str(tmp_path) not in render_lock(lock)


def test_of_two_packages_with_the_same_files_the_one_that_the_stack_names_is_locked(
    tmp_path: Path, supply: MakeSupply
) -> None:
    house, said = tmp_path / "house", list[str]()
    make_wheels(house, "alpha 1.0: opencv-python-headless", "opencv-python 4.1", "opencv-python-headless 4.2")
    lock = make(stack(packages=["alpha", "opencv-python"]), supply(house), say=said.append)
    assert versions(lock) == {"alpha": "1.0", "opencv-python": "4.1"}
    assert said[0] == "opencv-python-headless is left out: opencv-python holds the same files"
    assert versions(make(stack(packages=["alpha"]), supply(house))) == {"alpha": "1.0", "opencv-python-headless": "4.2"}
    both = make(stack(packages=["opencv-python", "opencv-python-headless"]), supply(house))
    (warning,) = findings(both, load_compat())
    assert warning.startswith("two-owners") and "opencv-python 4.1 and opencv-python-headless 4.2" in warning


def test_locking_again_gives_the_same_bytes_and_keeps_versions_until_upgraded(
    tmp_path: Path, supply: MakeSupply
) -> None:
    house = make_wheels(tmp_path / "house", "alpha 1.0")
    wanted = stack(packages=["alpha>=1"])
    text = render_lock(make(wanted, supply(house)))
    assert render_lock(make(wanted, supply(house))) == text
    make_wheel(house, "alpha", "1.1")
    previous = parse_lock(text, "x")
    assert render_lock(make(wanted, supply(house), previous=previous)) == text
    older = previous.model_copy(update={"created_with": {"envbuild": "0.0.1"}})
    assert make(wanted, supply(house), previous=older) == older
    assert versions(make(wanted, supply(house), previous=previous, upgrade=True)) == {"alpha": "1.1"}
    assert versions(make(stack(packages=["alpha>1"]), supply(house), previous=previous)) == {"alpha": "1.1"}
    assert versions(make(stack(packages=["alpha"], constraints=["alpha<1.1"]), supply(house))) == {"alpha": "1.0"}


def test_one_variant_for_each_python_flavour_base_and_interpreter(tmp_path: Path, supply: MakeSupply) -> None:
    house = make_wheels(tmp_path / "house", "torch 1.0.0", "torch 1.0.0+cpu")
    wanted = stack(
        python=["3.11", "3.12"],
        interpreters=["present", "standalone"],
        torch={"version": "1.0.0", "flavours": ["cpu", "cu130"]},
        bases=[{"kind": "none"}, {"kind": "system", "provides": ["torch>=1"]}],
    )
    pinned = LockedInterpreter(kind="standalone", name="cpython-3", sha256="0" * 64)
    lock = create_lock(wanted, "exact", supply=supply(house), standalone={"3.11": pinned, "3.12": pinned})
    pythons, kinds = (
        ("cp311-linux_x86_64", "cp312-linux_x86_64"),
        ("cpu", "cpu-standalone", "cu130", "cu130-standalone"),
    )
    assert [variant.id for variant in lock.variants] == [
        *(f"{python}-{kind}" for python in pythons for kind in kinds), *(f"{python}-system" for python in pythons)
    ]  # fmt: skip
    by_id = {variant.id: variant for variant in lock.variants}
    cpu, gpu = by_id["cp311-linux_x86_64-cpu"], by_id["cp311-linux_x86_64-cu130"]
    assert [(p.version, p.index) for p in cpu.packages] == [("1.0.0+cpu", "pytorch-cpu")]
    assert [(p.version, p.index) for p in gpu.packages] == [("1.0.0", "pypi")]
    assert (cpu.torch, cpu.flavour, gpu.torch, gpu.flavour) == ("1.0.0", "cpu", "1.0.0", "cu130")
    system = by_id["cp312-linux_x86_64-system"]
    assert (system.packages, system.torch, system.flavour, system.provided) == ((), None, None, {})
    assert by_id["cp311-linux_x86_64-cpu-standalone"].interpreter == pinned
    assert len({variant.digest for variant in lock.variants}) == 10
    with fails("interpreter-unknown"):
        create_lock(wanted, "exact", supply=supply(house), standalone={"3.11": pinned})
    alone = stack(interpreters=["standalone"], bases=[{"kind": "system", "provides": ["torch>=1"]}])
    lock = create_lock(alone, "exact", supply=supply(house), standalone={"3.11": pinned})
    assert [variant.id for variant in lock.variants] == ["cp311-linux_x86_64-system-standalone"]


TORCH = {"version": "2.7.0", "flavours": ["cpu"]}


def test_a_torch_out_of_reach_is_taken_from_a_public_record_with_its_witness_or_stays_unrecorded_and_says_why(
    tmp_path: Path, supply: MakeSupply
) -> None:
    house, name = make_wheels(tmp_path / "house", "alpha 1.0"), "torch-2.7.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    record = ArtifactFile(file=name, sha256="a" * 64, size=7, witness="somebody")
    lock = make(stack(torch=TORCH), supply(house, records=(record,), requires={"2.7.0+cpu": ("alpha",)}))
    assert versions(lock) == {"alpha": "1.0", "torch": "2.7.0+cpu"}
    torch = lock.variants[0].packages[1]
    assert (torch.index, torch.files) == ("pytorch-cpu", (record,))
    # The same version for another Python is there: what it requires is read from it.
    make_wheel(
        house, "torch", "2.7.0+cpu", tag="cp310-cp310-manylinux_2_28_x86_64", requires=["alpha", "x; extra=='y'"]
    )
    lock = make(stack(torch=TORCH), supply(house))
    assert versions(lock) == {"alpha": "1.0", "torch": "2.7.0+cpu"}
    (file,) = lock.variants[0].packages[1].files
    assert (file.file, file.sha256) == (name, "unrecorded")
    assert "out of reach" in (file.reason or "")


def test_the_needs_of_an_unreachable_cpu_build_come_from_the_pypi_build_without_cuda(
    tmp_path: Path, supply: MakeSupply
) -> None:
    house = make_wheels(tmp_path / "house", "alpha 1.0", "nvidia-cublas 1.0", "torch 2.5.0: alpha, nvidia-cublas")
    lock = make(stack(torch={"version": "2.5.0", "flavours": ["cpu"]}), supply(house))
    assert versions(lock) == {"alpha": "1.0", "torch": "2.5.0+cpu"}
    assert lock.variants[0].packages[1].files[0].sha256 == "unrecorded"
    with fails("index-unreachable", ExitCode.TRY_AGAIN):
        make(stack(torch={"version": "2.5.0", "flavours": ["cu118"]}), supply(house))
    with fails("index-unknown"):
        make(stack(torch={"version": "2.5.0", "flavours": ["cu99"]}), supply(house))
    # An index out of reach is told before anything is resolved (D98).
    wanted = stack(torch={"version": "2.5.0", "flavours": ["cpu", "cu118"]}, packages=["not-there==1"])
    with fails("index-unreachable", ExitCode.TRY_AGAIN) as caught:
        make(wanted, supply(house))
    assert "take cu124, which the default index has" in caught.value.hint
    assert caught.value.details["relaxations"] == [{"was": "cu118", "becomes": "cu124"}]


@pytest.mark.parametrize(("version", "flavour", "sibling"), [("2.0.1", "cu118", "2.0.1"), ("1.8.2", "cu111", "1.8.1")])
def test_the_needs_of_a_cuda_build_with_cuda_inside_come_from_the_nearest_pypi_build_and_are_named(
    tmp_path: Path, supply: MakeSupply, version: str, flavour: str, sibling: str
) -> None:
    house = tmp_path / "house"
    for name in ("alpha", "nvidia-cublas-cu11", "triton"):
        make_wheel(house, name, "1.0")
    make_wheel(house, "torch", sibling, requires=["alpha", "nvidia-cublas-cu11", "triton"])
    wanted = stack(torch={"version": version, "flavours": [flavour]})
    lock = make(wanted, supply(house))
    assert versions(lock) == {"alpha": "1.0", "torch": f"{version}+{flavour}", "triton": "1.0"}
    torch = lock.variants[0].packages[1]
    assert torch.metadata_from == f"torch {sibling} on pypi"
    assert torch.files[0].file == f"torch-{version}+{flavour}-cp311-cp311-linux_x86_64.whl"
    assert parse_lock(render_lock(lock), "again") == lock
    assert make(wanted, supply(house), previous=lock) == lock


@pytest.mark.parametrize("base", ["none", "system"])
def test_what_others_need_too_stays_where_the_needs_of_torch_come_from_another_build(
    tmp_path: Path, supply: MakeSupply, base_python: Path, base: str
) -> None:
    house = tmp_path / "house"
    for name in ("nvidia-ml-py", "nvidia-nvtx", "cuda-bindings", "cmake"):
        make_wheel(house, name, "1.0")
    make_wheels(
        house,
        "nvidia-cublas-cu11 1.0: cuda-bindings, nvidia-nvtx",
        "triton 1.0: cmake, torch",
        "gpustat 1.0: nvidia-ml-py, torch",
        "torch 2.0.1: nvidia-cublas-cu11, triton",
    )
    wanted = stack(
        python=[PYTHON],
        packages=["gpustat", "nvidia-nvtx"],
        torch={"version": "2.0.1", "flavours": ["cpu", "cu118"]},
        bases=[{"kind": base}],
    )
    lock = make(wanted, supply(house), base_python=base_python)
    shared = {"gpustat", "nvidia-ml-py", "nvidia-nvtx", "torch"}
    assert versions(lock, 0).keys() == shared
    assert versions(lock, 1).keys() == shared | {"cmake", "triton"}
    assert make(wanted, supply(house), previous=lock, base_python=base_python) == lock


@pytest.mark.parametrize(("tag", "digest"), [(":23.04", "unrecorded"), ("@sha256:" + "a" * 64, "a" * 64)])
def test_an_image_is_locked_by_name_and_by_digest_where_its_reference_has_one(
    tmp_path: Path, supply: MakeSupply, tag: str, digest: str
) -> None:
    make_wheel(tmp_path / "house", "alpha", "1.0")
    base = {"kind": "image", "image": f"registry.example.org/base{tag}", "provides": ["torch"]}
    wanted = stack(packages=["alpha"], bases=[base])
    lock = make(wanted, supply(tmp_path / "house"))
    image = lock.variants[0].image
    assert image is not None
    assert (image.name, image.digest) == (f"registry.example.org/base{tag}", digest)
    assert bool(image.reason) == (digest == "unrecorded")
    assert parse_lock(render_lock(lock), "again") == lock
    notes = [finding.code for finding in check_lock(lock, wanted, online=False)]
    assert notes == (["image-unrecorded"] if digest == "unrecorded" else [])


def offer(*wheels: Path, yanked: str | None = None) -> None:
    """Write the page of an index beside the wheels of a package; `yanked` is why the first one is."""
    said = [f' data-yanked="{yanked}"' if yanked is not None and wheel == wheels[0] else "" for wheel in wheels]
    links = (
        f'<a href="{wheel.name.replace("+", "%2B")}#sha256={sha256(wheel)}"{words}>{wheel.name}</a>'
        for wheel, words in zip(wheels, said, strict=True)
    )
    (wheels[0].parent / "index.html").write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")


@pytest.fixture
def torch_index(tmp_path: Path) -> Iterator[str]:
    """A package index on this machine that has torch 2.7.0+cpu and an alpha of its own."""
    root = tmp_path / "simple"
    for name, requires in (("torch", ["alpha"]), ("alpha", [])):
        wheel = make_wheel(root / name, name, "2.7.0+cpu" if name == "torch" else "9.9", requires=requires)
        offer(wheel)
    with served(root) as address:
        yield address


def test_torch_and_what_is_built_with_it_come_from_its_own_index_and_nothing_else_does(
    tmp_path: Path, supply: MakeSupply, home: Path, torch_index: str
) -> None:
    house = make_wheels(tmp_path / "house", "alpha 1.0", "models 1.0: torchvision", "torchvision 0.22.0: torch==2.7.0")
    offer(make_wheel(tmp_path / "simple" / "torchvision", "torchvision", "0.22.0+cpu", requires=["torch==2.7.0"]))
    assert can_reach(index_at("pytorch-cpu", torch_index))
    assert not can_reach(index_at("pytorch-cpu", "http://127.0.0.1:9"))
    # `alpha` of that index is newer and must not be taken; the user's own index is out of the question here.
    (home / ".config" / "uv" / "uv.toml").write_text(
        f'index = [{{url = "{house.as_uri()}", format = "flat", default = true}}]\n'
    )
    lock = make(stack(torch=TORCH, packages=["models"]), supply(url=torch_index, reachable=True))
    found = {package.name: (package.version, package.index) for package in lock.variants[0].packages}
    assert found == {
        "alpha": ("1.0", "pypi"),
        "models": ("1.0", "pypi"),
        "torch": ("2.7.0+cpu", "pytorch-cpu"),
        "torchvision": ("0.22.0+cpu", "pytorch-cpu"),
    }
    (torch,) = (package for package in lock.variants[0].packages if package.name == "torch")
    assert torch.files[0].size == next((tmp_path / "simple" / "torch").glob("*.whl")).stat().st_size
    assert "127.0.0.1" not in render_lock(lock)


@pytest.mark.parametrize(("reason", "words"), [("it eats files", " (it eats files)"), ("", "")])
def test_a_yanked_version_that_stays_in_a_lock_is_said_when_it_is_made_and_checked(
    tmp_path: Path, supply: MakeSupply, home: Path, monkeypatch: pytest.MonkeyPatch, reason: str, words: str
) -> None:
    (home / ".config" / "uv" / "uv.toml").unlink()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    newer, older = (make_wheel(tmp_path / "simple" / "alpha", "alpha", version) for version in ("1.1", "1.0"))
    wanted = stack(packages=["alpha"])
    with served(tmp_path / "simple") as address:
        monkeypatch.setenv("UV_DEFAULT_INDEX", address)
        offer(newer, older)
        said: list[str] = []
        lock = make(wanted, supply(), say=said.append)
        assert (versions(lock), said, check_lock(lock, wanted, supply=supply())) == ({"alpha": "1.1"}, [], [])
        offer(newer, older, yanked=reason)
        assert make(wanted, supply(), previous=lock, say=said.append) == lock
        assert [text.partition(", and")[0] for text in said] == [f"alpha 1.1 is yanked{words}"]
        (finding,) = check_lock(lock, wanted, supply=supply())
        assert (finding.code, finding.kind) == ("package-yanked", "note") and finding.says == said[0]
        assert versions(make(wanted, supply(), previous=lock, upgrade=True, say=said.append)) == {"alpha": "1.0"}
        assert len(said) == 1


def test_a_lock_stays_the_same_wherever_the_same_wheel_was_found_and_one_that_contradicts_its_record_is_refused(
    tmp_path: Path, supply: MakeSupply
) -> None:
    wheel = make_wheel(tmp_path / "torch", "torch", "2.7.0+cpu", tag="cp311-cp311-manylinux_2_28_x86_64")
    record = ArtifactFile(file=wheel.name, sha256=sha256(wheel), size=wheel.stat().st_size, witness="somebody")
    make_wheel(tmp_path / "house", "alpha", "1.0")
    from_record = supply(tmp_path / "house", records=(record,), requires={"2.7.0+cpu": ("alpha",)})
    from_file = supply(tmp_path / "house", tmp_path / "torch", records=(record,))
    wanted = stack(torch=TORCH, packages=["alpha"])
    made = [make(wanted, given) for given in (from_record, from_file)]
    for lock, other in zip(made, (from_file, from_record), strict=True):
        assert make(wanted, other, previous=lock) == lock
    assert made[0].variants[0].digest == made[1].variants[0].digest
    forged = record.model_copy(update={"sha256": "a" * 64})
    with fails("hash-contradicts-record", ExitCode.INTEGRITY) as caught:
        make(stack(torch=TORCH), supply(tmp_path / "torch", records=(forged,)))
    assert "somebody" in caught.value.why
    assert make(stack(torch=TORCH), from_file).variants[0].packages[0].files[0].witness is None


def test_sources_are_in_every_variant_and_the_date_of_the_profile_in_the_lock(repos: Repos, supply: MakeSupply) -> None:
    commit = repos.create("a")
    source = {"name": "a", "git": Repos.url("a"), "commit": commit}
    wanted = stack(python=["3.11", "3.12"], sources=[source], as_of="2023-03-20")
    lock = make(wanted, supply())
    assert {variant.sources[0].tree for variant in lock.variants} == {repos.tree("a", commit)}
    assert lock.as_of == "2023-03-20"
    assert make(wanted, supply(), as_of=date(2024, 1, 2)).as_of == "2024-01-02"


@pytest.fixture
def base_python(tmp_path: Path, home: Path) -> Path:
    """An environment that provides alpha 1.0 and beta 1.0."""
    import subprocess

    from uv import find_uv_bin

    base = make_wheels(tmp_path / "base-house", "alpha 1.0: beta", "beta 1.0")
    venv = tmp_path / "base"
    subprocess.run([find_uv_bin(), "venv", "-q", "-p", sys.executable, venv], check=True)
    python = venv / "bin" / "python"
    subprocess.run([find_uv_bin(), "pip", "install", "-q", "-p", python, "--find-links", base, "alpha"], check=True)
    return python


def on_base(packages: list[str], **base: object) -> Stack:
    return stack(python=[PYTHON], packages=packages, bases=[{"kind": "system"} | base])


def test_what_a_base_provides_is_recorded_and_not_locked_and_what_it_lacks_or_would_be_replaced_is_refused(
    tmp_path: Path, supply: MakeSupply, base_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    house = make_wheels(tmp_path / "house", "alpha 2.0", "beta 2.0", "gamma 1.0: beta>=1", "zeta 1.0: beta>=2")
    make_wheel(tmp_path / "page", "delta", "1.0", requires=["gamma"])
    wanted = on_base(["alpha", "gamma"], provides=["alpha>=1"])
    known = make(wanted, supply(house), base_python=base_python)
    assert versions(known) == {"gamma": "1.0"}
    assert known.variants[0].provided == {"alpha": "1.0", "beta": "1.0"}
    unknown = make(wanted, supply(house))
    assert unknown.variants[0].provided == {}
    assert "alpha" not in versions(unknown)
    assert known.variants[0].digest != unknown.variants[0].digest
    with served(tmp_path / "page") as address:
        links = replace(supply(), find_links=(address, str(house)))
        assert versions(make(on_base(["delta"]), links, base_python=base_python)) == {"delta": "1.0", "gamma": "1.0"}
    for packages, provides, code, says in (
        (["beta>=2"], [], "replaces-base-package", "beta 1.0"),
        (["zeta"], [], "replaces-base-package", "beta 1.0"),
        ([], ["torch"], "base-lacks", "no torch"),
        ([], ["alpha>=2"], "base-lacks", "alpha 1.0"),
    ):
        with fails(code, ExitCode.REFUSED) as caught:
            make(on_base(packages, provides=provides), supply(house), base_python=base_python)
        assert says in f"{caught.value.what} {caught.value.why}"
    with fails("base-python-broken"):
        make(on_base([]), supply(), base_python=tmp_path / "none")


def test_a_base_provides_what_its_python_imports_and_nothing_that_lies_behind_it(
    tmp_path: Path, base_python: Path
) -> None:
    about = tmp_path / "behind" / "beta-0.9.dist-info"
    (site,) = base_python.parent.parent.glob("lib/python*/site-packages")
    (site / "behind.pth").write_text(f"{about.parent}\n")
    for shadowed in ("beta", "Beta"):
        write_file(about / "METADATA", f"Metadata-Version: 2.1\nName: {shadowed}\nVersion: 0.9\n")
        provided = read_base(base_python).packages
        assert provided["beta"] == "1.0"
        assert examine(str(base_python), {"python": PYTHON, "base": {"kind": "system"}}).packages == provided


def test_a_conflict_says_which_single_change_resolves_it(tmp_path: Path, supply: MakeSupply) -> None:
    house = make_wheels(tmp_path / "house", "alpha 1.0: gamma<2", "alpha 2.0: gamma>=2", "beta 1.0: gamma>=2")
    for version in ("1.0", "2.0"):
        make_wheel(house, "gamma", version)
    with fails("resolution-failed") as caught:
        make(stack(packages=["alpha==1.0", "beta<2"], constraints=["gamma>=1"]), supply(house))
    (relaxation,) = caught.value.details["relaxations"]
    assert relaxation == {"was": "alpha==1.0", "becomes": "alpha", "version": "2.0"}
    assert caught.value.hint == "loosen `alpha==1.0` (2.0 fits): all other requirements fit together"
    with fails("resolution-failed") as caught:
        make(stack(packages=["alpha==1.0", "gamma==2.0"]), supply(house))
    assert caught.value.what == "`alpha==1.0` and `gamma==2.0` exclude each other"
    with fails("resolution-failed") as caught:
        make(stack(packages=["alpha==1.0", "beta==3", "gamma==4"]), supply(house))
    assert not caught.value.details


def test_the_interpreter_comes_from_the_configured_toolchain(world: World) -> None:
    toolchain = world.top / "toolchain.yaml"
    toolchain.write_text(
        "pythons:\n"
        f"  - {{name: my-build, version: {MINOR}.99, arch: x86_64, sha256: {'ab' * 32}, url: 'file:///srv/my.tar.gz',"
        " witness: our own build}\n"
    )
    world.env["ENVBUILD_TOOLCHAIN"] = str(toolchain)
    world.wheel()
    (variant,) = read_lock(world.lock(world.stack(interpreters=["standalone"]))).variants
    assert (variant.interpreter.kind, variant.interpreter.name) == ("standalone", "my-build")
    assert variant.interpreter.sha256 == "ab" * 32
