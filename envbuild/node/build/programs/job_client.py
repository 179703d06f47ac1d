"""A program that stands before a compile command, or around a whole build; both hold a line to the builder.

    job_client.py take SOCKET SOURCE MEMORY -- CC ...   waits for a token of the builder's budget, then runs the command
    job_client.py guard SOCKET -- PYTHON ...            runs the command; at its end, or when the builder is gone, ends
                                                        everything that it started

`build_jobs.Budget` is at the other end of SOCKET (a Unix socket). One JSON line a message:

    {"op": "take", "source": name, "cores": n, "memory": GB a core, "weight": n, "more": n, "file": what it compiles}
                                                                        answer, once granted: {"idle": n of `more`}
    {"op": "killed", "text": ...}: a command died of SIGKILL            answer: {"again": true|false}
    {"op": "guard"}, {"op": "event", "text": ...}, {"op": "files", "count": n to compile}   no answer

A token is given back by closing the line, so a gate that dies keeps none. Runs under any Python >= 3.6 with `-I -S`,
and imports nothing else of the node program.
"""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What compiler drivers say when a program below them was killed (gcc and clang; nvcc), for they themselves end with 1.
KILLED = re.compile(
    rb"Killed signal terminated program|internal compiler error: Killed|died due to signal 9"
    rb"|command failed due to signal.*[Kk]illed|fatal error: Killed"
)
_SOURCE = re.compile(r"\.(c|cc|cpp|cxx|cu|f|f90|s|S|m)\Z")
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_TORCH = re.compile(rb"^[ \t]*#[ \t]*include[ \t]*[<\"]torch/", re.MULTILINE)
_ARCH = re.compile(r"\A(-gencode|--generate-code)(=|\Z)")
_LINK_WEIGHT = 1 << 40  # a link ends an extension: it never waits behind compiles
_TORCH_SIZE = 100000  # with torch's whole API Apex's .cu files take 72 to 127 s, without 34 to 40, whatever their size
_CUDA_WEIGHT = 8  # a .cu file takes much longer than a C++ file of its size
_SWEEPS = 50  # times to look for what a session still runs, 20 ms apart


