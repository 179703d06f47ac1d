"""A GitHub workflow that builds, verifies and smoke-tests the image of a stack and keeps the report."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from envbuild.container.recipe import ImageRecipe

_TEXT = """\
# Written by `envbuild image workflow`. Actions are named by their major version; pin them as your rules say.
name: {name}
on:
  push:
  workflow_dispatch:
permissions:
  contents: read
jobs:
  image:
    runs-on: ubuntu-24.04
    timeout-minutes: 350
    env:
      IMAGE: {tag}
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - name: envbuild and a builder
        run: |
          python -m pip install {install}
          sudo apt-get update
          sudo apt-get install -y buildah
      - name: The committed Dockerfile is what the lock gives
        if: hashFiles('{folder}/Dockerfile') != ''
        run: |
          envbuild image dockerfile {words} -o {folder} --check
      - name: Build
        run: |
          sudo -E env "PATH=$PATH" envbuild image build {words} --tag "$IMAGE"
      - name: Verify and smoke-test
        run: |
          sudo -E env "PATH=$PATH" envbuild image verify "$IMAGE" --smoke --json > report.json
      - name: Keep the report
        if: always()
        uses: actions/upload-artifact@v4
        with:
          name: {stack}-report
          path: report.json
"""


def workflow(recipe: ImageRecipe, words: Sequence[str], install: str) -> str:
    """The text; `words` name the stack and what was chosen of it, `install` is what pip installs envbuild from."""
    return _TEXT.format(
        name=json.dumps(f"{recipe.stack} image"),
        stack=recipe.stack,
        folder=f"containers/{recipe.stack}",
        words=shlex.join(words),
        install=shlex.quote(install),
        tag=json.dumps(recipe.tag),
    )
