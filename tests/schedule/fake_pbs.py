"""A small PBS for tests: `qsub`, `qstat`, `qdel`, `pbsnodes` and `mpiexec` that keep jobs in files and run them here.

What they print has the shape of PBS Professional's programs. It stands in for a real PBS, which is not available here.
Its nodes are this machine under other host names (a UTS namespace each), where the tests may make such.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.programs import executable

NODES = 4
PROGRAM = r"""#!{python}
import json, os, re, signal, subprocess, sys, time
top = {top!r}
name = os.path.basename(sys.argv[0])
args = sys.argv[1:]

def told(what):
    return os.path.exists(os.path.join(top, what))

def load(number):
    try:
        with open(os.path.join(top, number + ".json")) as file:
            return json.load(file)
    except OSError:
        sys.stderr.write("%s: Unknown Job Id %s.server-01\n" % (name, number))
        sys.exit(153)

def save(number, **changes):
    path = os.path.join(top, number + ".json")
    job = load(number) if os.path.exists(path) else {{}}
    job.update(changes)
    with open(path + ".new", "w") as file:
        json.dump(job, file)
    os.rename(path + ".new", path)

def block(head, attributes):
    print(head)
    for key, value in attributes:
        line = "    %s = %s" % (key, value)
        while len(line) > 78 and "\n" not in line:
            print(line[:78])
            line = "\t" + line[78:]
        print(line)
    print()

def run(number, text, count, variables):
    hosts = "+".join("x300%d/0*64" % i for i in range(1, count + 1))
    save(number, job_state="R", run_count=1, exec_host=hosts, comment="Job run at Sat Nov 21 at 12:00 on (x3001)")
    spooled = os.path.join(top, number + ".SC")
    with open(spooled, "w") as file:
        file.write(text)
    job = subprocess.Popen([os.path.join({bin!r}, "on-node"), "x3001", "bash", spooled], env=variables,
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           start_new_session=True)
    save(number, session_id=job.pid)
    limit = re.search(r"^#PBS -l walltime=([0-9]+):([0-9]+):([0-9]+)$", text, re.MULTILINE)
    seconds = sum(int(part) * unit for part, unit in zip(limit.groups(), (3600, 60, 1))) if limit else None
    comment = "Job run at Sat Nov 21 at 12:00 on (x3001:ncpus=64) and finished"
    try:
        code = job.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGTERM)
        code, comment = job.wait(), "job killed: walltime %d exceeded limit %d" % (seconds + 1, seconds)
        code = -29
    if load(number).get("deleted"):
        code, comment = 256 + 15, "Job run at Sat Nov 21 at 12:00 on (x3001) and failed: deleted at request of me@login"
    save(number, job_state="F", Exit_status=code if code >= 0 or code == -29 else 256 - code, comment=comment)

if told("down"):
    sys.stderr.write("Connection refused\n%s: cannot connect to server server-01 (errno=111)\n" % name)
    sys.exit(111)
if name == "qsub":
    text = open(args[-1]).read() if args else sys.stdin.read()
    directives = re.findall(r"^#PBS (.*)$", text, re.MULTILINE)
    if "-V" in directives or "-V" in args:
        sys.exit("qsub -V is never used")
    if "-q nope" in directives:
        sys.stderr.write("qsub: Unknown queue\n")
        sys.exit(170)
    number = str(1000 + len(os.listdir(top)))
    nodes = os.path.join(top, number + ".nodes")
    count = int(re.search(r"select=([0-9]+)", text).group(1))
    with open(nodes, "w") as file:
        file.writelines("x300%d.cluster.example.org\n" % i for i in range(1, count + 1))
    # Nothing of the shell that submits but what PBS itself takes along.
    variables = {{key: os.environ[key] for key in ("HOME", "LANG", "PATH") if key in os.environ}}
    variables.update(PBS_JOBID=number + ".server-01", PBS_NODEFILE=nodes, PBS_O_WORKDIR=os.getcwd())
    save(number, job_state="Q", run_count=0, comment="Not Running: Not enough free nodes available",
         Variable_List="PBS_O_HOME=/home/me,PBS_O_LANG=C,FN=() {{ echo \"a\\b\"; }},\n    job_state = F")
    print(number + ".server-01")
    sys.stdout.flush()
    if told("hold") or count > {nodes}:
        sys.exit(0)
    if told("background"):
        # Whoever started qsub may end its process group as soon as it has ended.
        ready, own_session = os.pipe()
        if os.fork():
            os.close(own_session)
            os.read(ready, 1)
            os._exit(0)
        os.setsid()
        os.close(own_session)
        for descriptor in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    run(number, text, count, variables)
