"""The verbs of the command line, one module for each, and the table of them in the order of the help."""

from __future__ import annotations

from typing import Final

from aiokcc.cli.verb import Verb
from aiokcc.cli.verbs import (
    completion,
    config,
    dashboard,
    delete,
    describe,
    hold,
    isolate,
    list_groups,
    local,
    members,
    offsets,
    period,
    pipeline,
    prune,
    rejoin,
    release,
    replay,
    status,
)

__all__ = ["VERBS"]

VERBS: Final[tuple[Verb, ...]] = (
    replay.VERB,
    status.VERB,
    list_groups.VERB,
    describe.VERB,
    dashboard.VERB,
    period.VERB,
    hold.VERB,
    release.VERB,
    offsets.VERB,
    pipeline.VERB,
    members.VERB,
    isolate.VERB,
    rejoin.VERB,
    delete.VERB,
    prune.VERB,
    config.VERB,
    completion.VERB,
    local.VERB,
)
