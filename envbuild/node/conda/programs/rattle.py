"""Reads conda archives, or installs them, with py-rattler. Runs on Python 3.10 or newer.

Reads one JSON object from stdin: `rattler` (folder that holds the package), `action`, and what the action takes:

    read      `archives` (paths), `out`: writes {path: {"index", "paths", "link", "members" or "error"}} there;
              a member is [name, kind, target], kind one of file, folder, link, hardlink, other
    install   `records` ([{"archive", "file", "index", "sha256", "size"}]), `prefix`, and `cache`, a folder of this call
              alone, which files are linked to until it goes; no script runs

Ends with 0, or with 1 and a reason as the last line of stderr.
"""

import asyncio
import json
import os
import pathlib
import sys
from typing import Any, Dict

# The archives are files of this node, hashed before: nothing is fetched, but rattler makes a client for it anyway, and
# cannot where the node has no certificates, unless it is told that they do not matter.
_CONFIG = "allow-symbolic-links = true\ntls-no-verify = true\n"
_INFO = ("info/index.json", "info/paths.json", "info/link.json", "info/files")


def _kind(entry: Any) -> str:
    if entry.is_file:
        return "file"
    if entry.is_symlink:
        return "link"
    if entry.is_hardlink:
        return "hardlink"
    return "folder" if entry.name.endswith("/") else "other"


async def _read_one(path: str) -> Dict[str, Any]:
    from rattler.package_streaming import PackageArchive

    members = []  # type: list[list[str]]
    texts = {}
    try:
        archive = await PackageArchive.from_path(path)
        for section in ("info", "pkg"):
            async for entry in archive.stream(section):
                members.append([entry.name, _kind(entry), entry.link_target or ""])
                if section == "info" and entry.name in _INFO and entry.is_file:
                    texts[entry.name] = (await entry.read()).decode("utf-8")
        parsed = {name[5:-5]: json.loads(text) for name, text in texts.items() if name.endswith(".json")}
    except Exception as error:  # noqa: BLE001 - rattler has its own kinds, and all of them are about this archive
        return {"error": str(error), "members": members}
    return dict(parsed, members=members, files=texts.get("info/files", ""))


async def _read(asked: Dict[str, Any]) -> None:
    reads = {path: _read_one(path) for path in asked["archives"]}
    answers = dict(zip(reads, await asyncio.gather(*reads.values())))  # noqa: B905 - `strict` is younger than 3.6
    with open(asked["out"], "w", encoding="utf-8") as stream:
        json.dump(answers, stream)


async def _install(asked: Dict[str, Any]) -> None:
    import rattler
    from rattler.config import Config

    index = pathlib.Path(asked["cache"], "index.json")
    records = []
    for row in asked["records"]:
        index.write_text(json.dumps(row["index"]), "utf-8")
        record = rattler.PackageRecord.from_index_json(index, row["size"], row["sha256"])
        address = pathlib.Path(row["archive"]).as_uri()
        records.append(rattler.RepoDataRecord(record, row["file"], address, "file:///"))
    await rattler.install(
        records=records,
        target_prefix=asked["prefix"],
        cache_dir=asked["cache"],
        installed_packages=[],
        execute_link_scripts=False,
        show_progress=False,
        config=Config.from_toml(_CONFIG),
    )


def main() -> int:
    """Do what stdin asks; returns the exit code."""
    asked = json.load(sys.stdin)
    sys.path.insert(0, asked["rattler"])
    try:
        asyncio.run({"read": _read, "install": _install}[asked["action"]](asked))
    except Exception as error:  # noqa: BLE001 - said in one line; the node program gives it a code
        sys.stderr.write("%s: %s\n" % (type(error).__name__, error))
        sys.stderr.flush()
        return 1
    return 0


if __name__ == "__main__":
    # Threads of rattler may still wait for the interpreter, and crash one that ends as usual.
    os._exit(main())
