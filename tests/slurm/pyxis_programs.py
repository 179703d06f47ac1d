"""enroot and a Slurm with pyxis for tests: the real ones where this machine has them, else a program in their place.

The program takes the layers from the registry that it is told, compares their digests, makes a real .sqsh file of them
and runs commands in it with chroot; what it does not know of srun it leaves to the real one. So the node program in
the image really runs, on nodes of a real Slurm. What enroot and pyxis make of their words only the real ones show.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.slurm.cluster import pyxis_plugin
from tests.support.programs import executable

_PROGRAM = r"""#!/usr/bin/python3
import fcntl, hashlib, io, json, os, shlex, shutil, subprocess, sys, tarfile, urllib.request

TOP, SRUN = "{top}", "{srun}"
NAME, WORDS = os.path.basename(sys.argv[0]), sys.argv[1:]
with open(TOP + "/log", "a") as log:
    log.write(json.dumps([os.environ.get("SLURMD_NODENAME", "login"), NAME, *WORDS]) + "\n")


def get(url, digest=None):
    with urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(url) as answer:
        data = answer.read()
    assert digest is None or "sha256:" + hashlib.sha256(data).hexdigest() == digest, url
    return data


def make(path, uri):
    address, _, name = uri[len("docker://"):].partition("#")
    name, _, tag = name.partition(":")
    base = "http://%s/v2/%s" % (address, name)
    manifest = json.loads(get(base + "/manifests/" + tag))
    config = json.loads(get(base + "/blobs/" + manifest["config"]["digest"], manifest["config"]["digest"]))["config"]
    root = path + ".root"
    for layer in manifest["layers"]:
        data = io.BytesIO(get(base + "/blobs/" + layer["digest"], layer["digest"]))
        with tarfile.open(fileobj=data) as members:
            for member in members:
                if not os.path.basename(member.name).startswith(".wh."):
                    members.extract(member, root)
    with open(root + "/etc/environment", "w") as file:
        file.writelines(line + "\n" for line in config.get("Env") or [])
    with open(root + "/etc/rc", "w") as file:
        file.write("exec %s \"$@\"\n" % shlex.join(config.get("Entrypoint") or []))
    plain = ["-noI", "-noD", "-noF", "-noX", "-no-xattrs"]
    subprocess.run(["mksquashfs", root, path, "-quiet", "-no-progress", *plain], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(root)


def inside(file, words, env):
    stat = os.stat(file)  # a write gives it another time
    root = TOP + "/root-%d-%d-%d" % (stat.st_dev, stat.st_ino, stat.st_mtime_ns)
    with open(root + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(root):
            unpack = ["unsquashfs", "-no-progress", "-quiet", "-dest", root + ".half", file]
            subprocess.run(unpack, check=True, stdout=subprocess.DEVNULL)
            os.rename(root + ".half", root)
    with open(root + "/etc/environment") as lines:
        env.update(line.rstrip("\n").split("=", 1) for line in lines)
    code = 'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
    os.execvpe("unshare", ["unshare", "--mount", "/bin/sh", "-c", code, root, *words], env)


def options(words):
    # Those that envbuild writes: a value is in the same word, but for two.
    taken, words = [], list(words)
    while words[0].startswith("--"):
        taken.append(words.pop(0))
        if taken[-1] in ("--container-image", "--nodelist", "--env", "--mount", "--output"):
            taken[-1] += "=" + words.pop(0)
    return taken, words


if NAME == "srun":
    if WORDS == ["--help"]:
        lines = subprocess.run([SRUN, "--help"], stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()
        without = os.path.exists(TOP + "/no-pyxis")
        print("\n".join(line for line in lines if "container" not in line and "pyxis" not in line))
        print("" if without else "  --container-image=PATH [pyxis] the image\n  --container-env=NAME [pyxis] variables")
        sys.exit()
    taken, words = options(WORDS)
    image = [word.partition("=")[2] for word in taken if word.startswith("--container-image=")]
    if image:
        taken = [word for word in taken if "container-" not in word]
        words = [TOP + "/enroot", "in-step", image[0], *words]
    os.execv(SRUN, [SRUN, *taken, *words])
elif WORDS == ["version"]:
    print("4.0.0")
elif WORDS[0] == "import":
    taken, (uri,) = options(WORDS[1:])
    make(taken[0].partition("=")[2], uri)
elif WORDS[0] == "start":
    taken, (file, *words) = options(WORDS[1:])
    given = dict(word[len("--env="):].split("=", 1) for word in taken if word.startswith("--env="))
    inside(file, ["/bin/sh", "/etc/rc", *words], given)
elif WORDS[0] == "in-step":
    inside(WORDS[1], WORDS[2:], dict(os.environ))
"""


def why_no_real() -> str:
    """Why the real enroot and pyxis cannot be used here; empty where they can."""
    missing = [name for name in ("enroot",) if shutil.which(name) is None]
    missing += ["the plugin of pyxis"] if pyxis_plugin() is None else []
    return f"not there: {', '.join(missing)} (tests/slurm/cluster.py says where it is looked for)" if missing else ""


def stand_ins(top: Path) -> None:
    """Write `srun` and `enroot` into a folder; `no-pyxis` beside them takes pyxis away, `log` has their words."""
    real = shutil.which("srun", path=os.pathsep.join((os.environ["PATH"], "/usr/bin")))
    for name in ("srun", "enroot"):
        executable(top / name, _PROGRAM.format(top=top, srun=real))
