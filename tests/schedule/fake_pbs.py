"""A small PBS for tests: `qsub`, `qstat` and `qdel` that keep jobs in files and run them at once on this machine.

What they print has the shape of PBS Professional's programs; `qstat -F json` breaks as openpbs issues 2541 (quotes of
variables) and 1255 (backslashes) say, when `broken` is there. It stands in for a real PBS, which is not to be had here.
"""

from __future__ import annotations

from pathlib import Path

PROGRAM = r"""#!{python}
import json, os, re, subprocess, sys
top = {top!r}
name = os.path.basename(sys.argv[0])
args = sys.argv[1:]

def load(number):
    try:
        with open(os.path.join(top, number + ".json")) as file:
            return json.load(file)
    except OSError:
        sys.stderr.write("%s: Unknown Job Id %s.server-01\n" % (name, number))
        sys.exit(153)

def save(number, job):
    with open(os.path.join(top, number + ".json"), "w") as file:
        json.dump(job, file)

if os.path.exists(os.path.join(top, "down")):
    sys.stderr.write("Connection refused\n%s: cannot connect to server server-01 (errno=111)\n" % name)
    sys.exit(111)
if name == "qsub":
    text = sys.stdin.read()
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
        file.writelines("x300%d\n" % i for i in range(1, count + 1))
    variables = dict(os.environ, PBS_JOBID=number + ".server-01", PBS_NODEFILE=nodes, PATH=os.environ["PATH"])
    job = dict(job_state="Q", run_count=0, comment="Not Running: Not enough free nodes available",
               Variable_List="PBS_O_HOME=/home/me,PBS_O_LANG=C,FN=() {{ echo \"a\\b\"; }},\n    job_state = F")
    if not os.path.exists(os.path.join(top, "hold")):
        code = subprocess.call(["bash", "-c", text], env=variables, stdin=subprocess.DEVNULL)
        hosts = "+".join("x300%d/0*64" % i for i in range(1, count + 1))
        job.update(job_state="F", run_count=1, Exit_status=code, exec_host=hosts,
                   comment="Job run at Sat Nov 21 at 12:00 on (x3001:ncpus=64) and finished")
    save(number, job)
    print(number + ".server-01")
elif name == "qstat":
    number = args[-1]
    job = load(number)
    if "json" in args:
        text = json.dumps(dict(timestamp=1, pbs_version="2022.1.1", Jobs={{number + ".server-01": job}}), indent=4)
        if os.path.exists(os.path.join(top, "broken")):
            text = text.replace('\\"', '"').replace("\\\\", "\\")
        print(text)
    else:
        print("Job Id: %s.server-01" % number)
        for key in sorted(job, key=lambda key: key == "Variable_List"):
            line = "    %s = %s" % (key, job[key])
            while len(line) > 78 and "\n" not in line:
                print(line[:78])
                line = "\t" + line[78:]
            print(line)
        print()
elif name == "qdel":
    job = load(args[-1])
    if job["job_state"] == "F":
        sys.stderr.write("qdel: Job has finished %s.server-01\n" % args[-1])
        sys.exit(35)
    job.update(job_state="F", comment="Job deleted at request of me@login")
    save(args[-1], job)
"""
# PALS's mpiexec as far as a job of ours uses it: N processes, each told its rank.
MPIEXEC = """#!/bin/bash
while [ "$1" != bash ]; do [ "$1" = -n ] && count=$2; shift; done
worst=0
for ((rank = 0; rank < count; rank++)); do PALS_RANKID=$rank "$@" || worst=$?; done
exit $worst
"""


class FakePbs:
    """Where the programs are (`bin`) and what they keep (`top`); `say("broken")` and the like change what they do."""

    def __init__(self, folder: Path, python: str) -> None:
        """Write the programs."""
        self.top, self.bin = folder / "server", folder / "bin"
        self.top.mkdir()
        self.bin.mkdir()
        for name in ("qsub", "qstat", "qdel"):
            self._write(name, PROGRAM.format(python=python, top=str(self.top)))
        self._write("mpiexec", MPIEXEC)

    def _write(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def say(self, what: str) -> None:
        """`broken`: JSON that is none; `hold`: jobs stay in the queue; `down`: the server is away."""
        (self.top / what).touch()

    def stop(self, what: str) -> None:
        """Take it back."""
        (self.top / what).unlink()

    def forget(self, number: str) -> None:
        """The server's history is over."""
        (self.top / f"{number}.json").unlink()
