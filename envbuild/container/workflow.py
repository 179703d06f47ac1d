"""A GitHub workflow that builds, verifies and smoke-tests the image of a stack and keeps the report."""

from __future__ import annotations

from envbuild import __version__
from envbuild.container.recipe import ImageRecipe

_TEXT = """\
# Written by `envbuild image workflow {stack}`. Actions are named by their major version; pin them as your rules say.
name: {stack} image
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
      STACK: {argument}
      PROFILE: {profile}
      IMAGE: {tag}
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - name: envbuild and a builder
        run: |
          python -m pip install "envbuild=={version}"
          sudo apt-get update
          sudo apt-get install -y buildah
      - name: The committed Dockerfile is what the lock gives
        if: hashFiles('containers/{stack}/Dockerfile') != ''
        run: envbuild image dockerfile "$STACK" --profile "$PROFILE" -o "containers/{stack}" --check
      - name: Build
        run: sudo -E env "PATH=$PATH" envbuild image build "$STACK" --profile "$PROFILE" --tag "$IMAGE"
      - name: Verify and smoke-test
        run: sudo -E env "PATH=$PATH" envbuild image verify "$IMAGE" --smoke --json > report.json
      - name: Keep the report
        if: always()
        uses: actions/upload-artifact@v4
        with:
          name: {stack}-report
          path: report.json
"""


def workflow(recipe: ImageRecipe, argument: str) -> str:
    """The text of the workflow; `argument` is what names the stack on a command line."""
    import json

    quoted = json.dumps(argument, ensure_ascii=False)
    return _TEXT.format(
        stack=recipe.stack, argument=quoted, profile=recipe.profile, tag=recipe.tag, version=__version__
    )
