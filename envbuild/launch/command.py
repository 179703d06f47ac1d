"""The command of any stack: its own arguments, filled in with parameters and the place, on each node or the first."""

from __future__ import annotations

from typing import Any

from pydantic import Field, create_model

from envbuild.errors import EnvbuildError
from envbuild.launch.request import Order, Parameters, Value, fill, read, require
from envbuild.model.common import Text
from envbuild.model.launch import Command, Launch, LaunchData

PORT = 29500
# One of them at least is how several nodes find each other.
_JOINING = frozenset({"nodes", "rank", "gpus", "hostfile"})


def parameters(data: LaunchData) -> type[Parameters]:
    """The names in `defaults`, each a text."""
    described = "fills {{{}}} in the stack's command"
    fields: dict[str, Any] = {
        f"parameter_{number}": (Text, Field(alias=name, description=described.format(name)))
        for number, name in enumerate(data.defaults)
    }
    return create_model("CommandParameters", __base__=Parameters, **fields)


def make(order: Order) -> Launch:
    """One command a node where its words name `{rank}`, else one that starts all nodes."""
    data, place, names = order.data, order.place, order.data.names()
    given, taken = read(parameters(data), order)
    trees = [source.name for source in order.profile.sources if source.install != "wheel"]
    if data.source is not None and data.source not in trees:
        raise EnvbuildError(
            "launch-data",
            f"the command of {order.stack} runs in {data.source}, which is no source with a tree",
            why=f"sources with a tree in the profile {order.profile_name}: {', '.join(trees) or 'none'}",
            hint="name one of them, or give the source `install: path`",
        )
    require(
        place.nodes == 1 or bool(names & _JOINING),
        f"the command of {order.stack} does not say how {place.nodes} nodes meet",
        hint="--nodes 1; or put {nodes}, {rank}, {address} and {port} into `reference: launch: arguments:`",
    )
    values: dict[str, Value] = {**order.place_values(PORT), **given.model_dump(by_alias=True)}
    if "rank" in names:
        commands = order.of_nodes(
            lambda rank: fill(data.arguments, {**values, "rank": rank}),
            data.environment,
            PORT if "port" in names else None,
        )
    else:
        argv = fill(data.arguments, values)
        commands = (Command(node=0, argv=argv, environment=data.environment, directory=order.directory()),)
    model = str(values.get("model") or order.stack)
    return order.launch(model, commands, degrees={}, defaults=taken)
