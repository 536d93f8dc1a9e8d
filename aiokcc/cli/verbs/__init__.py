"""The verbs of the command line, one module for each, and the table of them in the order of the help."""

from __future__ import annotations

from typing import Final

from aiokcc.cli.verb import Verb
from aiokcc.cli.verbs import hold, isolate, local, members, offsets, period, rejoin, release, replay, status

__all__ = ["VERBS"]

VERBS: Final[tuple[Verb, ...]] = (
    replay.VERB,
    status.VERB,
    period.VERB,
    hold.VERB,
    release.VERB,
    offsets.VERB,
    members.VERB,
    isolate.VERB,
    rejoin.VERB,
    local.VERB,
)
