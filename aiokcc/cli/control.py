"""``aiokcc period``, ``hold`` and ``release``: requests of an operator to the leader."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Final

import anyio

from aiokcc.cli.arguments import command
from aiokcc.cli.status import resume_command
from aiokcc.core import paths
from aiokcc.core.limit import Limit, Mode, Request, RequestKind
from aiokcc.core.masking import mask_url
from aiokcc.core.periods import format_duration, format_time
from aiokcc.errors import CoordinationError, UsageError
from aiokcc.runtime.election import list_candidates
from aiokcc.runtime.operator import write_request
from aiokcc.runtime.status import read_status
from aiokcc.stores import open_store
from aiokcc.stores.port import Node, Session, Store

__all__ = ["confirm_release", "run_hold", "run_period", "run_release"]

_RELEASE_SECONDS: Final = 5.0
"""Seconds to wait for the leader to act on a release."""


async def run_period(options: argparse.Namespace) -> int:
    """Set the period; return the exit code."""
    store = open_store(options.store)
    async with store.session(connect_timeout=options.timeout) as session:
        previous = await write_request(store, session, Request.every(options.period))
        led = await _is_led(session)
    now = format_duration(options.period)
    if previous is None:
        print(f"The period is {now} from the next boundary on; the previous content of the node could not be read.")
    elif previous.kind is RequestKind.HOLD:
        print(f"The hold is over: the limit moves again, by {now} at a time.")
    elif previous.period == options.period:
        print(f"The period is {now} already; nothing was changed.")
    else:
        print(f"The period is {now} from the next boundary on (before: {format_duration(previous.period)}).")
    _mention_no_leader(led)
    return 0


async def run_hold(options: argparse.Namespace) -> int:
    """Hold the limit, print the command that ends the hold, and return the exit code."""
    store = open_store(options.store)
    async with store.session(connect_timeout=options.timeout) as session:
        previous = await write_request(store, session, Request(RequestKind.HOLD))
        limit = await _limit(store, session)
        held_before = previous is not None and previous.kind is RequestKind.HOLD
        status = await read_status(store, session)
        if previous is not None and previous.kind is RequestKind.PERIOD:
            status = replace(status, state="held", held_period=previous.period)
        led = await _is_led(session)
    where = f"at {format_time(limit.value)}" if limit.value else "where it is"
    print(
        f"{'Held already' if held_before else 'Held'}: the limit stays {where}. Records before it are still processed."
    )
    print(f"\nResume with:\n\n    {resume_command(status, options) or command(options, 'period', 'PERIOD')}\n")
    if status.held_period is None:
        began = "" if status.agreed_period is None else f"; the run began with {format_duration(status.agreed_period)}"
        print(f"(The period before the hold is not recorded{began}.)")
    _mention_no_leader(led)
    return 0


def confirm_release(options: argparse.Namespace) -> bool:
    """Return whether the user confirms the release. Raises UsageError without --yes if stdin is no terminal."""
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("release is final for the run; add --yes to confirm")
    where = mask_url(options.store)
    print(f"This opens the gate of {where} for all members, for good: partitions are not kept in step any more.")
    try:
        answer = input("Release? [y/N] ")
    except EOFError:
        answer = ""
    return answer.strip().lower() in {"y", "yes"}


async def run_release(options: argparse.Namespace) -> int:
    """Release the gate and return the exit code.

    Waits up to _RELEASE_SECONDS for the leader; raises CoordinationError if it does not act. Cancelling leaves the request.
    """
    store = open_store(options.store)
    async with store.session(connect_timeout=options.timeout) as session:
        if (await _limit(store, session)).mode is Mode.OPEN:
            print("Released already; nothing was changed.")
            return 0
        await write_request(store, session, Request(RequestKind.OFF))
        with anyio.move_on_after(_RELEASE_SECONDS):
            await _wait_until_open(store, session)
            print("Released: every record passes from now on.")
            return 0
        led = await _is_led(session)
    if led:
        raise CoordinationError(
            f"the release was requested, but the leader has not acted on it within {_RELEASE_SECONDS:g} s; "
            f"see `{command(options, 'status')}`"
        )
    print("The release is requested.")
    _mention_no_leader(led)
    return 0


async def _wait_until_open(store: Store, session: Session) -> None:
    with session.watch() as watch:
        watch.add(paths.COORDINATOR)
        async for change in watch:
            node = change.now
            if isinstance(node, Node) and Limit.decode(store.describe(node.path), node.data).mode is not Mode.GATED:
                return


async def _limit(store: Store, session: Session) -> Limit:
    node = await session.find(paths.COORDINATOR)
    if node is None:
        raise UsageError(f"there is no group under {store.describe('')}; a member founds one when it connects")
    return Limit.decode(store.describe(node.path), node.data)


async def _is_led(session: Session) -> bool:
    return bool(await list_candidates(session))


def _mention_no_leader(led: bool) -> None:
    if not led:
        print("The group has no members at present; the next leader acts on the request.")
