"""The operator's verbs of the page. Each is the same write to the store as that of the command line."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from aiokcc.core.limit import Request, RequestKind
from aiokcc.core.periods import format_duration, parse_period
from aiokcc.errors import UsageError
from aiokcc.runtime.operator import has_eligible_member, isolate, rejoin, write_request
from aiokcc.stores.port import Session, Store

__all__ = ["VERBS", "control"]

VERBS: Final = ("hold", "period", "release", "isolate", "rejoin")
_TIMEOUT: Final = 10.0


async def control(store: Store, order: Mapping[str, Any], *, operator: str) -> str:
    """Carry out one verb and return a sentence that says what is different now.

    ``order`` has ``verb``, and ``period`` or ``member`` where the verb takes one. UsageError if it is invalid, or if the group
    cannot follow it.
    """
    verb = order.get("verb")
    if verb not in VERBS:
        raise UsageError(f"there is no verb {verb!r}; expected {', '.join(VERBS)}")
    period = parse_period(_text(order, "period"), what="the period") if verb == "period" else 0
    member = _text(order, "member") if verb in {"isolate", "rejoin"} else ""
    async with store.session(connect_timeout=_TIMEOUT) as session:
        return await _carry_out(store, session, str(verb), period, member, operator)


def _text(order: Mapping[str, Any], name: str) -> str:
    value = order.get(name)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{order.get('verb')} needs a {name}")
    return value.strip()


async def _carry_out(store: Store, session: Session, verb: str, period: int, member: str, operator: str) -> str:
    match verb:
        case "hold":
            before = await write_request(store, session, Request(RequestKind.HOLD))
            was = "" if before is None or before.kind is not RequestKind.PERIOD else format_duration(before.period)
            return "Held: the limit stays where it is." + (f" The period was {was}." if was else "")
        case "period":
            await write_request(store, session, Request.every(period))
            return f"The period is {format_duration(period)} from the next boundary on."
        case "release":
            await write_request(store, session, Request(RequestKind.OFF))
            return "The release is requested: the leader opens the gate for all members, for the rest of the run."
        case "isolate":
            changed = await isolate(store, session, member, by=operator, now=time.time_ns() // 1_000_000)
            nobody = "" if await has_eligible_member(session) else " No other member can take its partitions."
            return f"{member} is isolated{'' if changed else ' already'}.{nobody}"
        case _:
            changed = await rejoin(store, session, member)
            return f"{member} {'takes part again' if changed else 'is not isolated; nothing was changed'}."
