"""`provision` with `engine: container` through jobs: one image in the shared folder, tested on every node of a job.

The prefix is shared, so launcher and record are there once; the record names the nodes that have tested the image. What
nodes said of themselves is kept for a week, as for environments: a run with nothing to do submits no job.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.model.facts import NodeFacts
from envbuild.model.plan import Plan
from envbuild.provision.contact.first_contact import ContactResult, node_request
from envbuild.provision.images.obtain import Obtained, obtain
from envbuild.provision.images.plan import FILES, NodeImage
from envbuild.provision.images.provision import (
    InImages,
    files_for,
    look_request,
    no_room,
    told_of,
)
from envbuild.provision.jobs.answers import ask_in_job
from envbuild.provision.jobs.asked import IMAGE_LIMIT, Asked, Requests
from envbuild.provision.jobs.site import PROBE_LIMIT, JobSite
from envbuild.provision.jobs.survey import (
    ask_login,
    facts_file,
    keep_answers,
    login_work,
    on_login,
    read_answers,
)
from envbuild.provision.run.context import Outcome, Work
from envbuild.provision.run.evidence import of_another_kind


class InJobs(InImages):
    """The login host is asked, then jobs: the image lies in the folder that nodes share, and all of them test it."""

    def ask_nodes(self, work: Work) -> None:
        """Ask the login host, and the nodes through one short job where nothing is known of them; decide.

        Raises EnvbuildError as `contact`, `JobSite.of` and `ask_in_job` do.
        """
        site = JobSite.of(work.prepared.target)
        work.survey.pool = site.pool
        with work.phase("probe", f"contacting {site.login}"):
            self._ask_login(work, site)
            known = {} if work.settings.repair else kept_answers(_kept_file(work, site))
            looks = {node: ContactResult(node, {}, {"ok": True, "result": answer}, 0) for node, answer in known.items()}
            if not known:
                answers = self._ask(work, site, "probe", {"look": look_request(work)}, PROBE_LIMIT)
                looks = {node: answer["look"] for node, answer in answers.items()}
            self.take_in(work, looks)
        self.decide(work)
        one_kind(self.nodes, work.survey.errors)
        if self.why:
            self.why = dict.fromkeys(self.nodes, "the job tests on every node") | self.why

    def seen(self, node: str, look: dict[str, Any]) -> dict[str, Any]:
        """What a node says, with what the shared folder says now."""
        return {**look, "containers": shared_record(node, look["containers"], self.login["containers"])}

    def bring(self, work: Work, plan: Plan) -> tuple[Plan, Outcome]:
        """Get the image into the shared folder, test it through one job, and accept it; the plan is of its nodes."""
        name, first = next(iter(self.nodes.items()))
        site, prefix = JobSite.of(work.prepared.target), self.login["facts"]["prefix"]["path"]
        record = self.login["containers"].get("record") or {}
        there = bool(record.get("file")) and bool(self.login["containers"].get("present")) and not work.settings.repair
        made = there and record["runtime"] == first.chosen.runtime
        with work.phase("image", "getting the image"):
            got = obtain(
                self.wanted, work.prepared, work.run.path, say=work.journal.stage,
                file=lambda image: not (made and record["id"] == image),
            )  # fmt: skip
        archive = None if got.archive is None else posixpath.join(prefix, "images", got.archive.name)
        file = record["file"] if made and record["id"] == got.id else None
        try:
            with work.phase("stage", f"staging on {site.login}"):
                args = self.args_of(work, name, got, archive)
                file = file or self._stage(work, site, got, args, prefix)
            with work.phase("provision", "testing through a job"):
                return self._test(work, site, {**args, "file": file}, prefix)
        except KeyboardInterrupt:
            if not work.settings.cancel_job:
                archive = None  # a job that goes on reads it
            raise
        finally:
            if got.archive is not None:
                got.archive.unlink(missing_ok=True)
            if archive is not None:
                site.runner.run(["rm", "-f", "--", archive])

    def ask_all(self, work: Work, verb: str, request: dict[str, Any]) -> dict[str, ContactResult]:
        """One request to every node of a job.

        Raises EnvbuildError as `contact` and `ask_in_job` do.
        """
        with work.phase(verb, f"{verb} in the images through a job"):
            site = JobSite.of(work.prepared.target)
            self._ask_login(work, site)
            answers = self._ask(work, site, verb, {"ask": request}, site.limit(IMAGE_LIMIT))
            return {node: answer["ask"] for node, answer in answers.items()}

    def _ask_login(self, work: Work, site: JobSite) -> None:
        look = {"action": "look", "stack": work.prepared.stack.name}
        self.login = told_of(ask_login(site.target, "container", look, work.run))

    def _ask(
        self, work: Work, site: JobSite, verb: str, requests: Requests, limit: int, once: Requests | None = None
    ) -> dict[str, dict[str, ContactResult]]:
        folder = posixpath.join(self.login["facts"]["prefix"]["path"], "jobs", work.run.id)
        return ask_in_job(work, site, Asked(f"envbuild-{verb}", folder, requests, once=once or {}), limit)

    def _stage(
        self, work: Work, site: JobSite, got: Obtained, args: dict[str, Any], prefix: str
    ) -> dict[str, Any] | None:
        """Carry the archive to the shared folder, and make the file of the runtime where the login host has that.

        The file; without its sha256 where a node has to make it, None where each node loads the archive.
        Raises EnvbuildError as `take` and `run_hosts` do, `disk-full` (exit 75).
        """
        runtime, login = args["runtime"], self.login
        facts = NodeFacts.from_plain(login["facts"])
        if got.archive is not None and (error := no_room(site.login, facts, got.archive.stat().st_size)):
            raise error
        # What pyxis runs is a file of enroot, so a login host needs that alone.
        there = login["containers"]["runtimes"].get("enroot" if runtime == "pyxis" else runtime) or {}
        makes = runtime in FILES and bool(there.get("works"))
        if makes or got.archive is not None:
            store = posixpath.join(prefix, "images")
            files = files_for(login_work(work, site), facts, login["python"], got.archive, store)
            take = {**args, "action": "take", "program": there.get("path"), "maker": there.get("path")}
            request = {"container": node_request("container", prefix, take, work.run.id)} if makes else {}
            answers = on_login(work, site, files, request, "image.yml")
            if makes:
                return dict(answers["container"]["result"]["file"])
        if runtime not in FILES:
            return None
        return {"path": posixpath.join(prefix, "images", f"{args['stack']}-{got.id[:12]}.{FILES[runtime]}")}

    def _test(self, work: Work, site: JobSite, args: dict[str, Any], prefix: str) -> tuple[Plan, Outcome]:
        """One job: the file, where only a node can make it, then every node looks and tests inside; the outcome.

        Raises EnvbuildError of the node that makes the file, `node-silent` (exit 3).
        """

        def request(action: str) -> dict[str, Any]:
            return node_request("container", prefix, {**args, "action": action}, work.run.id)

        once = {"take": request("take")} if args["file"] and "sha256" not in args["file"] else {}
        requests = {"look": look_request(work), "container": request("try")}
        answers = self._ask(work, site, "provision", requests, site.limit(IMAGE_LIMIT), once)
        if once:
            made = next((answer["take"] for answer in answers.values() if "take" in answer), None)
            if made is None:
                raise EnvbuildError(
                    "node-silent", f"the first node of the job did not report whether it built {args['file']['path']}",
                    hint="see the log of the job"
                )  # fmt: skip
            args = {**args, "file": dict(made.result()["file"])}
        first = next(iter(self.nodes.values()))
        self.take_in(work, {node: answer["look"] for node, answer in answers.items()})
        self.nodes = {}
        self.decide(work)
        one_kind(self.nodes, work.survey.errors, first)
        self.why = dict.fromkeys(self.nodes, "the job tests on every node")
        outcome = Outcome()
        for node in self.nodes:
            self.used[node] = args
            _answered(node, answers[node]["container"], args, prefix, outcome)
        self._accept(work, site, outcome, args)
        good = not outcome.errors and not work.survey.errors
        keep_answers(_kept_file(work, site), {node: self.answers[node] for node in self.nodes} if good else {})
        return self.plan(work), outcome

    def _accept(self, work: Work, site: JobSite, outcome: Outcome, args: Mapping[str, Any]) -> None:
        """Launcher and record in the shared folder. While another image is in use there, every node has to be good."""
        good = [node for node, response in outcome.responses.items() if response["container"]["result"].get("ok", True)]
        record = self.login["containers"].get("record")
        same = bool(record) and record["id"] == args["id"]
        if not good:
            return
        if record and not same and (len(good) < len(self.nodes) or work.survey.errors):
            work.notes.append(
                f"the image in use stays {record['id'][:12]}: not every node of the job could run the new one"
            )
            return
        tested = outcome.responses[good[0]]["container"]["result"].get("verify") or {}
        kept = set(record.get("nodes") or ()) if record and same and not work.settings.repair else set()
        bad = set(outcome.errors) | (set(self.nodes) - set(good))
        verified = {key: tested.get(key) for key in ("root", "base_packages", "sources")}
        nodes = sorted((kept | set(good)) - bad)
        accepted = {**args, "action": "accept", "verify": verified, "nodes": nodes}
        ask_login(site.target, "container", accepted, work.run).result()


def _kept_file(work: Work, site: JobSite) -> Path:
    """Where it is kept what nodes said of containers; beside their facts."""
    return facts_file(work.prepared.target, site.login).with_suffix(".images.json")


def kept_answers(path: Path) -> dict[str, dict[str, Any]]:
    """By node what it said of containers in the last week; empty where this envbuild cannot read it."""
    answers = read_answers(path)
    parts = [answer.get("containers") for answer in answers.values()]
    readable = all(isinstance(part, dict) and isinstance(part.get("runtimes"), dict) for part in parts)
    return answers if readable else {}


def shared_record(node: str, own: Mapping[str, Any], login: Mapping[str, Any]) -> dict[str, Any]:
    """What a node says of containers, with the record of the shared folder where this node has tested that image.

    A file is seen from the login host; what podman or docker have on a node is known from its last job.
    """
    record = login.get("record")
    if not record or node not in (record.get("nodes") or ()):
        return {**own, "record": None, "present": False, "launcher": False}
    present = bool(login.get("present")) if record.get("file") else True
    return {**own, "record": record, "present": present, "launcher": bool(login.get("launcher"))}


def one_kind(nodes: dict[str, NodeImage], errors: dict[str, EnvbuildError], first: NodeImage | None = None) -> None:
    """Take out the nodes that would run the image otherwise than the first: there is one launcher for all.

    `first`: the node that the job was made for, where it is known.
    """
    first = first or next(iter(nodes.values()), None)
    for node, runtime in list(nodes.items()):
        if first is not None and (runtime.command, runtime.cuda) != (first.command, first.cuda):
            del nodes[node]
            why = f"it would run the image with `{' '.join(runtime.command)}`, the first with "
            why += f"`{' '.join(first.command)}`"
            errors[node] = of_another_kind(node, "the first node of the job", why)


def _answered(node: str, answer: ContactResult, args: Mapping[str, Any], prefix: str, outcome: Outcome) -> None:
    """One node's answer into the outcome; a file that is not the one that was made is an error of that node."""
    if answer.failure is not None:
        outcome.errors[node] = answer.failure
        return
    result = answer.result()
    seen, made = (result.get("file") or {}).get("sha256"), (args["file"] or {}).get("sha256")
    if seen != made:
        outcome.errors[node] = EnvbuildError(
            "image-damaged",
            f"{node}: {args['file']['path']} is not the file that was made",
            why=f"its sha256 is {str(seen)[:12]} there, the built file has {str(made)[:12]}",
            hint="`envbuild provision --repair` builds it again",
            details={"node": node},
        )
        return
    launcher = posixpath.join(prefix, "bin", str(args["stack"]))
    outcome.responses[node] = {"container": {**(answer.response or {}), "result": {**result, "launcher": launcher}}}
