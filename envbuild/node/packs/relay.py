"""The verb `relay`: one file goes from node to node, along a tree that the controller has drawn.

All nodes of the tree run this at once. A child connects to its parent, waits there until the parent has the file, takes
it, checks it, and gives it to its own children, one after another, those with most below them first; the root has it
from the beginning. A connection is TLS with the certificate of this journey (`relay_tls.py`), and begins with the token
that the child and the parent were told, which is good once. Then the parent sends `.` while it waits, `F` and the file,
or it closes because it will never have it; the child confirms with `K`.
"""

import contextlib
import errno
import hashlib
import hmac
import os
import re
import socket
import threading
import time

from envbuild.node import hashing, paths
from envbuild.node.packs import pack_format, relay_tls
from envbuild.node.protocol import Json, NodeError, log

_NAME = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,200}\Z")
_RECORD = 1 << 14
_BEAT = 5.0
_IDLE = 60.0  # seconds without a byte, after which the other side is gone
_TRY = 3.0  # seconds for one attempt to connect
_OLD = 86400.0
# What a route or a firewall says that lets nothing through; a parent that does not listen yet refuses.
_NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EPERM, errno.EINVAL)


def run(request: Json) -> "tuple[bool, Json]":
    """Take `args.file` from `args.parent` and give it to `args.children`; or, with `args.remove`, delete it.

    `file` lies in `<prefix>/store/packs`; `sha256` and `bytes` say what it is. `parent`: `address`, `ports`, `token`,
    `certificate` (PEM), or absent where the file is there. `children`: [{`name`, `token`}], in the order in which they
    are served at `listen` (`address`, `ports`: the first that is free; `certificate` and `key`, PEM). `patience`:
    seconds in which the other side has to be there, `deadline` seconds for all. Result: `file`, `there` (it was there
    before), `seconds`, `given` and `missed` (names of children).

    Raises NodeError `peer-unreachable`, `peer-gave-up` (exit 3), `transfer-damaged` (5), `disk-full` (75).
    """
    args = request["args"]
    path = _checked_file(request["prefix"], args.get("file"))
    if args.get("remove"):
        return _removed(path)
    began = time.monotonic()
    until, patience = began + float(args.get("deadline") or 3600.0), float(args.get("patience") or 20.0)
    wanted = _Wanted(path, str(args.get("sha256")), int(args.get("bytes") or 0))
    # The root has just made it, and every child looks at each byte.
    there = wanted.is_there() if args.get("parent") else wanted.has_size()
    paths.set_umask(request["prefix"])
    _make_folder(path)
    server = _Server(args, wanted, until) if args.get("children") else None
    try:
        if not there and not args.get("parent"):
            raise _damaged(path, "the node that was to give it has another file")
        if not there:
            _take(args.get("parent") or {}, wanted, patience, until)
        elif args.get("parent"):
            # Nothing has to be sent: the parent shall not wait for us.
            try:
                _connected(args["parent"], patience, until).close()
            except NodeError as error:
                log(str(error))
        given, missed = server.give(patience) if server else ([], [])
    finally:
        if server:
            server.close()
    seconds = round(time.monotonic() - began, 3)
    return not there, {"file": path, "there": there, "seconds": seconds, "given": given, "missed": missed}


def _checked_file(prefix: str, path: object) -> str:
    """`path` when it is a plain name in `<prefix>/store/packs`; raises NodeError `request-invalid`."""
    folder = os.path.join(prefix, paths.PACKS)
    if not isinstance(path, str) or os.path.dirname(path) != folder or not _NAME.match(os.path.basename(path)):
        raise NodeError("request-invalid", "`file` is not a plain name in %s" % folder)
    return path


def _removed(path: str) -> "tuple[bool, Json]":
    """Remove a pack, and the record that `pack` writes beside it."""
    there = [each for each in (path, pack_format.stem(path) + ".json") if os.path.lexists(each)]
    for each in there:
        os.unlink(each)
    return bool(there), {"file": path}


def _make_folder(path: str) -> None:
    """Make the folder of `path`, and sweep what killed runs left there more than a day ago."""
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
        for name in os.listdir(folder):
            each = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):  # another run may sweep here at the same time
                if each != path and time.time() - os.lstat(each).st_mtime > _OLD:
                    paths.remove_tree(each)
    except OSError as error:
        raise paths.not_writable(error, folder) from error


