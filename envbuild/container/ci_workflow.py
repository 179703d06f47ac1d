"""Workflows for GitHub and GitLab: an image is built with kept layers, verified and tested, and drift fails."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from envbuild.container.recipe import ImageRecipe

SYSTEMS = ("github", "gitlab")

_GITHUB = """\
# Written by `envbuild image workflow github`. Actions are named by their major version; pin them as your rules say.
name: {name}
on:
  push:
  workflow_dispatch:
permissions:
  contents: read
jobs:
  image:
    strategy:
      fail-fast: false
      matrix:
        include:
{rows}
    runs-on: ${{{{ matrix.runner }}}}
    timeout-minutes: 350
    env:
      IMAGE: {tag}
    steps:
      - uses: actions/checkout@v6
      - uses: actions/setup-python@v6
        with:
          python-version: "3.12"
      - name: envbuild
        run: |
          python -m pip install {install}
      - name: The lock is that of the stack
        run: |
          {check}
      - name: The committed Dockerfile is what the lock gives
        if: hashFiles('{folder}/Dockerfile') != ''
        run: |
          {compare}
      - name: The build context
        run: |
          {context}
      - uses: docker/setup-buildx-action@v4
      - name: Build
        uses: docker/build-push-action@v7
        with:
          context: image-context
          load: true
          tags: ${{{{ env.IMAGE }}}}
          cache-from: type=gha,scope={stack}
          cache-to: type=gha,scope={stack},mode=max
      - name: Verify and smoke-test
        run: |
          {verify} --builder docker ${{{{ matrix.options }}}} > report.json
      - name: What is in it
        if: always()
        run: |
          {sbom}
      - name: Keep the reports
        if: always()
        uses: actions/upload-artifact@v6
        with:
          name: {stack}-report-${{{{ matrix.name }}}}
          path: |
            report.json
            junit.xml
            sbom.cdx.json
"""
_GITLAB = """\
# Written by `envbuild image workflow gitlab`.
{name}:
  image: docker.io/library/python:3.12-bookworm
  timeout: 5 hours 50 minutes
  parallel:
    matrix:
{rows}
  tags: [$RUNNER]
  variables:
    IMAGE: {tag}
    CACHE: $CI_REGISTRY_IMAGE/cache-{stack}
    BUILDAH_ISOLATION: chroot
    STORAGE_DRIVER: vfs
  before_script:
    - apt-get update && apt-get install -y --no-install-recommends buildah
    - python -m pip install {install}
    - printenv CI_REGISTRY_PASSWORD | buildah login -u "$CI_REGISTRY_USER" --password-stdin "$CI_REGISTRY"
  script:
    - {check}
    - if [ -e {folder}/Dockerfile ]; then {compare}; fi
    - {context}
    - {sbom}
    - buildah build --layers --cache-from "$CACHE" --cache-to "$CACHE" -t "$IMAGE" image-context
    - {verify} --builder buildah $OPTIONS > report.json
  artifacts:
    when: always
    paths: [report.json, sbom.cdx.json]
    reports:
      junit: junit.xml
"""
_ROWS = {
    "github": "          - {{name: {name}, runner: {runner}, options: {options}}}",
    "gitlab": "      - {{RUNNER: {runner}, OPTIONS: {options}}}",
}
_RUNNERS = {"github": "ubuntu-24.04", "gitlab": "docker"}


@dataclass(frozen=True, slots=True)
class Asked:
    """`words` name the stack and what was chosen of it, `install` is what pip installs envbuild from there.

    `gpu_runner`: the label (GitHub) or tag (GitLab) of a runner with GPUs, for a second job.
    """

    words: Sequence[str]
    install: str
    gpu_runner: str | None = None


def workflow(system: str, recipe: ImageRecipe, asked: Asked) -> str:
    """The text for one of SYSTEMS."""
    words, stack = shlex.join(asked.words), asked.words[0]
    profile = f" --profile {recipe.profile}"
    jobs = [("cpu", _RUNNERS[system], "")] + ([("gpu", asked.gpu_runner, "--gpus")] if asked.gpu_runner else [])
    row = _ROWS[system]
    rows = [row.format(name=name, runner=json.dumps(runner), options=json.dumps(more)) for name, runner, more in jobs]
    folder = f"containers/{recipe.stack}"
    export = f"envbuild lock export {shlex.quote(stack)}{profile} --variant {recipe.variant.id}"
    return {"github": _GITHUB, "gitlab": _GITLAB}[system].format(
        name=json.dumps(f"{recipe.stack} image"),
        rows="\n".join(rows),
        stack=recipe.stack,
        folder=folder,
        install=shlex.quote(asked.install),
        tag=json.dumps(recipe.tag),
        check=f"envbuild lock check {shlex.quote(stack)}{profile} --offline",
        compare=f"envbuild image dockerfile {words} -o {folder} --check",
        context=f"envbuild image dockerfile {words} -o image-context",
        verify='envbuild image verify "$IMAGE" --smoke --json --junit junit.xml',
        sbom=f"{export} --format cyclonedx -o sbom.cdx.json",
    )
