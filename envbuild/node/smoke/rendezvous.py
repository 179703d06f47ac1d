"""Where the nodes of a joint smoke test meet before anything is started, so that a node that cannot is told by name.

The first node listens on one of the ports that all were told. The others come to it, say their rank and wait; when all
are there, or at the deadline, each gets the same answer: the port on which torchrun will meet and how many ranks each
node starts, or who is missing. The first node then frees that port for torchrun, so one open port is all that a
firewall has to allow.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import NamedTuple

from envbuild.node.probe import system
from envbuild.node.protocol import Json, NodeError

PORTS = 4  # in a row, of which the first that is free is taken
_LINE = 4096
_CONNECT = 2.0  # s; in one network an answer takes milliseconds, a dropped packet gives none
_PAUSE = 0.3
_GRACE = 10.0  # s that others wait longer than the first node, whose answer they wait for


class Meeting(NamedTuple):
    """How it went: `address` and `port` for torchrun, `own` the address of this node there, `missing` nodes by rank.

    `ranks`: of each node, as many as all of them can start.
    """

    address: str
    port: int
    own: str
    missing: list[int]
    ranks: int

    @property
    def interface(self) -> str | None:
        """The network interface that has this node's address; None where it is not known."""
        if self.own.startswith("127."):
            return "lo"
        try:
            names = [name for _, name in socket.if_nameindex()]
        except OSError:
            return None
        return next((name for name in names if self.own in system.addresses(name)), None)


def receive(ports: list[int], nodes: int, token: str, seconds: float, ranks: int) -> Meeting:
    """The first node, which can start `ranks`: wait until the other `nodes` - 1 have come, at most `seconds`.

    Raises NodeError `nodes-cannot-meet` (exit 1) where none of the ports is free.
    """
    listener, port = _listen(ports)
    peers: dict[int, tuple[socket.socket, int]] = {}
    until = time.monotonic() + seconds
    try:
        with listener:
            while len(peers) < nodes - 1 and time.monotonic() < until:
                listener.settimeout(max(0.01, until - time.monotonic()))
                _welcome(listener, peers, nodes, token)
        missing = [rank for rank in range(1, nodes) if rank not in peers]
        own = next((_own_address(peer) for peer, _ in peers.values()), "127.0.0.1")
        fewest = min([ranks] + [theirs for _, theirs in peers.values()])
        for peer, _ in peers.values():
            _send(peer, {"port": port, "missing": missing, "ranks": fewest})
        for peer, _ in peers.values():
            peer.settimeout(_CONNECT)
            with contextlib.suppress(OSError):  # it may be gone already
                peer.recv(1)
    finally:
        for peer, _ in peers.values():
            peer.close()
    return Meeting(own, port, own, missing, fewest)


def _listen(ports: list[int]) -> tuple[socket.socket, int]:
    why = "no port was named"
    # On all addresses, as torchrun will: which of them the others can reach is not known here.
    for port, both in [(port, both) for port in ports for both in (True, False)]:
        family = socket.AF_INET6 if both else socket.AF_INET
        try:
            return socket.create_server(("", port), family=family, backlog=128, dualstack_ipv6=both), port
        except (OSError, ValueError) as error:  # ValueError: one socket cannot have both families here
            why = f"port {port}: {error}"
    raise NodeError(
        "nodes-cannot-meet",
        "the first node has no free port for the joint smoke test",
        why=why,
        hint=f"free one of these ports: {', '.join(map(str, ports))}",
    )


def _welcome(listener: socket.socket, peers: dict[int, tuple[socket.socket, int]], nodes: int, token: str) -> None:
    """Take one connection in, with how many ranks its node can start; one that is not of this test is closed."""
    try:
        peer, _ = listener.accept()
    except OSError:
        return  # nobody came in time
    hello = _read(peer)
    rank, ranks = hello.get("rank"), hello.get("ranks")
    if hello.get("token") != token or not isinstance(rank, int) or not isinstance(ranks, int):
        return peer.close()
    if not 0 < rank < nodes or not _send(peer, {"met": 1}):
        return peer.close()
    if rank in peers:
        peers[rank][0].close()  # it came again after it had lost its connection
    peers[rank] = (peer, ranks)


