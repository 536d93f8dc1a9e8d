"""Opens a log for a session: connects, checks or makes the topic, catches up, and refuses a log that is not to be followed."""

from __future__ import annotations

import asyncio
import os
from typing import Final

from aiokcc.errors import AiokccError, NoGroupError, StoreError, StoreUnreachableError
from aiokcc.stores.kafka.client import LogClient, LogError, NotConnectedError, Refusal
from aiokcc.stores.kafka.follower import LOOK_SECONDS, LOOKS, Follower, LogChangedError, make_genesis
from aiokcc.stores.kafka.history import LogHistory
from aiokcc.stores.kafka.machine import Machine
from aiokcc.stores.kafka.topic import PERMISSIONS, OtherRootError, open_topic

__all__ = ["describe_difference", "open_log"]

_RETRY_SECONDS: Final = 0.1
"""The pause between two attempts: a broker that is not there does not tell when it is."""
_ASK_AFTER: Final = 20
"""After so many failures we find out again whether a broker refuses us, and why."""


class ShorterLogError(LogError):
    """The log ends before the place up to which this process had read it. A broker that is no longer the leader may say so."""


async def open_log(
    client: LogClient,
    follower: Follower,
    history: LogHistory,
    root: str,
    connect_timeout: float | None,
    *,
    create: bool,
) -> None:
    """Connect, and let the follower catch up with the log; try again until ``connect_timeout`` seconds have passed.

    If the topic does not exist, it is made, unless ``create`` is False or this process has known it. Raises
    StoreUnreachableError if no broker answers in time, NoGroupError for a topic that is not to be made, and StoreError for one
    that cannot be used.
    """
    problem, failures, looks = "", 0, 0
    refusal: Refusal | None = None
    try:
        async with asyncio.timeout(connect_timeout):
            while True:
                try:
                    await _connect(client, follower, history, root, create=create)
                    return
                except ShorterLogError as error:
                    problem, looks = str(error), looks + 1
                    if looks == LOOKS:
                        raise LogChangedError(problem) from None
                except LogError as error:
                    problem = "no broker there" if isinstance(error, NotConnectedError) else str(error)
                    if failures % _ASK_AFTER == 0:
                        refusal = await client.find_refusal()
                    if refusal is not None and refusal.is_final:
                        raise StoreError(f"Kafka at {client.servers} refuses us: {refusal.text}") from None
                    failures += 1
                await client.close()
                await asyncio.sleep(LOOK_SECONDS if looks else _RETRY_SECONDS)
    except TimeoutError:
        waited = "" if connect_timeout is None else f" within {connect_timeout:g} s"
        problem = refusal.text if refusal is not None else problem
        raise StoreUnreachableError(
            f"no Kafka broker of {client.servers} answered{waited}{': ' + problem if problem else ''}"
        ) from None
    except LogChangedError as error:
        raise history.refuse(str(error)) from None
    except PermissionError as error:
        raise StoreError(f"Kafka does not let us use the topic {client.topic!r} ({error}); {PERMISSIONS}") from None


async def _connect(client: LogClient, follower: Follower, history: LogHistory, root: str, *, create: bool) -> None:
    topic = client.topic
    await client.start()
    missing = _describe_missing(topic, root, history, create=create)
    await open_topic(client, topic, if_missing=missing)
    await client.refresh()
    if missing is not None and not create and (await client.find_range())[1] == 0:
        raise missing  # somebody makes it at this moment, or did not come further
    await follower.catch_up(make_genesis(os.urandom(8), root), history)
    machine = follower.machine
    if (found := machine.root.decode(errors="replace")) != root:
        raise OtherRootError(topic, found, root)
    if machine.is_outvoted(0):
        raise LogChangedError(describe_difference(machine, topic, 0))
    if machine.position < history.position:
        raise ShorterLogError(
            f"the topic {topic!r} ends at offset {machine.position}, and this process had read it up to "
            f"{history.position}: Kafka has lost acknowledged records"
        )


def _describe_missing(topic: str, root: str, history: LogHistory, *, create: bool) -> AiokccError | None:
    """Return the error for a topic that is not there; None if it is to be made."""
    if history.genesis is not None:
        return StoreError(
            f"the topic {topic!r}, which held the group's agreement, was deleted while this process ran; "
            f"nothing was made in its place. Stop all members and start them again to begin anew"
        )
    if not create:
        return NoGroupError(f"there is no group under {root}; a member founds one when it connects")
    return None


def describe_difference(machine: Machine, topic: str, own: int) -> str:
    """Return the reason for which the process with this session (0: none yet) stops: its history is not that of the others."""
    others = ", ".join(map(str, machine.differing))
    return (
        f"this process has another history or state than session {others} on the same topic {topic!r}, at offset "
        f"{machine.position}: a snapshot in the topic is wrong, two versions of aiokcc apply records differently, or Kafka "
        f"has lost records. {_describe_snapshot(machine, own)}. Stop all members, check their results, delete the topic, and "
        f"start them again"
    )


def _describe_snapshot(machine: Machine, own: int) -> str:
    """Return what the last snapshot tells about who is right. In a group of two nothing else does."""
    if (compared := machine.compared) is not None:
        writer = "this process itself" if compared.writer == own else f"session {compared.writer}"
        agrees = "has" if compared.is_ours else "does not have"
        return f"At offset {compared.mark} this process {agrees} the state of the snapshot there, which {writer} wrote"
    if machine.began_at is not None:
        return f"This process began with the snapshot of offset {machine.began_at}"
    return "There was no snapshot with which it could be compared"
