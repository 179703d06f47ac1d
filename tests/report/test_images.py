"""What a report says of images: one line where all nodes run one, and who runs another."""

from __future__ import annotations

import pytest

from envbuild.model.evidence import Evidence
from envbuild.report.render import render_html, render_json, render_markdown
from envbuild.report.terminal import summary_lines
from tests.report.samples import evidence, node

ONE, OTHER = "ab" * 32, "cd" * 32


def _fleet(*ids: str) -> Evidence:
    image = {"runtime": "podman", "version": "4.3.1", "name": "localhost/x:1", "launcher": "/opt/envbuild/bin/x"}
    return evidence(*(node(f"gpu{at}", image={**image, "id": each}) for at, each in enumerate(ids, 1)))


def _terminal(run: Evidence) -> str:
    return "\n".join(text for text, _ in summary_lines(run))


@pytest.mark.parametrize("render", [_terminal, render_markdown, render_html])
def test_equal_images_are_one_line(render: object) -> None:
    assert callable(render)
    assert f"{ONE[:12]} through podman on 3 of 3 nodes" in render(_fleet(ONE, ONE, ONE))
    assert "through podman" not in render(evidence(node("gpu1")))


def test_a_node_with_another_image_is_named() -> None:
    shown = _terminal(_fleet(ONE, OTHER, ONE))
    assert "on 2 of 3 nodes" in shown
    assert f"gpu2 has {OTHER[:12]}" in shown


def test_the_whole_id_is_in_the_evidence() -> None:
    assert f'"id":"{ONE}"' in render_json(_fleet(ONE))
