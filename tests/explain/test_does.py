"""What a finding says that envbuild does is what envbuild does."""

from __future__ import annotations

import re

import pytest

from envbuild.catalog.loader import list_stacks, load_stack
from envbuild.catalog.patches import load_patch
from envbuild.launch import alcf
from envbuild.model.finding import Finding
from tests.resolve.builders import rule_ids
from tests.resolve.test_reachable import NODE_RULES

FINDINGS = [(loaded.stack, finding) for loaded in map(load_stack, list_stacks()) for finding in loaded.stack.findings]


def does(identity: str) -> str:
    return next(finding.does for _, finding in FINDINGS if finding.id == identity)


@pytest.mark.parametrize("finding", [each for _, each in FINDINGS if "rule" in each.does], ids=lambda each: each.id)
def test_d81_a_rule_that_a_finding_names_is_one(finding: Finding) -> None:
    said = re.search(r"\brules? (.*)", finding.does)
    names = re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)+", said[1]) if said else []
    assert set(names) <= {*rule_ids(), *NODE_RULES}, names


def test_d81_what_five_findings_say_is_bound_to_what_does_it() -> None:
    assert "`data --real` fetches the three files" in does("slurm-data-unpinned")
    alpa = load_stack("megatron-alpa").stack.profiles["exact"]
    apex = next(source for source in alpa.sources if source.name == "apex")
    assert apex.build is not None and apex.build.flags and "without pip" in does("alpa-global-option")
    assert {"apex", "amp_C"} <= set(alpa.imports)
    opt = load_stack("opt-175b").stack.profiles["exact"]
    megatron = next(source for source in opt.sources if source.name == "megatron-lm")
    assert megatron.install == "wheel" and megatron.build is not None and megatron.build.extensions
    assert "install: path" not in does("opt-megatron-flags") and "stay dropped" in does("opt-megatron-flags")
    assert "nvcc-minor" in does("opt-match-nvcc")
    assert alcf._MASKED == 4096 and "SEQ_LEN=4096" in does("alcf-no-mask")


def test_d81_every_patch_that_a_finding_names_is_there() -> None:
    for _stack, finding in FINDINGS:
        for name in re.findall(r"\bpatch(?:es)? `?([a-z0-9]+(?:-[a-z0-9]+)+)", finding.does):
            assert load_patch(name).name == name


def test_w9_what_is_called_wrong_has_a_check() -> None:
    assert [each.id for _, each in FINDINGS if each.severity == "wrong" and each.unverified] == []
    match = next(each for _, each in FINDINGS if each.id == "opt-match-nvcc")
    assert (match.severity, len(match.check)) == ("trap", 2)
