"""The life of a run, in one place: its directory, and a journal that says how it began and how it ended."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.node import identity
from envbuild.provision.run.context import Run, Settings
from envbuild.provision.run.findings import Prepared
from envbuild.provision.run.journal import EventKind, Watch
from envbuild.provision.run.run_dir import RunDir


@contextmanager
def one_run(verb: str, settings: Settings, watch: Watch, **what: Any) -> Iterator[Run]:
    """A run in a directory of its own; `what` it is about is kept with its beginning.

    `watch` sees every event. It ends with the `exit` that the block gives it; what the block raises is written down as
    well, and goes on.
    """
    run = RunDir.create(settings.runs_root)
    with run.open_journal(watch) as journal:
        journal.append(EventKind.RUN_STARTED, **identity.here(), verb=verb, command=list(settings.command), **what)
        made = Run(settings, run, journal)
        try:
            yield made
        except BaseException as error:
            # On a full disk the reason of the failure is worth more than the failure to write it down.
            with suppress(EnvbuildError):
                if isinstance(error, EnvbuildError):
                    kind = EventKind.INTERRUPTED if error.exit_code == ExitCode.INTERRUPTED else EventKind.FAILED
                    journal.append(kind, error=error.as_dict())
                elif isinstance(error, KeyboardInterrupt):
                    journal.append(EventKind.INTERRUPTED)
                else:
                    told = run.unexpected(f"{type(error).__name__}: {error}", error)
                    journal.append(EventKind.FAILED, error=told.as_dict())
            raise
        finally:
            shutil.rmtree(run.staging, ignore_errors=True)
        journal.append(EventKind.RUN_FINISHED, exit=made.exit)


def about(prepared: Prepared) -> dict[str, str]:
    """What the run of a stack on a target is about."""
    return {"stack": prepared.stack.name, "profile": prepared.profile, "target": prepared.target.name}
