"""Ranks that meet at the first one and send it what it sums."""

import os
import socket
import time

import numpy as np


class ReduceOp:
    SUM, MAX = np.add, np.maximum


class _Group:
    rank, world, backend, peers = 0, 1, "", []


def init_process_group(backend, init_method, timeout, rank=None, world_size=None):
    _Group.backend = backend
    _Group.rank = int(os.environ["RANK"]) if rank is None else rank
    _Group.world = int(os.environ["WORLD_SIZE"]) if world_size is None else world_size
    until = time.monotonic() + timeout.total_seconds()
    store = init_method[len("file://") :] if init_method.startswith("file://") else None
    _Group.peers = _receive(store) if _Group.rank == 0 else [_come(store, until)]
    for peer in _Group.peers:
        peer.settimeout(max(0.1, until - time.monotonic()))


def _receive(store):
    host, port = ("127.0.0.1", 0) if store else ("", int(os.environ["MASTER_PORT"]))
    with socket.create_server((host, port)) as listener:
        if store:
            with open(f"{store}.new", "w") as file:
                file.write(str(listener.getsockname()[1]))
            os.rename(f"{store}.new", store)
        return [listener.accept()[0] for _ in range(_Group.world - 1)]


def _come(store, until):
    while True:
        try:
            if store:
                with open(store) as file:
                    return socket.create_connection(("127.0.0.1", int(file.read())))
            return socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 2)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _read(peer, like):
    data, view = np.empty_like(like), None
    view = memoryview(data.reshape(-1).view(np.uint8))
    while view:
        count = peer.recv_into(view)
        if not count:
            raise ConnectionError("another rank has ended")
        view = view[count:]
    return data


def all_reduce(values, op=ReduceOp.SUM):
    total = np.ascontiguousarray(values)
    if _Group.rank == 0:
        for peer in _Group.peers:
            total = op(total, _read(peer, total))
    for peer in _Group.peers:
        peer.sendall(memoryview(total.reshape(-1).view(np.uint8)))
    values[...] = total if _Group.rank == 0 else _read(_Group.peers[0], total)


def barrier():
    all_reduce(np.zeros(1))


def get_rank():
    return _Group.rank


def get_world_size():
    return _Group.world


def get_backend():
    return _Group.backend


def destroy_process_group():
    for peer in _Group.peers:
        peer.close()
