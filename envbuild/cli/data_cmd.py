"""`envbuild data`: small synthetic data for a stack's own run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from envbuild.cli import names
from envbuild.cli.launch_cmd import place_here
from envbuild.cli.output import Ui, common_options
from envbuild.errors import writing


@click.command("data")
@click.argument("stack", shell_complete=names.stacks)
@click.option(
    "-t", "--target", metavar="TARGET", shell_complete=names.targets, help="Whose prefix: a shipped target, or a file."
)
@click.option("--prefix", metavar="DIR", help="Where environments live; instead of the target's.")
@click.option("--environment", metavar="DIR", help="The built environment (default: the one in use under the prefix).")
@click.option("--output", metavar="DIR", default="data", help="Where to put the data (default: ./data).")
@common_options
def data(ui: Ui, /, stack: str, **flags: Any) -> int:
    """Make small data for STACK's own run: a synthetic corpus and tokenizer, preprocessed by the stack's own tool.

    Instead of the documents' downloads. The same environment makes the same bytes; a second call replaces them.
    """
    from envbuild.catalog.loader import load_stack
    from envbuild.provision.training_data import make

    loaded = load_stack(stack).stack
    place = place_here(loaded.name, {"gpus_per_node": 1, **flags})
    with writing(Path(place.output)):
        made = make(loaded, place)
    files = [{"file": f"{place.output}/{name}", "sha256": digest} for name, digest in made.items()]
    ui.result({"files": files}, lambda: "\n".join(f"{row['sha256']}  {row['file']}" for row in files))
    return 0
