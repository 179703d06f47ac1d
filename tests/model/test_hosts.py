"""Hosts and addresses of repositories: what ssh or a resolver would take for something else is refused, with why."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from envbuild.model.common import GitUrl
from envbuild.model.target import Connection, Host

URL: TypeAdapter[str] = TypeAdapter(GitUrl)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ssh://-oX=x@h/x", "user name"),
        ("ssh://u@-h/x", "host"),
        ("ssh://a%20b@h/x", "user name"),
        ("ssh://h:99999/x", "ort"),
        ("https://h/../x?y", "query"),
        ("ssh:///x", "host"),
        ("ext::sh -c x", "https:// or ssh://"),
        ("ssh://git:secret@h/x", "credentials"),
    ],
)
def test_d27_an_address_that_is_read_as_something_else_is_refused_with_its_reason(url: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        URL.validate_python(url)


@pytest.mark.parametrize("url", ["ssh://git@h.example/x.git", "https://h.example:8443/a/b", "ssh://git@[::1]:22/x"])
def test_addresses_of_repositories_are_taken(url: str) -> None:
    assert URL.validate_python(url) == url


@pytest.mark.parametrize("name", ["a/b", "-oX=x", "", "x" * 300, "h\u00e9"])
@pytest.mark.parametrize("where", ["login", "address", "host"])
def test_d27_a_host_that_is_none_is_refused_where_a_target_names_one(name: str, where: str) -> None:
    told: dict[str, Any] = {
        "login": {"kind": "job", "login": {"host": name}},
        "address": {"kind": "ssh", "hosts": {"a": {"address": name}}},
        "host": {"kind": "ssh", "hosts": {name: {"port": 22}}},
    }[where]
    with pytest.raises(ValidationError, match="must be a host name or address"):
        Connection.from_plain(told)


def test_a_host_with_a_port_is_refused_with_where_ports_are_written_and_an_ipv6_address_is_taken() -> None:
    with pytest.raises(ValidationError, match=r"write 127.0.0.1 here, and `connection: \{port: 2299\}`"):
        TypeAdapter(Host).validate_python("127.0.0.1:2299")
    assert TypeAdapter(Host).validate_python("fe80::1") == "fe80::1"
