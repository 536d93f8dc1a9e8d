"""The settings that a member brings to a managed group, checked where they enter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from aiokcc.core.assignors import DEFAULT, check_assignor
from aiokcc.core.subscriptions import EVERYTHING, Subscription
from aiokcc.core.weighted import Weight
from aiokcc.errors import UsageError

__all__ = ["JOIN_WINDOW", "GroupSettings", "check_group"]

JOIN_WINDOW: Final = 1.0
JOIN_WINDOW_EXPECTING: Final = 30.0


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The checked settings of one member of a managed group."""

    subscription: Subscription = EVERYTHING
    assignor: str = DEFAULT
    weight: Weight | None = None
    join_window: float = JOIN_WINDOW
    """The seconds for which joins are gathered before partitions move."""
    expect: int | None = None
    """The number of members at which the join window closes early."""

    @classmethod
    def check(
        cls,
        *,
        subscription: object = None,
        assignor: object = DEFAULT,
        weight: Weight | None = None,
        join_window: object = None,
        expect: object = None,
    ) -> GroupSettings:
        """Returns the settings that a user wrote. Raises UsageError for the first invalid one."""
        if isinstance(subscription, Subscription):
            wanted = subscription
        elif isinstance(subscription, re.Pattern):
            wanted = Subscription.check(pattern=subscription)
        else:
            wanted = Subscription.check(subscription)
        name = check_assignor(assignor)
        if weight is not None and (not callable(weight) or name != DEFAULT):
            raise UsageError(
                f"weight is {weight!r} and the assignor is {name!r}; "
                f"expected a function of a partition and a member, with the assignor {DEFAULT!r}"
            )
        if expect is not None and (not isinstance(expect, int) or isinstance(expect, bool) or expect < 1):
            raise UsageError(f"expect is {expect!r}; expected the number of members, at least 1")
        if join_window is None:
            window = JOIN_WINDOW if expect is None else JOIN_WINDOW_EXPECTING
        elif isinstance(join_window, bool) or not isinstance(join_window, int | float) or not 0 <= join_window < 1e6:
            raise UsageError(f"join_window is {join_window!r}; expected a number of seconds from 0 up")
        else:
            window = float(join_window)
        return cls(wanted, name, weight, window, expect)


def check_group(assignment: object, **given: Any) -> GroupSettings | None:
    """Returns the settings of a managed group, None if it is not managed.

    Raises UsageError for an invalid setting, and for settings of a managed group without ``assignment="managed"``.
    """
    if assignment == "managed":
        return GroupSettings.check(**given)
    if assignment is not None:
        raise UsageError(f"assignment is {assignment!r}; expected 'managed', or nothing")
    unused = [name for name, value in given.items() if value is not None and (name, value) != ("assignor", DEFAULT)]
    if unused:
        raise UsageError(f'{", ".join(unused)} only mean something with assignment="managed"')
    return None
