"""Waits for the ends of processes that need not be our children, without polling.

It uses process file descriptors, which only Linux has. On other systems the tests that need one fail: what cannot be
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
    """Return the children of a process that supervise its local services."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if b"_supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()]
