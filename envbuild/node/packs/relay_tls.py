"""The encryption of `relay`: TLS with a certificate that the controller has made for one journey of one file.

Who gives has the certificate and its key. Who takes trusts this certificate and no other, whatever name it is found at.
"""

import tempfile

from envbuild.node.protocol import Json, NodeError

try:
    import ssl
except ImportError:  # a Python that was built without it
    ssl = None  # type: ignore[assignment]

# Has TLS 1.2 at least.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


def giving(listen: Json, folder: str) -> "ssl.SSLContext":
    """The server's side, from `certificate` and `key` (PEM); `folder`: one of ours on a disk.

    Raises NodeError `peer-unreachable`, `request-invalid`.
    """
    context = _context(server=True)
    if hasattr(context, "num_tickets"):
        # They would wait unread at a child that goes at once, and its connection would end as a broken one.
        context.num_tickets = 0
    try:
        # Without a name on the disk: Python reads a key from a file only.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(("%s\n%s" % (listen["key"], listen["certificate"])).encode("ascii"))
            file.flush()
            context.load_cert_chain("/proc/self/fd/%d" % file.fileno())
    except (KeyError, UnicodeError, ssl.SSLError) as error:
        raise _invalid() from error
    except OSError as error:
        raise _no_way("the certificate cannot be read: %s" % error) from error
    return context


def taking(parent: Json) -> "ssl.SSLContext":
    """The client's side, from `certificate` (PEM). Raises NodeError `peer-unreachable`, `request-invalid`."""
    context = _context(server=False)
    context.check_hostname = False  # the certificate itself is known
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cadata=parent["certificate"])
    except (KeyError, TypeError, ValueError, ssl.SSLError) as error:
        raise _invalid() from error
    return context


def _context(server: bool) -> "ssl.SSLContext":
    if ssl is None:
        raise _no_way("this Python has no module `ssl`")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers(_CIPHERS)
    return context


def _invalid() -> "NodeError":
    return NodeError("request-invalid", "`certificate` and `key` must be those of the journey (PEM)")


def _no_way(why: str) -> "NodeError":
    return NodeError(
        "peer-unreachable", "this node cannot hand files to others", why=why, hint="the controller sends the file"
    )
