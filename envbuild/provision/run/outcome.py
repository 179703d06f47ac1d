"""What a play, a job or a contact gave, by node and verb; files that a node is handed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.provision.contact.first_contact import ContactResult
from envbuild.provision.run.evidence import all_well, first_error


@dataclass
class Outcome:
    """Answers of the node program by node and verb, and errors of nodes that could not answer."""

    responses: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    errors: dict[str, EnvbuildError] = field(default_factory=dict)

    def error_of(self, node: str) -> EnvbuildError | None:
        """Why a node could not answer, or the first error that it answered."""
        return self.errors.get(node) or first_error(self.responses.get(node, {}).values())

    def well(self, node: str) -> bool:
        """Everything was answered well, and nothing found wrong."""
        return node not in self.errors and all_well(self.responses.get(node, {}))

    def take(self, node: str, verb: str, answer: ContactResult) -> None:
        """What a node answered to a verb, or why there is no answer."""
        if answer.response is not None:
            self.responses.setdefault(node, {})[verb] = answer.response
        elif (error := answer.failure) is not None:
            self.errors.setdefault(node, error)


@dataclass(frozen=True)
class NodeFiles:
    """What the controller prepared for one node: a toolchain payload, bundles or an image, and where they go.

    `bundles`: name in the folder `store` of the node to the file here.

    `tmp` is where temporary files go on the node: the folder that the target names, None when it names none.
    `prefix` is the node's, absolute.
    """

    python: str
    pyz: str
    payload: Path | None = None
    bundles: Mapping[str, Path] = field(default_factory=dict)
    image: Path | None = None
    store: str | None = None
    tmp: str | None = None
    prefix: str | None = None


def tmp_folder(template: str | None, user: str, home: str = "") -> str | None:
    """The `tmp` of a target on a node; None when the target names none, or by what only the node knows (`{data}`)."""
    text = (template or "").replace("{user}", user)
    if home:
        text = text.replace("{home}", home)
    return text if text and "{" not in text else None
