"""The event loop of a process that a test starts: the one that pytest was told with ``--loop``."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from typing import Any

from aiokcc.cli.loops import AUTO, LOOP_VARIABLE, run_on

__all__ = ["run"]


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run the work to its end."""
    run_on(os.environ.get(LOOP_VARIABLE, AUTO), work)
