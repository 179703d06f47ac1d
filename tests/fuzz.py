"""Hostile input for every parser of what comes from outside: `make fuzz`, or `python -m tests.fuzz [SECONDS] [PARSER]`.

Two minutes at low priority. A parser answers, or refuses with a coded error, within a second of the processor for each
kilobyte. Anything else is printed with the input that did it, and the exit code is 1. The seed is printed, and
`FUZZ_SEED` repeats it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.node.protocol import NodeError

TOP = Path(__file__).parents[1]
LARGEST = 64_000
SLOW, MOST = 1.0, 10.0  # seconds a kilobyte, and for any input here
HOSTILE = (
    *"\0\r\n\t\x1b\x7f'\"`$\\{}[]()<>|&;:,=#*!%@~^-+/.?", "\u202e", "\u2028", "\ufeff", "\ud7ff", "\u0663",
    "\U0001f600", "..", "../", "//", "://", "user:secret@", "git+", "@" + "a" * 40, "${X}", "$(id)", "$((", "<<EOF\n",
    "\\\n", "- ", "? ", "&a ", "*a ", "<<: *a", "!!python/object/apply:os.system ", "---\n", "...\n", "{{", "}}", "[[",
    "]]", "=== ", "~=1.*", "; python_version<'3'", "[1-99999999]", "[01-4096]", "9" * 4400, "1e999", "-1", "NaN",
    "Infinity", "null", "true", "0x1f", "1_0", "--", "-e ", "-r ", ".. include:: /etc/passwd\n", "<!--", "<a ", "![](",
    "```\n", "| ", "|---", "\n\n", "    ", "::\n\n  ", "ONBUILD ", "ARG A=", "FROM x AS x\n", "\x80", "\xff",
)  # fmt: skip


def _cli(*words: str, name: str = "input") -> Callable[[bytes], Any]:
    """A command line over a file that has the input; `FILE` in it is the file's path."""

    def parse(data: bytes) -> None:
        from envbuild.cli.run import run

        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            path = Path(folder, name)
            path.write_bytes(data)
            before, out = Path.cwd(), io.StringIO()
            os.chdir(folder)
            try:
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                    code = run([word.replace("FILE", str(path)) for word in words])
            finally:
                os.chdir(before)
            if code == 70 or "Traceback" in out.getvalue():
                raise AssertionError(f"exit {code}: {out.getvalue()[-600:]}")

    return parse


