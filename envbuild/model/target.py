"""A target: where an environment is built, as its YAML file says it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from envbuild.model.common import EnvName, Name, StrictModel, Text
from envbuild.model.stack import BaseKind, EnvironmentValue


class Connection(StrictModel):
    """How nodes are reached.

    `local`: this machine. `ssh`: OpenSSH for work and Fabric for questions, host keys always verified against the
    user's and the system's known_hosts, or `known_hosts` where given.
    """

    kind: Literal["local", "ssh"] = "local"
    user: Name | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    identity: Text | None = None
    known_hosts: Text | None = None
    config: Text | None = None
    connect_timeout: Annotated[float, Field(gt=0, le=3600)] = 15.0


class Expectation(StrictModel):
    """The hardware a target is said to have; what differs is a warning in the plan and the report."""

    gpu: Text | None = None
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] | None = None
    driver: Text | None = None


class Target(StrictModel):
    """One target file after its `extends:` has been resolved.

    `prefix` may hold `{user}`, `{home}` and `{data}` (XDG data directory), filled on the node. `delivery` says who
    fetches packages and sources: the node itself, or the controller for nodes without a network.
    """

    name: Name
    summary: Text = ""
    extends: Text | None = None
    stack: Text | None = None
    profile: Name | None = None
    hosts: tuple[Text, ...] = ("localhost",)
    connection: Connection = Connection()
    engine: Literal["venv"] = "venv"
    base: BaseKind | None = None
    base_python: Text | None = None
    interpreter: Text | None = None
    prefix: Text
    placement: Literal["shared", "node-local"] = "node-local"
    privilege: Literal["none", "sudo"] = "none"
    delivery: Literal["node", "controller"] = "node"
    cache: Text | None = None
    tmp: Text | None = None
    environment: dict[EnvName, EnvironmentValue] = {}
    expects: Expectation = Expectation()
    floors: dict[Name, float] = {}

    @model_validator(mode="after")
    def _hosts_fit_the_connection(self) -> Target:
        if self.connection.kind == "local" and self.hosts != ("localhost",):
            raise ValueError("connection: local has one host, localhost")
        if not self.hosts:
            raise ValueError("`hosts` is empty")
        if any(host.startswith("-") for host in self.hosts):
            raise ValueError("a host must not start with '-'")
        return self
