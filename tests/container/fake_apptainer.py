"""A stand-in for `apptainer build` of a definition file: it does what the sections say, in trees with chroot.

The order is that of Apptainer 1.2 (its `internal/pkg/build`): files of earlier stages, files of the host (`cp -fLr`),
%post with `sh -ex` and without the caller's variables (proxies apart), %environment, %test. Bootstraps are
`docker-archive` only, and no section has a network. The file `registry.tar` is what every registry has. What it makes
is an archive, as the stand-in for `apptainer exec` in `tests/slurm/test_image_job.py` reads it.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.programs import executable

PROGRAM = r"""#!/usr/bin/python3
import glob, hashlib, json, os, re, shutil, subprocess, sys, tarfile, tempfile, time

TOP = "{top}"
if sys.argv[1] == "build" and sys.argv[-1].startswith("docker://"):
    sys.exit(shutil.copyfile(TOP + "/registry.tar", sys.argv[-2]) and 0)
if sys.argv[1] != "build" or not sys.argv[-1].endswith(".def"):
    os.execv(TOP + "/apptainer-run", [TOP + "/apptainer-run", *sys.argv[1:]])
if not os.environ.get("APPTAINER_TMPDIR"):
    sys.exit("it would build in /tmp")
words = [word for word in sys.argv[2:-2] if word not in ("--force", "--fakeroot")]
if words or (os.geteuid() != 0) != ("--fakeroot" in sys.argv):
    sys.exit("unknown options " + " ".join(sys.argv))
with open(TOP + "/log", "a") as log:
    name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    log.write(name + " build apptainer.def\n")
path, definition = os.path.abspath(sys.argv[-2]), sys.argv[-1]
while os.path.exists(TOP + "/hold"):
    time.sleep(0.05)


def parse(text):
    stages = []
    for line in text.splitlines():
        if line.startswith("Bootstrap:"):
            stages.append(dict(header={{}}, sections=[]))
        if not stages or (line.startswith("#") and not stages[-1]["sections"]):
            continue
        stage = stages[-1]
        if line.startswith("%"):
            stage["sections"].append((line.split(), []))
        elif stage["sections"]:
            stage["sections"][-1][1].append(line)
        elif ":" in line:
            key, _, value = line.partition(":")
            stage["header"][key.strip().lower()] = value.strip()
    return stages


def inside(root, words, env=None):
    code = 'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
    clean = ["/usr/bin/env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *(env or ())]
    return ["unshare", "--mount", "--net", "/bin/sh", "-c", code, root, *clean, *words]


def script(root, name, lines, flags):
    file = os.path.join(root, name)
    with open(file, "w") as out:
        out.write("\n".join(lines) + "\n")
    proxies = [key + "=" + os.environ[key] for key in ("http_proxy", "https_proxy") if key in os.environ]
    try:
        if subprocess.run(inside(root, ["/bin/sh", *flags, "/" + name], proxies)).returncode:
            sys.exit("FATAL:   While performing build: while running engine: exit status 1")
    finally:
        os.unlink(file)


def layers(path, top):
    # Each is unpacked once: its name is its digest.
    found = []
    with tarfile.open(path) as archive:
        (entry,) = json.load(archive.extractfile("manifest.json"))
        for name in entry["Layers"]:
            found.append(TOP + "/layer-" + os.path.basename(name))
            if not os.path.exists(found[-1]):
                half = tempfile.mkdtemp(dir=TOP)
                os.chmod(half, 0o755)
                archive.extract(name, top)
                subprocess.run(["tar", "-xf", os.path.join(top, name), "-C", half], check=True)
                os.unlink(os.path.join(top, name))
                os.rename(half, found[-1])
    return found


def make(stage, trees, top):
    header = stage["header"]
    if header["bootstrap"] != "docker-archive":
        sys.exit("FATAL:   no way to a registry: " + header["from"])
    root = trees[header["stage"]] = tempfile.mkdtemp(dir=top)
    upper, work = tempfile.mkdtemp(dir=top), tempfile.mkdtemp(dir=top)
    os.chmod(upper, 0o755)  # that of the tree
    over = "upperdir=%s,workdir=%s" % (upper, work)
    below = ":".join(reversed(layers(header["from"], top)))
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", "lowerdir=%s,%s" % (below, over), root], check=True)
    for other in (True, False):
        for words, lines in stage["sections"]:
            if words[0] == "%files" and (len(words) > 1) == other:
                for source, to in (line.split() for line in lines if line.strip()):
                    to = root + to
                    os.makedirs(os.path.dirname(to), exist_ok=True)
                    flags = "-a" if other else "-fLr"
                    above = trees[words[2]] if other else ""
                    subprocess.run(["cp", flags, above + source, to], check=True)
    found = dict((words[0], lines) for words, lines in stage["sections"])
    if "%post" in found:
        script(root, ".post.script", found["%post"], ["-ex"])
    return root, found


def build(stages, trees, top):
    for stage in stages:
        root, found = make(stage, trees, top)
    os.makedirs(root + "/.singularity.d", exist_ok=True)
    with open(root + "/.singularity.d/environment", "w") as out:
        out.write("\n".join(found.get("%environment", [])) + "\n")
    if "%test" in found:
        script(root, ".test.script", found["%test"], ["-e"])
    told = subprocess.check_output(inside(root, ["/bin/sh", "-c", ". /.singularity.d/environment; env -0"]))
    env = [each for each in told.decode().split("\0") if each and not each.startswith(("PWD=", "_=", "SHLVL="))]
    subprocess.run(["tar", "-cf", top + "/layer.tar", "-C", root, "."], check=True)
    with open(top + "/layer.tar", "rb") as layer:
        digest = hashlib.file_digest(layer, "sha256").hexdigest()
    config = dict(config=dict(Env=env), rootfs=dict(type="layers", diff_ids=["sha256:" + digest]))
    for name, data in (("config.json", config), ("manifest.json", [dict(Config="config.json", Layers=["layer.tar"])])):
        with open(os.path.join(top, name), "w") as out:
            json.dump(data, out)
    names = ["manifest.json", "config.json", "layer.tar"]
    subprocess.run(["tar", "-cf", path, "-C", top, *names], check=True)


with open(definition) as file:
    stages = parse(file.read())
with tempfile.TemporaryDirectory(dir=os.environ["APPTAINER_TMPDIR"]) as top:
    trees = {{}}
    try:
        build(stages, trees, top)
    finally:
        for root in trees.values():
            subprocess.run(["umount", "-l", root])
"""


def write_programs(folder: Path, run: str) -> Path:
    """`apptainer` in `folder`; `run` is the text of the program for everything else. While `hold` is there it waits."""
    folder.mkdir(exist_ok=True)
    for name, text in (("apptainer", PROGRAM), ("apptainer-run", run)):
        executable(folder / name, text.format(top=folder))
    return folder