def _text(function: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: function(data.decode("utf-8", "replace"))


def _page(name: str) -> tuple[Callable[[bytes], Any], list[bytes]]:
    """A reader of `init --from`, and the draft that it leads to."""
    seeds = [PAGES[name]]
    if name in ("README.md", "environment.yml", "Dockerfile", "setup.sh"):
        return _cli("init", "--from", "FILE", "--offline", "--yes", "out.yaml", name=name), seeds
    from envbuild.init.read import read

    return _text(lambda text: read(text, name)), seeds


SEEDS = Path(__file__).parent / "seeds"
PAGES = {path.stem.replace("%", "/"): path.read_bytes() for path in sorted((SEEDS / "pages").iterdir())}


def _seeds(name: str) -> list[bytes]:
    """What a parser takes."""
    return [(SEEDS / f"{name.replace(' ', '-')}.seed").read_bytes()]


def _kit() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in (
            ("kit.json", b'{"version": 1, "files": []}'),
            ("report/evidence.json", b"{}"),
            ("report/", b""),
        ):
            member = tarfile.TarInfo(name)
            member.size, member.type = len(data), tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _hosts(text: str) -> None:
    from envbuild.hostlist import expand_hosts, fold_hosts

    fold_hosts(expand_hosts([text]))


def _gpus(text: str) -> None:
    from envbuild.node.probe import gpus

    for parse in (gpus.parse_query, gpus.parse_sick, gpus.parse_list, gpus.parse_problem):
        parse(text)
    gpus.parse_health(text, ("pci.bus_id", "a"))
    for parse in (gpus.DRIVER.search, gpus.CEILING.search, gpus.MODULE.search, gpus.NVCC.search):
        parse(text)


def _slurm(text: str) -> None:
    from envbuild.schedule import slurm

    slurm.parse_job(text)
    slurm.parse_sacct(text)
    slurm.parse_bad_nodes(text)
    list(slurm.parse_gres(text))
    slurm.parse_partition("gpu", "TotalNodes=4 " + text, text, text)


def _pbs(text: str) -> None:
    from envbuild.schedule import pbs

    queues, nodes = pbs.parse_queues(text), pbs.parse_nodes(text)
    pbs.parse_job(text, "1")
    pbs.bad_nodes(nodes)
    pbs.offers(nodes, "ngpus=4", queues)


def _logs(text: str) -> None:
    from envbuild.node.smoke import training_log as log

    for form in ("megatron", "deepspeed", "metaseq"):
        found = log.losses(form, [text])
        log.judge(found, 2)
        log.cut_short(log.read(form, text))


def _addresses(text: str) -> None:
    from envbuild.container.base_images import parse_reference
    from envbuild.init.readers.requirement import conda_spec, git_address, requirement, wheel
    from envbuild.init.tree import split_ref

    for parse in (split_ref, git_address, requirement, wheel, conda_spec, parse_reference):
        with contextlib.suppress(EnvbuildError):
            parse(text)


def _ssh(text: str) -> None:
    from envbuild.model.target import Connection
    from envbuild.transport.ssh_errors import login_error

    login_error("node", Connection(kind="ssh"), text)


def _redacted(text: str) -> None:
    from envbuild.node.redact import redact_text
    from envbuild.text import visible

    visible(redact_text(text))


def _stamp(data: bytes) -> None:
    from envbuild.node.env import stamp
    from envbuild.node.probe import inventory

    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        Path(folder, ".envbuild").mkdir()
        for name in ("stamp.json", "verified.json"):
            Path(folder, ".envbuild", name).write_bytes(data)
        found = inventory.read_stamp(folder)
        stamp.problems(folder, found, None)
        if found is not None:
            stamp.last_read(folder, found)
            stamp.kept_of_base(found)


def _bundle_index(data: bytes) -> None:
    from envbuild.node.bundle import archive

    archive.parse_index(data, "x")
    try:
        found = json.loads(data)
        sealed = archive.encode_index({**found, "digest": archive._digest(found)})
    except (ValueError, RecursionError, TypeError):
        return
    archive.parse_index(sealed, "x")


def _json(data: bytes) -> None:
    from envbuild.report.evidence_file import parse

    with contextlib.suppress(ValueError):
        parse(data)


def parsers() -> dict[str, tuple[Callable[[bytes], Any], list[bytes]]]:
    """Every parser by its name, with texts that it takes."""
    from envbuild.lock.readers.pylock import parse_pylock

    facts = (TOP / "envbuild/catalog/facts/h200.json").read_bytes()
    lock = next(TOP.glob("lockfiles/**/torch-smoke*.toml")).read_bytes()
    stack = (TOP / "envbuild/catalog/stacks/torch-smoke.yaml").read_bytes()
    target = (TOP / "envbuild/catalog/targets/azure-nd96.yaml").read_bytes()
    ssh, addresses, evidence = _seeds("ssh"), _seeds("addresses")[0].splitlines(), _seeds("evidence")
    return {
        "nvidia-smi": (_text(_gpus), _seeds("nvidia-smi")),
        "host lists": (_text(_hosts), _seeds("host lists")[0].splitlines()),
        "slurm": (_text(_slurm), _seeds("slurm")),
        "pbs": (_text(_pbs), _seeds("pbs")),
        "training logs": (_text(_logs), _seeds("training logs")),
        "ssh": (_text(_ssh), ssh),
        "addresses": (_text(_addresses), addresses),
        "redactor": (_text(_redacted), [*ssh, *addresses, *_seeds("shell"), facts[:4000]]),
        "stamps": (_stamp, _seeds("stamps")),
        "bundle index": (_bundle_index, _seeds("bundle index")),
        "JSON": (_json, [facts[:4000], *evidence]),
        "pylock": (_text(parse_pylock), _seeds("pylock")),
        **{name: _page(name) for name in PAGES},
        "stack file": (_cli("stack", "check", "FILE", name="a.yaml"), [stack]),
        "target file": (_cli("target", "check", "FILE", name="a.yaml"), [target]),
        "inventory": (_cli("lock", "check", "torch-smoke", "--offline", "--lock", "FILE", name="a.toml"), [lock]),
        "facts": (_cli("plan", "torch-smoke", "--facts", "FILE"), [facts]),
        "evidence": (_cli("report", "verify", "FILE", name="evidence.json"), evidence),
        "page of a report": (_cli("report", "verify", "FILE", name="report.html"), _seeds("page of a report")),
        "kit": (_cli("report", "verify", "FILE", name="kit.tar"), [_kit()]),
        "bundle": (_cli("bundle", "verify", "FILE", name="a.tar"), [_kit()]),
        "trace": (_cli("trace", "FILE", name="a.log"), _seeds("trace")),
        "bench log": (_cli("bench", "megatron-alpa", "--log", "FILE"), _seeds("training logs")),
        "document": (_cli("explain", "torch-smoke", "--document", "FILE", name="a.md"), [PAGES["README.md"]]),
        "configuration": (_cli("config", "show", name="envbuild.toml"), _seeds("configuration")),
    }  # fmt: skip


def mutated(seeds: list[bytes], chance: random.Random) -> bytes:
    """A seed with up to six changes; one in eight is one piece many times, which shows what is not linear."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(0, 6)):
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.choice((1, 2, 8, 40, 400)))
        token = chance.choice(HOSTILE).encode("utf-8", "surrogatepass")
        change = chance.randrange(6)
        if change == 0:
            del data[start:end]
        elif change == 1:
            data[start:start] = token
        elif change == 2:
            data[start:end] = token
        elif change == 3:
            data[start:start] = data[start:end] * chance.choice((2, 5, 300))
        elif change == 4:
            other = chance.choice(seeds)
            data[start:end] = other[: chance.randrange(len(other) + 1)]
        elif data:
            data[start % len(data)] = chance.randrange(256)
        del data[LARGEST:]
    if chance.random() < 1 / 8:
        start = chance.randrange(len(data) + 1)
        piece = bytes(data[start : start + chance.choice((1, 2, 5, 30))]) or b"("
        piece = chance.choice((piece, chance.choice(HOSTILE).encode("utf-8", "surrogatepass")))
        data[start:start] = piece * (chance.choice((3000, 20_000)) // len(piece))
    return bytes(data[:LARGEST])


class Late(BaseException):
    """A parser has had its time; nothing catches this as a failure of the input."""


def _late(*_: object) -> None:
    raise Late


def attempt(parse: Callable[[bytes], Any], data: bytes) -> str:
    """What is wrong with the answer; empty when nothing is."""
    most = min(MOST, SLOW * max(1.0, len(data) / 1000))
    signal.setitimer(signal.ITIMER_PROF, most)  # of the processor: neighbours do not count
    try:
        parse(data)
    except (EnvbuildError, NodeError):
        pass
    except Late:
        return f"slow: {len(data)} bytes took more than {most:.1f} s"
    except Exception as error:  # noqa: BLE001 - any other is what is looked for
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[-500:]} ({Path(where.filename).name}:{where.lineno})"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ""


def main(seconds: float = 120.0, only: str = "") -> int:
    """Every parser for its share of the time; 1 when one failed."""
    os.nice(10)
    signal.signal(signal.SIGPROF, _late)
    seed = int(os.environ.get("FUZZ_SEED") or time.time())
    chosen = {name: pair for name, pair in parsers().items() if only in name}
    failed = 0
    print(f"seed {seed}")
    for name, (parse, seeds) in chosen.items():
        chance, count, wrong = random.Random(f"{seed} {name}"), 0, dict[str, bytes]()
        for data in seeds:
            attempt(parse, data)  # imports take their time once
            if problem := attempt(parse, data):
                wrong.setdefault(problem, data)
        end = time.monotonic() + seconds / len(chosen)
        while time.monotonic() < end:
            data = mutated(seeds, chance)
            count += 1
            if problem := attempt(parse, data):
                kept = wrong.setdefault(problem, data)
                wrong[problem] = min(kept, data, key=len)
        print(f"{name:<28} {count:>6} inputs" + (f", {len(wrong)} wrong" if wrong else ""), flush=True)
        for problem, data in list(wrong.items())[:8]:
            path = Path(
                tempfile.gettempdir(), f"fuzz-{name.replace('/', '-').replace(' ', '-')}-{abs(hash(problem)) % 10000}"
            )
            path.write_bytes(data)
            print(f"    {problem}\n    input: {path} {data[:160]!r}")
        failed += len(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(*map(float, sys.argv[1:2]), *sys.argv[2:3]))
