"""`envbuild data`: small synthetic data for a stack's own run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from envbuild.cli.choose import prefix_option, stack_argument, target_name
from envbuild.cli.launch_cmd import environment_option, place_here
from envbuild.cli.output import Ui, common_options
from envbuild.errors import writing


@click.command("data")
@stack_argument(required=True)
@target_name
@prefix_option
@environment_option
@click.option("-o", "--output", metavar="DIR", default="data", help="Where to put the data (default: ./data).")
@common_options
def data(ui: Ui, /, stack: str, **flags: Any) -> int:
    """Make small synthetic data for STACK's own run.

    A corpus and a tokenizer, preprocessed by the stack's own tool. Instead of the documents' downloads. The same
    environment makes the same bytes; a second call replaces them.
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