class _Wanted:
    """The file: where it belongs, and what it has to be."""

    def __init__(self, path: str, sha256: str, size: int) -> None:
        if not re.match(r"\A[0-9a-f]{64}\Z", sha256) or size <= 0:
            raise NodeError("request-invalid", "`sha256` and `bytes` must say what the file is")
        self.path = path
        self.sha256 = sha256
        self.size = size

    def has_size(self) -> bool:
        """A file of that size is there."""
        try:
            return os.path.getsize(self.path) == self.size
        except OSError:
            return False

    def is_there(self) -> bool:
        """The very file is there already: this node made it, or an earlier run brought it."""
        return self.has_size() and hashing.digest_if_readable(self.path) == self.sha256


def _secret(token: object) -> bytes:
    if not isinstance(token, str) or not re.match(r"\A[0-9a-f]{64}\Z", token):
        raise NodeError("request-invalid", "`token` must be 64 hexadecimal digits")
    return token.encode("ascii")


def _receive(connection: "socket.socket", count: int) -> bytes:
    """`count` bytes, fewer when the other side closes; raises OSError."""
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            break
        data += more
    return data


def _take(parent: Json, wanted: "_Wanted", patience: float, until: float) -> None:
    """Bring the file from the parent, whole and checked, or not at all."""
    facts = os.statvfs(os.path.dirname(wanted.path))
    if facts.f_bavail * facts.f_frsize < wanted.size:
        why = "%d bytes are free, the file has %d" % (facts.f_bavail * facts.f_frsize, wanted.size)
        raise paths.full_disk(os.path.dirname(wanted.path), why)
    connection = _connected(parent, patience, until)
    half = "%s.half-%d" % (wanted.path, os.getpid())
    try:
        connection.settimeout(_IDLE)
        sign = b"."
        while sign == b".":
            sign = _receive(connection, 1)
            _in_time(until)
        if sign != b"F":
            raise NodeError("peer-gave-up", "the node at %s did not get the file itself" % parent.get("address"))
        _stream(connection, wanted, half, until)
        connection.sendall(b"K")
    except OSError as error:
        raise paths.os_error(error, wanted.path) or _unreachable(str(parent.get("address")), str(error)) from error
    finally:
        connection.close()
        if os.path.lexists(half):
            os.unlink(half)


def _stream(connection: "socket.socket", wanted: "_Wanted", half: str, until: float) -> None:
    total = hashlib.sha256()
    left = wanted.size
    block = memoryview(bytearray(_RECORD))  # one for all: TLS gives no more at once, and a new one costs more than it
    with open(half, "xb", buffering=hashing.BLOCK) as out:
        while left:
            count = connection.recv_into(block, min(_RECORD, left))
            if not count:
                raise OSError("it closed with %d of %d bytes still to come" % (left, wanted.size))
            total.update(block[:count])
            out.write(block[:count])
            left -= count
            _in_time(until)
    if total.hexdigest() != wanted.sha256:
        raise _damaged(wanted.path, "its sha256 is %s, not %s" % (total.hexdigest()[:12], wanted.sha256[:12]))
    # Not synced to the disk: it is hashed again before it is used, and gone soon after.
    os.rename(half, wanted.path)


def _damaged(path: str, why: str) -> "NodeError":
    return NodeError(
        "transfer-damaged",
        "%s is not what was packed" % path,
        why=why,
        hint="run the same command again; if it stays, look at disk and memory of the node that gave it",
    )


def _in_time(until: float) -> None:
    if time.monotonic() > until:
        raise OSError("the time for the transfer is over")


def _unreachable(where: str, why: str) -> "NodeError":
    return NodeError(
        "peer-unreachable",
        "this node got no file from %s" % where,
        why=why,
        hint="a firewall between the nodes? Then the controller sends the file",
    )


def _connected(parent: Json, patience: float, until: float) -> "socket.socket":
    """A connection to the parent that has taken our token; it may begin to listen later than we begin to ask."""
    address, ports, token = str(parent.get("address")), parent.get("ports") or [], _secret(parent.get("token"))
    context = relay_tls.taking(parent)
    began = time.monotonic()
    give_up, closed = min(until, began + patience), min(until, began + _TRY)
    last = "no port was named"
    while True:
        no_way = True
        for port in ports:
            try:
                connection = socket.create_connection((address, int(port)), timeout=_TRY)
            except OSError as error:
                last = "%s port %s: %s" % (address, port, error)
                no_way = no_way and error.errno in _NO_WAY
                continue
            no_way = False
            try:
                connection = context.wrap_socket(connection)
                connection.sendall(token)
            except OSError as error:  # another program listens there, or one with another certificate
                last = "%s port %s: %s" % (address, port, error)
            else:
                return connection
            connection.close()
        if time.monotonic() > (closed if no_way else give_up):
            raise _unreachable(address, last)
        time.sleep(0.1)