def join(addresses: list[str], ports: list[int], rank: int, token: str, seconds: float, ranks: int) -> Meeting:
    """Every other node: come to the first one, wait for all. Raises NodeError `nodes-cannot-meet` (exit 1)."""
    until = time.monotonic() + seconds
    problems: dict[str, str] = {}
    while time.monotonic() < until:
        for address in addresses:
            for port in ports:
                peer = _come(address, port, {"rank": rank, "token": token, "ranks": ranks}, problems)
                if peer is not None:
                    with peer:
                        return _wait(peer, address, max(1.0, until - time.monotonic() + _GRACE))
        time.sleep(_PAUSE)
    reasons = "; ".join("%s: %s" % pair for pair in sorted(problems.items()))
    raise NodeError(
        "nodes-cannot-meet",
        "this node cannot reach the first node of the joint smoke test",
        why=reasons or "no address of it is known",
        hint=(
            f"open these TCP ports between the nodes: {min(ports)} to {max(ports)}, or leave the "
            "test out: `smoke_nodes: 0` in the target"
        ),
        details={"addresses": addresses, "ports": ports},
    )


def _come(address: str, port: int, hello: Json, problems: dict[str, str]) -> socket.socket | None:
    """A connection to the first node, which has said that it knows this test; None where it is not there."""
    try:
        peer = socket.create_connection((address, port), timeout=_CONNECT)
    except OSError as error:
        problems[f"{address} port {port}"] = str(error)
        return None
    if _send(peer, hello) and _read(peer).get("met"):
        return peer
    peer.close()
    problems[f"{address} port {port}"] = "who listens there is not the first node of this test"
    return None


def _wait(peer: socket.socket, address: str, seconds: float) -> Meeting:
    answer = _read(peer, seconds)
    port, ranks = answer.get("port"), answer.get("ranks")
    if not isinstance(port, int) or not isinstance(ranks, int):
        raise NodeError(
            "nodes-cannot-meet",
            f"the first node of the joint smoke test at {address} no longer answers",
            hint="see the result of the first node",
        )
    missing = [rank for rank in answer.get("missing") or [] if isinstance(rank, int)]
    return Meeting(address, port, _own_address(peer), missing, ranks)


def _own_address(peer: socket.socket) -> str:
    own = str(peer.getsockname()[0])
    return own[len("::ffff:") :] if own.startswith("::ffff:") and "." in own else own


def _send(peer: socket.socket, data: Json) -> bool:
    try:
        peer.sendall(json.dumps(data).encode("utf-8") + b"\n")
    except OSError:
        return False
    return True


def _read(peer: socket.socket, seconds: float = _CONNECT) -> Json:
    """One line of JSON and no byte of the next; empty for anything else, and for none within `seconds` in all."""
    data, until = b"", time.monotonic() + seconds
    try:
        while not data.endswith(b"\n") and len(data) < _LINE:
            peer.settimeout(max(0.01, until - time.monotonic()))
            block = peer.recv(1)
            if not block or time.monotonic() > until:
                break
            data += block
        line = json.loads(data.decode("utf-8"))
    except (OSError, ValueError):
        return {}
    return line if isinstance(line, dict) else {}


def in_job(most: int | None) -> Json:
    """What the script of a job says about this node: `rank`, `nodes`, `addresses`, `ports`; `most` nodes take part."""
    try:
        rank, count, port = (int(os.environ[name]) for name in ("NODE_RANK", "NNODES", "MASTER_PORT"))
    except (KeyError, ValueError) as error:
        raise NodeError(
            "request-invalid",
            "nodes can connect to each other only in a job that lists them",
            why=str(error),
            hint="see docs/slurm-and-pbs.md",
        ) from error
    # Slurm's own word for the node that srun runs on: node names need not be names of hosts.
    named = (os.environ.get("MASTER_ADDR"), os.environ.get("SLURM_LAUNCH_NODE_IPADDR"))
    addresses = [name for name in dict.fromkeys(named) if name]
    ports = [port + index for index in range(PORTS)]
    return {"rank": rank, "nodes": min(count, most or count), "addresses": addresses, "ports": ports}
