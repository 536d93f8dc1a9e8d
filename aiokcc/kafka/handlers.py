"""Checks the user's handler: before anything is read, and what it has returned."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Generator
from typing import Any

from aiokcc.errors import HandlerError, UsageError

__all__ = ["check_handler", "check_result"]


def check_handler(handler: object, method: str, gets: str) -> None:
    """Raise UsageError if this cannot be called with records, before anything is read."""
    if not callable(handler):
        raise UsageError(
            f"{method}() got {handler!r}, which cannot be called; expected a function of {gets}, with or without async"
        )
    bare: object = handler
    while isinstance(bare, functools.partial):
        bare = bare.func
    for function in (bare, type(bare).__call__):  # an object is called by the method of its class
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            name = getattr(bare, "__qualname__", repr(bare))
            raise UsageError(
                f"{name} is a generator: it has a yield in it, so a call would do nothing; leave out the yield"
            )


def check_result(result: object, record: Any) -> None:
    """Raise HandlerError if a handler has returned a generator for this record: nothing of it has run, or ever would."""
    if isinstance(result, Generator | AsyncGenerator):
        name = getattr(result, "__qualname__", repr(result))
        raise HandlerError(
            f"the handler has returned a generator, {name}, so nothing was done with the record; leave out the yield in it, "
            f"or run it in the handler: '{'async ' * isinstance(result, AsyncGenerator)}for _ in {name}(...): pass'",
            record.topic,
            record.partition,
            record.offset,
        )
