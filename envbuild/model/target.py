"""A target: where an environment is built, as its YAML file says it."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from envbuild.model.common import EnvName, Name, StrictModel, Text
from envbuild.model.stack import BaseKind, EnvironmentValue

_PLACEHOLDERS = re.compile(r"\{[^{}]*\}")


def _not_option(value: str) -> str:
    if not value or value.startswith("-"):
        raise ValueError("must not be empty or start with '-'")
    return value


def _path_template(value: str) -> str:
    """An absolute path that may begin with, and hold, the placeholders of `Target`."""
    unknown = set(_PLACEHOLDERS.findall(value)) - {"{user}", "{home}", "{data}"}
    if unknown or "{{" in value or "}}" in value:
        raise ValueError("only the placeholders {user}, {home} and {data} can be used")
    if not value.startswith(("/", "{home}", "{data}")):
        raise ValueError("must be absolute, or begin with {home} or {data}")
    if ".." in value.split("/"):
        raise ValueError("must not hold '..'")
    return value


def _host(value: str) -> str:
    _not_option(value)
    if "{{" in value or any(c.isspace() for c in value):
        raise ValueError("a host holds no spaces and no '{{'")
    return value


PathTemplate = Annotated[Text, AfterValidator(_path_template)]
FileText = Annotated[Text, AfterValidator(_not_option)]
Host = Annotated[Text, AfterValidator(_host)]


class Connection(StrictModel):
    """How nodes are reached.

    `local`: this machine. `ssh`: OpenSSH for work and Fabric for questions, host keys always verified against the
    user's and the system's known_hosts, or `known_hosts` where given.
    """

    kind: Literal["local", "ssh"] = "local"
    user: Name | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    identity: FileText | None = None
    known_hosts: FileText | None = None
    config: FileText | None = None
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
    hosts: tuple[Host, ...] = ("localhost",)
    connection: Connection = Connection()
    engine: Literal["venv"] = "venv"
    base: BaseKind | None = None
    base_python: FileText | None = None
    interpreter: FileText | None = None
    prefix: PathTemplate
    placement: Literal["shared", "node-local"] = "node-local"
    privilege: Literal["none", "sudo"] = "none"
    delivery: Literal["node", "controller"] = "node"
    cache: PathTemplate | None = None
    tmp: PathTemplate | None = None
    environment: dict[EnvName, EnvironmentValue] = {}
    expects: Expectation = Expectation()
    floors: dict[Name, float] = {}

    @model_validator(mode="after")
    def _hosts_fit_the_connection(self) -> Target:
        if self.connection.kind == "local" and self.hosts != ("localhost",):
            raise ValueError("connection: local has one host, localhost")
        if not self.hosts:
            raise ValueError("`hosts` is empty")
        return self
