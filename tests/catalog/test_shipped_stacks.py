"""The shipped stacks: complete, consistent, and true as far as it can be said without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.catalog.loader import list_stacks
from envbuild.catalog.yaml_load import load_yaml
from envbuild.explain.annotate import annotate
from envbuild.explain.checks import run_checks
from envbuild.explain.view import least_nodes
from envbuild.model.finding import IndexCheck
from envbuild.model.launch import Reference
from envbuild.model.stack import Build, Profile, Stack
from envbuild.node.build import kernels
from envbuild.resolve.compat import Compat
from envbuild.resolve.compat_read import load_compat
from tests.support.stacks import shipped_stack

STACKS = ("megatron-alpa", "megatron-deepspeed-alcf", "megatron-deepspeed-slurm", "megatronapp", "opt-175b")


def shipped(name: str) -> Stack:
    return shipped_stack(name).stack


@pytest.fixture(scope="module")
def compat() -> Compat:
    return load_compat()


def test_stacks_name_their_documents_to_the_byte_and_pin_every_source_and_one_commit_has_one_tree() -> None:
    trees: dict[str, set[str]] = {}
    for name in STACKS:
        stack = shipped(name)
        assert (stack.name, stack.default_profile) == (name, "exact")
        assert stack.document and stack.document.commit and stack.document.path
        pins = [source for profile in stack.profiles.values() for source in profile.sources]
        assert all(profile.sources for profile in stack.profiles.values()) and all(pin.tree for pin in pins)
        for pin in [*pins, *stack.repositories.values()]:
            if pin.tree:
                trees.setdefault(pin.commit, set()).add(pin.tree)
    assert [commit for commit, known in trees.items() if len(known) > 1] == []


@pytest.mark.parametrize("name", STACKS)
def test_packages_are_what_an_index_answers_rightly_and_torch_exists_for_every_python(
    name: str, compat: Compat
) -> None:
    for profile in shipped(name).profiles.values():
        names = {requirement.split("=")[0].split("<")[0].split(">")[0] for requirement in profile.packages}
        assert not names & {"apex", "metaseq", "megatron-lm", "sklearn", "torch", "fairscale"}
        if profile.torch is None:
            assert all(base.provides for base in profile.bases)
            continue
        release = compat.torch[profile.torch.version]
        assert set(profile.torch.flavours) <= set(release.builds)
        assert {f"cp{python.replace('.', '')}" for python in profile.python} <= set(release.tags["x86_64"])


def test_there_are_at_least_45_findings_with_unique_names_and_few_are_unverified() -> None:
    by_stack = [shipped(name).findings for name in STACKS]
    ids = [finding.id for findings in by_stack for finding in findings]
    assert len(ids) == len(set(ids)) >= 45
    for findings in by_stack:
        assert len(findings) >= 15 and sum(finding.unverified for finding in findings) * 4 <= len(findings)
        # Index checks ask for one thing only.
        assert all(sum(isinstance(check, IndexCheck) for check in finding.check) <= 1 for finding in findings)


@pytest.mark.parametrize("name", STACKS)
def test_checks_against_the_catalog_hold(name: str, compat: Compat) -> None:
    results = run_checks(shipped(name), compat)
    assert [result for result in results if result.outcome == "broken"] == []
    assert all(result.outcome == "holds" or "--run-checks" in result.detail for result in results)


@pytest.mark.parametrize("name", STACKS)
def test_every_anchor_finds_its_place_in_a_document_of_that_shape(name: str) -> None:
    findings = shipped(name).findings
    lines = ["# Guide", ""]
    for finding in findings:
        for anchor in ([finding.anchor] if finding.anchor else []) + list(finding.also):
            # As in the documents: commands in a block, words in a paragraph, headings on a line of their own.
            command = anchor.startswith("$ ") or " --" in anchor or anchor.endswith("\\")
            lines += ["```bash", anchor.removesuffix("\\"), "```", ""] if command else [anchor, ""]
    text = "\n".join(lines)
    annotated = annotate(text, [f for f in findings if not (f.anchor or "").endswith("\\")])
    assert annotated.unplaced == ()
    placed = sum(len(row.findings) for row in annotated.rows)
    assert placed + len(annotated.left_out) == sum(not (f.anchor or "").endswith("\\") for f in findings)


def reference_of(name: str) -> Reference:
    reference = shipped(name).reference
    assert reference is not None
    return reference


def test_the_tables_of_the_documents_are_whole() -> None:
    reference = reference_of("megatron-alpa")
    rows = {case.gpus: case.tflops for case in reference.cases if "results_e2e_ref.tsv" in case.source}
    assert rows == {1: 47.53, 2: 55.53, 4: 55.89, 8: 50.44, 16: 56.59, 32: 58.24, 64: 57.84}
    for case in reference.cases:
        if case.best:
            assert case.dp and case.tmp and case.pp
            assert case.dp * case.tmp * case.pp == case.gpus
            assert case.global_batch == case.dp * (case.microbatches or 0) * (case.micro_batch_size or 0)
    assert len(reference.heuristics) == 4
    assert sum(len(row.cases) for row in reference.manual) == 425
    assert max(case[2] for row in reference.manual for case in row.cases) == 8, "its own list goes to tmp 8"
    least = least_nodes(reference_of("opt-175b"))
    assert least and (least.model, least.nodes) == ("175b", 5)
    shapes = {m.name: (m.layers, m.hidden, m.heads) for m in reference_of("megatron-deepspeed-alcf").models}
    assert len(shapes) == 37
    assert shapes["GPT25B"] == shapes["GPT30B"] == (64, 6144, 64)
    assert shapes["GPT1T_128L"] == (128, 25600, 160)


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_without_a_profile_for_cuda_13_names_the_line_that_stops_it(name: str) -> None:
    stack = shipped(name)
    for_cuda_13 = [
        profile
        for profile in stack.profiles.values()
        if "cu130" in (profile.torch.flavours if profile.torch else ())
        or any("torch>=2.11,<2.12" in base.provides for base in profile.bases)
    ]
    said = [finding for finding in stack.findings if finding.id.endswith("-no-port")]
    assert [bool(for_cuda_13), *(" line" in each.evidence and bool(each.check) for each in said)] in (
        [True],
        [False, True],
    )


SOURCES = {
    f"{name}-{profile}": contents.sources
    for name in list_stacks()
    for profile, contents in shipped_stack(name).stack.profiles.items()
    if contents.sources
}
BUILT = {
    f"{profile}-{source.name}": (source, source.build)
    for profile, sources in SOURCES.items()
    for source in sources
    if source.build
}


def promised(build: Build) -> list[str]:
    return [*(build.extensions or ()), *kernels.extensions(build.model_dump(mode="json"))]


@pytest.mark.parametrize("built", BUILT)
def test_a_build_says_what_must_come_out_and_a_source_of_kernels_is_edited_to_take_them(built: str) -> None:
    source, build = BUILT[built]
    # A source of Python alone may need to be told its version, and makes no extension.
    assert promised(build) or (not build.flags and set(build.environment or ()) == {"SETUPTOOLS_SCM_PRETEND_VERSION"})
    if build.kind != "kernels":
        assert "megatron-fused-import" not in source.patches
        return
    cuda = any(path.endswith(".cu") for module in build.modules or () for path in module.sources)
    edits = {"megatron-data-helpers"} | ({"megatron-fused-arch", "megatron-fused-import"} if cuda else set())
    assert edits <= set(source.patches)
    flags = [flag for module in build.modules or () for flag in (*module.nvcc_flags, *module.cxx_flags)]
    assert not [flag for flag in flags if "arch" in flag or "sm_" in flag], "architectures come from the target"


def test_one_commit_with_the_same_flags_gives_the_same_extensions_and_no_two_wheels_hold_one_module() -> None:
    assert {build.kind for _, build in BUILT.values()} == {"wheel", "inplace", "kernels"}
    seen: dict[tuple[str, str, tuple[str, ...]], tuple[str, ...] | None] = {}
    for source, build in BUILT.values():
        if build.flags:
            key = (source.git, source.commit, build.flags)
            assert seen.setdefault(key, build.extensions) == build.extensions
    assert len(seen) >= 6
    for profile, sources in SOURCES.items():
        names = [name for source in sources if source.build for name in promised(source.build)]
        assert len(set(names)) == len(names), profile


ENTRIES = load_yaml(Path(__file__).parent / "entries.yaml")
# Profiles of the Python layer say that nothing can be started with them.
STARTED = [
    (name, profile)
    for name in ENTRIES
    for profile, made in shipped_stack(name).stack.profiles.items()
    if not any("For imports and reading only" in each for each in made.deviations)
]


def missing(profile: Profile, wanted: list[str]) -> list[str]:
    """The modules that no import of the profile brings in; `a.b` brings in `a`."""
    return [name for name in wanted if not any(f"{each}.".startswith(f"{name}.") for each in profile.imports)]


@pytest.mark.parametrize(("name", "profile"), STARTED)
def test_d52_imports_name_what_the_training_script_imports(name: str, profile: str) -> None:
    made = shipped_stack(name).stack.profiles[profile]
    dispensable = {
        module for source in made.sources for patch in source.patches for module in ENTRIES[name].get(patch, ())
    }
    assert set(missing(made, ENTRIES[name]["imports"])) <= dispensable
    # torch first: the libraries of what was compiled are those that it loads.
    assert made.imports[0] == "torch"


@pytest.mark.parametrize(("name", "profile"), STARTED)
def test_d55_every_megatron_with_datasets_builds_its_index_builder_ahead_of_time(name: str, profile: str) -> None:
    sources = [source for source in shipped_stack(name).stack.profiles[profile].sources if source.install != "wheel"]
    built = [s for s in sources if s.build and any(m.name == "helpers" for m in s.build.modules or ())]
    # metaseq brings its own data; of Megatron it takes the parallel layers.
    assert len(built) == (0 if name == "opt-175b" else 1)
    for source in built:
        assert "megatron-data-helpers" in source.patches
        assert not any("helpers" in pattern for pattern in source.generated)
        assert [m.torch for m in source.build.modules if m.name == "helpers"] == [False]  # type: ignore[union-attr]


METASEQ = shipped("opt-175b")
TRAINING = [name for name, profile in METASEQ.profiles.items() if any(item.step for item in profile.smoke)]


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("profile", TRAINING)
def test_metaseq_calls_the_softmax_with_whole_blocks(profile: str, tensor: int) -> None:
    # scaled_upper_triang_masked_softmax.h: rows of 64 are computed by 32 threads of 128, two at a time.
    [step] = [item.step for item in METASEQ.profiles[profile].smoke if item.step]
    words = step.arguments
    batch, heads, length = (
        int(words[words.index(f"--{name}") + 1])
        for name in ("batch-size", "decoder-attention-heads", "tokens-per-sample")
    )
    assert length == 64
    assert batch * heads // tensor % 8 == 0
