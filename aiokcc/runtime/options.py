"""The options with which a process joins a group, checked once, where they enter."""

from __future__ import annotations

import math
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from aiokcc.core.group_settings import GroupSettings, check_group
from aiokcc.core.run import MANAGED, Settings, check_member
from aiokcc.core.weighted import Weight
from aiokcc.errors import UsageError
from aiokcc.runtime.entry import warn_of_milliseconds

__all__ = ["GroupOptions", "make_member_name", "wall_clock"]


def wall_clock() -> int:
    """Returns milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def make_member_name() -> str:
    """Returns a name that no other member has: made from host, process and a random number."""
    host = re.sub("[^A-Za-z0-9._-]", "-", socket.gethostname())[:60]
    return f"{host}-{os.getpid()}-{secrets.token_hex(2)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupOptions:
    """The options that ``connect``, ``replay`` and ``spark.replay`` share: all that a member brings, except its partitions."""

    settings: Settings
    """The settings that all members of the group share. Its partitions may still be unknown."""
    member: str | None
    """The member's name; None: one is made."""
    session_timeout: float
    connect_timeout: float
    claim_timeout: float | None
    """Seconds to wait for a partition that another member holds; None: twice the session timeout."""
    clock: Callable[[], int]
    grows: bool
    """True if the agreed set may differ from the one we bring, because it changes while the group runs."""
    newer: Literal["partitions", "topics"] | None
    """Our partitions that may be newer than the agreed set: those of its topics, or of other topics as well."""
    managed: GroupSettings | None
    """Our settings for a managed group; None if the group is not managed."""
    share_host: bool = False
    """True if the processes of this host share one session and one report."""

    @classmethod
    def check(
        cls,
        *,
        period: object,
        start: object = None,
        end: object = None,
        lookahead: object = 0,
        max_apart: object = None,
        caught_up: object = "follow",
        ahead: object = "1h",
        source: str = "",
        member: str | None = None,
        session_timeout: float = 10.0,
        connect_timeout: float = 10.0,
        claim_timeout: float | None = None,
        clock: Callable[[], int] | None = None,
        grows: bool = False,
        newer: Literal["partitions", "topics"] | None = None,
        assignment: Literal["managed"] | None = None,
        subscription: object = None,
        assignor: str = "sticky",
        weight: Weight | None = None,
        join_window: float | None = None,
        expect: int | None = None,
        share_host: bool = False,
    ) -> GroupOptions:
        """Returns the options from a user's arguments, which :func:`aiokcc.connect` describes.

        Raises UsageError for the first invalid argument.
        """
        managed = check_group(
            assignment,
            subscription=subscription,
            assignor=assignor,
            weight=weight,
            join_window=join_window,
            expect=expect,
        )
        if type(share_host) is not bool:
            raise UsageError(f"share_host is {share_host!r}; expected True or False")
        if share_host and managed is not None:
            raise UsageError(
                'share_host=True does not go with assignment="managed": there the unit of assignment is the process; '
                "leave one of them out"
            )
        if share_host and grows:
            raise UsageError(
                "share_host=True does not go with a set of partitions that grows, as that of a replay without an end does: "
                "leave one of them out"
            )
        if managed is not None:
            source = f"{source} {MANAGED}".strip()
        settings = Settings.check(
            period=period,
            start=start,
            end=end,
            lookahead=lookahead,
            max_apart=max_apart,
            caught_up=caught_up,
            ahead=ahead,
            source=source,
        )
        if member is not None:
            check_member(member)
        for what, seconds in (("session_timeout", session_timeout), ("connect_timeout", connect_timeout)):
            _check_seconds(what, seconds)
        if claim_timeout is not None and claim_timeout != math.inf:
            _check_seconds("claim_timeout", claim_timeout, "; math.inf waits for as long as it takes")
        if clock is not None and not callable(clock):
            raise UsageError(f"clock is {clock!r}; expected a function that gives milliseconds since the epoch")
        for what, value in (("period", period), ("max_apart", max_apart), ("caught_up", caught_up), ("ahead", ahead)):
            warn_of_milliseconds(what, value)
        return cls(
            settings=settings,
            member=member,
            session_timeout=session_timeout,
            connect_timeout=connect_timeout,
            claim_timeout=claim_timeout,
            clock=clock or wall_clock,
            grows=grows,
            newer=newer,
            managed=managed,
            share_host=share_host,
        )


def _check_seconds(what: str, seconds: object, more: str = "") -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise UsageError(f"{what} {seconds!r} is not a number of seconds above 0{more}")