def connect(path: str) -> "socket.socket":
    """A line to the builder; raises OSError."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(path)
    return line


def send(line: "socket.socket", message: "dict[str, Any]") -> None:
    """Write one message."""
    line.sendall(json.dumps(message).encode("ascii") + b"\n")


def receive(line: "socket.socket") -> "dict[str, Any]":
    """Wait for one message; raises OSError when the builder is gone."""
    data = b""
    while not data.endswith(b"\n"):
        part = line.recv(4096)
        if not part:
            raise OSError("the builder is gone")
        data += part
    answer: dict[str, Any] = json.loads(data.decode("ascii"))
    return answer


def weigh(command: "list[str]") -> int:
    """How long a command takes, roughly: the longest are started first, links before all."""
    sources = [word for word in command if _SOURCE.search(word)]
    if "-c" not in command and "--compile" not in command and not sources:
        return _LINK_WEIGHT
    return 1 + sum(_size(word) * (_CUDA_WEIGHT if word.endswith(".cu") else 1) for word in sources)


def _size(path: str) -> int:
    """Bytes of a source and of its headers beside it; all of torch, where one of them includes that, has its own."""
    text = _content(path)
    beside = [os.path.join(os.path.dirname(path), os.fsdecode(name)) for name in sorted(set(_INCLUDE.findall(text)))]
    text += b"\n".join(_content(each) for each in beside)
    return len(text) + (_TORCH_SIZE if _TORCH.search(text) else 0)


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def compiles(command: "list[str]") -> str:
    """The name of the file that a command compiles; empty for one that links."""
    return next((os.path.basename(word) for word in command if _SOURCE.search(word)), "")


def archs(command: "list[str]") -> int:
    """How many GPU architectures an nvcc command compiles for; nvcc can do them at once."""
    return len({command[i + 1] if word in ("-gencode", "--generate-code") and i + 1 < len(command) else word
                for i, word in enumerate(command) if _ARCH.match(word)})  # fmt: skip


def threads(command: "list[str]") -> "int | None":
    """What `--threads` of an nvcc command says, None where it says nothing."""
    for index, word in enumerate(command):
        name, _, value = word.partition("=")
        if name in ("--threads", "-t"):
            value = value or (command[index + 1] if index + 1 < len(command) else "")
            return int(value) if value.isdigit() else 1
    return None


def take(path: str, source: str, memory: float, command: "list[str]") -> int:
    """Run `command` under a token; returns its exit code. After an OOM kill it runs once more, with fewer beside it."""
    line = connect(path)
    nvcc = any(os.path.basename(word) == "nvcc" for word in command[:2])
    several = archs(command) if nvcc else 0
    asked = threads(command)
    cores = max(1, min(asked or 1, several or 1))
    while True:
        send(line, {"op": "take", "source": source, "cores": cores, "memory": memory, "weight": weigh(command),
                    "more": several - 1 if several > 1 and asked is None else 0,
                    "file": compiles(command)})  # fmt: skip
        spare = int(receive(line).get("idle", 0))
        extra = ["--threads", str(1 + spare)] if spare > 0 else []
        code, killed = _run(command + extra, line)
        if not killed:
            return code
        send(line, {"op": "killed", "text": os.path.basename(command[0])})
        if not receive(line).get("again"):
            sys.stderr.write("envbuild: the compiler was killed (signal 9) again; there is too little memory\n")
            return 137
        sys.stderr.write("envbuild: the compiler was killed (signal 9); running it again with fewer beside it\n")
        sys.stderr.flush()


def _run(command: "list[str]", line: "socket.socket") -> "tuple[int, bool]":
    """The command's exit code, and whether it or a program below it was killed."""
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
    except OSError as error:
        sys.stderr.write("envbuild: cannot run %s: %s\n" % (command[0], error))
        return 127, False
    stream = process.stderr
    assert stream is not None
    tail, open_ = b"", True
    while open_ or process.poll() is None:
        watched: list[Any] = [stream, line] if open_ else [line]
        ready = select.select(watched, [], [], 0.2 if open_ else 0.005)[0]
        if stream in ready:
            part = os.read(stream.fileno(), 65536)
            open_ = bool(part)
            tail = (tail + part)[-65536:]
            os.write(2, part)
        elif process.poll() is not None:
            break  # a compiler cache's daemon may hold the stream for ever
        if line in ready:
            # The builder is gone (only it writes here, and only when asked): end everything that it started.
            os.killpg(os.getpgrp(), signal.SIGKILL)
    code = process.wait()
    killed = code == -signal.SIGKILL or (code != 0 and KILLED.search(tail) is not None) or code == 137
    return (128 - code if code < 0 else code), killed


def _in_session(session: int) -> "list[int]":
    """Process ids of a session, those that ended and wait for their parent left out (proc(5), fields 3 and 6)."""
    found = []
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        try:
            with open("/proc/%d/stat" % pid) as stream:
                fields = stream.read().rpartition(")")[2].split()
        except (OSError, UnicodeDecodeError):
            continue
        if len(fields) > 3 and int(fields[3]) == session and fields[0] not in ("Z", "X"):
            found.append(pid)
    return found


def _end_session() -> None:
    """End what the command left running. Not by group: ninja gives every compile command a group of its own."""
    own = os.getpid()
    if os.getsid(0) != own:
        return  # not started as a build is: the session has others in it
    for _ in range(_SWEEPS):
        left = [pid for pid in _in_session(own) if pid != own]
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        if not left:
            return
        time.sleep(0.02)


def guard(path: str, command: "list[str]") -> int:
    """Run `command` with errors among the output; returns its exit code. Nothing of it runs on afterwards.

    143 when this program is told to end (SIGTERM), 125 when the builder is gone.
    """
    os.dup2(1, 2)
    line = connect(path)
    send(line, {"op": "guard"})
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    process = subprocess.Popen(command)
    while process.poll() is None and not told:
        if line in select.select([line], [], [], 0.05)[0]:
            _end_session()
            return 125
    _end_session()
    if told:
        return 143
    return 128 - process.returncode if process.returncode < 0 else process.returncode


def main(words: "list[str]") -> int:
    """The program; `words` are its arguments."""
    options, command = words[: words.index("--")], words[words.index("--") + 1 :]
    if options[0] == "guard":
        return guard(options[1], command)
    try:
        return take(options[1], options[2], float(options[3]), command)
    except OSError as error:
        sys.stderr.write("envbuild: no token: %s\n" % error)
        return 125


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
