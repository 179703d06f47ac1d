"""Roles stay dumb: one idempotent call of the node program each, and at most eight tasks a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from envbuild import resources
from envbuild.node.protocol import CONNECTION
from envbuild.provision.ansible.steps import STEPS, VERBS

ROLES = resources.playbooks() / "roles"


def _tasks(role: str) -> list[dict[str, Any]]:
    return yaml.safe_load((ROLES / role / "tasks" / "main.yml").read_text())  # type: ignore[no-any-return]


def _imported(playbook: str) -> list[str]:
    (play,) = yaml.safe_load((resources.playbooks() / playbook).read_text())
    assert play["gather_facts"] is False
    return [task["ansible.builtin.import_role"]["name"] for task in play["tasks"]]


@pytest.mark.parametrize("playbook", STEPS)
def test_what_is_done_without_ansible_is_what_the_playbook_does_in_at_most_eight_tasks_a_node(playbook: str) -> None:
    assert tuple(_imported(playbook)) == STEPS[playbook]
    assert sum(len(_tasks(role)) for role in STEPS[playbook]) <= 8


@pytest.mark.parametrize("playbook", sorted(resources.playbooks().glob("*.yml")), ids=lambda path: path.name)
def test_the_node_program_is_told_how_it_is_reached_so_that_it_ends_with_its_session(playbook: Path) -> None:
    if playbook.name == "environment.yml":  # starts envbuild itself, which runs the others
        assert "node_program" not in (ROLES / "environment/tasks/main.yml").read_text()
        return
    (play,) = yaml.safe_load(playbook.read_text())
    assert play["environment"] == {CONNECTION: "{{ ansible_connection }}"}


@pytest.mark.parametrize("verb", VERBS)
def test_a_step_is_one_call_of_the_node_program_with_its_request_on_stdin(verb: str) -> None:
    (task,) = _tasks(verb)
    assert task["node_program"] == {
        "argv": ["{{ envbuild_python }}", "{{ envbuild_pyz }}", verb],
        "request": f"{{{{ envbuild_requests['{verb}'] }}}}",
    }
    assert task["check_mode"] is False


@pytest.mark.parametrize("role", [path.name for path in sorted(ROLES.iterdir())])
def test_every_role_says_what_it_is_given(role: str) -> None:
    specs = yaml.safe_load((ROLES / role / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]
    text = "".join(path.read_text() for part in ("tasks", "vars") for path in (ROLES / role / part).glob("*.yml"))
    assert specs["short_description"]
    assert set(specs["options"]) == {word for word in specs["options"] if word in text}
    assert all(option.get("required") or "default" in option for option in specs["options"].values())