elif name == "qstat" and "-Q" in args:
    for queue in ("debug", "prod"):
        block("Queue: " + queue, [("queue_type", "Execution"), ("enabled", str(not told("closed")))])
elif name == "qstat":
    number = args[-1]
    job = load(number)
    keys = sorted(job, key=lambda key: key == "Variable_List")
    block("Job Id: %s.server-01" % number, [(key, job[key]) for key in keys])
elif name == "qdel":
    number = args[-1]
    job = load(number)
    if job["job_state"] == "F":
        sys.stderr.write("qdel: Job has finished %s.server-01\n" % number)
        sys.exit(35)
    if job["job_state"] == "R":
        save(number, deleted=True)
        os.killpg(job["session_id"], signal.SIGTERM)
    else:
        save(number, job_state="F", comment="Job deleted at request of me@login")
elif name == "pbsnodes":
    for node in [arg for arg in args if not arg.startswith("-")] or ["x300%d" % i for i in range(1, {nodes} + 1)]:
        state = [("state", "offline"), ("comment", "health check")] if told("offline-" + node) else [("state", "free")]
        offers = {{"host": node, "mem": "527672492kb", "ncpus": 64, "ngpus": 4, "system": "polaris"}}
        block(node, [*state, *(("resources_available." + key, value) for key, value in offers.items())])
"""
# PALS's mpiexec as far as a job of ours uses it: N processes at once, each on its host and told its rank.
MPIEXEC = """#!/bin/bash
while [ "$1" != bash ]; do
  [ "$1" = -n ] && count=$2
  [ "$1" = --hostfile ] && hosts=$2
  shift
done
for ((rank = 0; rank < count; rank++)); do
  read -r host
  PALS_RANKID=$rank on-node "$host" "$@" &
  pids+=($!)
done < "$hosts"
worst=0
for pid in "${pids[@]}"; do wait "$pid" || worst=$?; done
exit $worst
"""
# A program under another host name, where one may be taken.
ON_NODE = """#!/bin/sh
host=$1
shift
unshare --uts true 2>/dev/null || exec "$@"
exec unshare --uts sh -c 'hostname "$0" && exec "$@"' "$host" "$@"
"""


def has_hosts() -> bool:
    """Whether its nodes have names of their own here."""
    return subprocess.run(["unshare", "--uts", "hostname", "x"], capture_output=True, check=False).returncode == 0


class FakePbs:
    """Where the programs are (`bin`) and what they keep (`top`); `say("hold")` and the like change what they do."""

    def __init__(self, folder: Path, python: str) -> None:
        """Write the programs."""
        self.top, self.bin = folder / "server", folder / "bin"
        self.top.mkdir()
        self.bin.mkdir()
        for name in ("qsub", "qstat", "qdel", "pbsnodes"):
            self._write(name, PROGRAM.format(python=python, top=str(self.top), bin=str(self.bin), nodes=NODES))
        self._write("mpiexec", MPIEXEC)
        self._write("on-node", ON_NODE)

    def _write(self, name: str, text: str) -> None:
        executable(self.bin / name, text)

    def say(self, what: str) -> None:
        """`hold`: jobs stay in the queue; `down`: the server is away.

        `closed`: queues take no jobs; `background`: qsub does not wait for the job; `offline-NODE`: that node takes
        none.
        """
        (self.top / what).touch()

    def stop(self, what: str) -> None:
        """Take it back."""
        (self.top / what).unlink()

    def forget(self, number: str) -> None:
        """The server's history is over."""
        (self.top / f"{number}.json").unlink()
