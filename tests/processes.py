"""The ends of processes that need not be our children, awaited and not polled for.

A process file descriptor tells of them, and only Linux has those. Elsewhere the tests that need one fail: what cannot be
checked has not been shown to hold.
"""

from __future__ import annotations

import os
import select
from pathlib import Path

__all__ = ["ended", "supervisors_of"]


def ended(pid: int, within: float = 10) -> bool:
    """Wait for the end of a process."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], within)[0])
    finally:
        os.close(descriptor)


def supervisors_of(parent: int) -> list[int]:
    """The children of a process that watch over its local services."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if b"_supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()]
