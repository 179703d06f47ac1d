"""All pictures of a run, in the order of the page."""

from __future__ import annotations

from envbuild.model.evidence import Evidence
from envbuild.report.pictures import disk, gpus, measured, peers, sizes, timeline, training
from envbuild.report.pictures.draw import Picture


def pictures(evidence: Evidence) -> tuple[Picture, ...]:
    """Those for which the evidence has the data."""
    found = [timeline.picture(evidence), measured.picture(evidence), *gpus.pictures(evidence)]
    found += [*sizes.pictures(evidence), peers.picture(evidence)]
    found += [*training.pictures(evidence), disk.picture(evidence)]
    return tuple(each for each in found if each is not None)
