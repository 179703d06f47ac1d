"""Sign a report: its evidence, and with that everything whose digest the evidence has."""

from __future__ import annotations

from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.report import page, ssh_signature
from envbuild.report.recheck.opened import Opened
from envbuild.report.recheck.verify import verify_report
from envbuild.report.render import report_files, write_whole
from envbuild.report.statement import pae, seal, statement


def require_holding(path: Path, *, remade: tuple[str, ...] = ("page",)) -> Opened:
    """The report, where it holds but for what the caller makes anew: findings about the topics `remade`.

    Raises EnvbuildError `report-not-holding` (exit 5), and what `verify_report` raises.
    """
    report, findings = verify_report(path)
    problems = [each for each in findings if each.kind == "problem" and each.topic not in remade]
    if problems:
        raise EnvbuildError(
            "report-not-holding",
            f"the report at {path} does not hold",
            why="; ".join(f"{each.code}: {each.says}" for each in problems),
            hint="`envbuild report verify` says all of it",
        )
    return report


def sign_report(folder: Path, key: Path) -> Path:
    """Write the signature into the folder of a report, and the page anew, which carries it; the signature's path.

    An earlier signature is replaced. Raises EnvbuildError `report-not-signed`, and what `require_holding` raises.
    """
    report = require_holding(folder, remade=("page", "signature"))
    # Evidence of an early envbuild may hold signs that could end its element in the page.
    text = page.embeddable(report.text)
    payload = statement(text, report.evidence)
    signature = ssh_signature.sign(pae(payload), key)
    signed = ssh_signature.check(pae(payload), signature)
    if signed is None:
        raise EnvbuildError("report-not-signed", f"{key} made a signature that is not right", why="see `ssh-keygen -Y`")
    envelope = seal(payload, signed.key, signature)
    write_whole(folder, report_files(report.evidence, text, envelope))
    return folder / page.SIGNATURE