class _Server:
    """Gives the file to the children; from the beginning they can wait here, a thread each."""

    def __init__(self, args: Json, wanted: "_Wanted", until: float) -> None:
        self.wanted = wanted
        self.until = until
        self.names = [str(child["name"]) for child in args["children"]]
        self.tokens = [_secret(child.get("token")) for child in args["children"]]
        self.turn = threading.Condition()
        self.state = "waiting"  # then `ready` or `failed`
        self.queue: set[int] = set()  # children that are connected and not yet served
        self.seen: set[int] = set()
        self.given: list[int] = []
        self.sending = False
        listen = args.get("listen") or {}
        self.context = relay_tls.giving(listen, os.path.dirname(wanted.path))
        self.socket = _bound(str(listen.get("address")), listen.get("ports") or [], len(self.names))
        if self.socket is not None:
            threading.Thread(target=self._accept, args=(self.socket,), daemon=True).start()

    def _accept(self, listening: "socket.socket") -> None:
        while True:
            try:
                connection = listening.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: "socket.socket") -> None:
        child = None
        try:
            connection.settimeout(_TRY * 2)
            connection = self.context.wrap_socket(connection, server_side=True)
            child = self._welcomed(connection)
            if child is None or not self._turn_of(child, connection):
                return
            try:
                connection.sendall(b"F")
                with open(self.wanted.path, "rb") as stream:
                    for block in hashing.blocks(stream):
                        connection.sendall(block)
                        _in_time(self.until)
                if _receive(connection, 1) == b"K":
                    self.given.append(child)
            finally:
                with self.turn:
                    self.sending = False
        except OSError as error:
            log("relay: %s" % error)
        finally:
            with self.turn:
                if child is not None:
                    self.queue.discard(child)
                self.turn.notify_all()
            connection.close()

    def _welcomed(self, connection: "socket.socket") -> "int | None":
        """Which child it is; None for anybody else. A token is good once."""
        told = _receive(connection, 64)
        with self.turn:
            for child, token in enumerate(self.tokens):
                if child not in self.seen and hmac.compare_digest(told, token):
                    self.seen.add(child)
                    self.queue.add(child)
                    self.turn.notify_all()
                    connection.settimeout(_IDLE)
                    return child
        return None

    def _turn_of(self, child: int, connection: "socket.socket") -> bool:
        """Wait until this child is served next, with a sign of life meanwhile; False where nothing will come."""
        with self.turn:
            while self.state == "waiting" or (
                self.state == "ready" and (self.sending or child != min(self.queue, default=child))
            ):
                self.turn.wait(_BEAT)
                connection.sendall(b".")
            self.sending = self.state == "ready"
            return self.sending

    def give(self, patience: float) -> "tuple[list[str], list[str]]":
        """The file is there: serve all children; returns the names of those that have it and of those that have not.

        A child that has not come within `patience` seconds since anything last happened is missed.
        """
        with self.turn:
            self.state = "ready"
            self.turn.notify_all()
            quiet = time.monotonic()
            while self.socket is not None and time.monotonic() < self.until:
                if len(self.seen) == len(self.names) and not self.queue:
                    break
                if self.queue or self.sending:
                    quiet = time.monotonic()
                elif time.monotonic() - quiet > patience:
                    break
                self.turn.wait(0.5)
        given = [self.names[child] for child in sorted(self.given)]
        return given, [name for name in self.names if name not in given]

    def close(self) -> None:
        """Nobody comes in any more; who still waits for a file is told that there will be none."""
        with self.turn:
            if self.state == "waiting":
                self.state = "failed"
            self.turn.notify_all()
        if self.socket is not None:
            self.socket.close()
        end = time.monotonic() + _TRY
        with self.turn:
            while self.queue and time.monotonic() < end:
                self.turn.wait(0.1)


def _bound(address: str, ports: "list[int]", count: int) -> "socket.socket | None":
    """A socket that listens at `address` on the first free one of `ports`; None, and it is logged, where none is."""
    for port in ports:
        try:
            family, kind, proto, _name, place = socket.getaddrinfo(address, int(port), type=socket.SOCK_STREAM)[0]
            listening = socket.socket(family, kind, proto)
        except OSError as error:
            log("relay: cannot listen at %s: %s" % (address, error))
            return None
        try:
            listening.bind(place)
            listening.listen(count + 8)
        except OSError as error:
            log("relay: cannot listen at %s port %s: %s" % (address, port, error))
            listening.close()
        else:
            return listening
    return None
