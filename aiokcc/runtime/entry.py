"""Checks at the entry of ``connect`` and ``replay``, for mistakes that Python's own errors do not explain well.

A mistyped keyword, a missing ``async with`` and an event loop other than asyncio's each get an error that says what to write.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import inspect
import logging
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, TypeVar

from aiokcc.errors import UsageError

__all__ = ["Block", "known_keywords", "warn_of_milliseconds"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

log = logging.getLogger("aiokcc.runtime")

_warned: set[tuple[str, int]] = set()
"""The durations that were warned of: a process may connect many times."""


class NotEnteredError(UsageError, AttributeError):
    """An attribute was asked of a block that has not been entered."""


class Block(AbstractAsyncContextManager[T]):
    """A context manager that raises an error with the right spelling if it is used without ``async with``."""

    def __init__(self, inner: AbstractAsyncContextManager[T], call: str, name: str) -> None:
        self._inner = inner
        self._call = call
        self._name = name
        self._entered = False

    async def __aenter__(self) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise UsageError(
                f"{self._call}(...) runs on asyncio, and there is no asyncio event loop here; start the program with "
                f"asyncio.run(main()), or with anyio.run(main) and the backend 'asyncio' instead of trio"
            ) from None
        if self._entered:
            raise UsageError(
                f"this {self._call}(...) was entered before, and each one is entered once; make a new one: "
                f"{self._what_to_write()}"
            )
        self._entered = True
        return await self._inner.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)

    def _what_to_write(self) -> str:
        return f"write 'async with {self._call}(...) as {self._name}:', and use {self._name} in that block"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # Python itself asks, as in copy, also before __init__ has set ours
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise NotEnteredError(f"{self._call}(...) is not entered, so it has no {name!r}; {self._what_to_write()}")

    def __await__(self) -> NoReturn:
        raise UsageError(f"{self._call}(...) cannot be awaited; {self._what_to_write()}")

    def __aiter__(self) -> NoReturn:
        raise UsageError(f"{self._call}(...) is not entered; {self._what_to_write()}")

    def __iter__(self) -> NoReturn:
        raise UsageError(f"{self._call}(...) is not entered; {self._what_to_write()}")

    def __enter__(self) -> NoReturn:
        raise UsageError(f"{self._call}(...) needs 'async with', not 'with'; {self._what_to_write()}")

    def __exit__(self, *_: object) -> None:
        """Exists so that a plain ``with`` calls :meth:`__enter__`, which raises the error."""


def warn_of_milliseconds(what: str, value: object) -> None:
    """Logs a warning, once in a process, for a duration that is a bare number below 1000: seconds may be meant."""
    if type(value) is int and 0 < value < 1000 and (what, value) not in _warned:
        _warned.add((what, value))
        log.warning('%s=%d is %d milliseconds; if seconds are meant, write %s="%ds"', what, value, value, what, value)


def known_keywords(call: str, others: Callable[[], Collection[str]]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function to refuse a misspelt keyword with a UsageError that names the nearest known one.

    ``others`` returns the keywords that the function passes on. A keyword that is near to none is passed on unchecked.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        own = {
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind not in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}
        }

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if not own.issuperset(kwargs):
                _refuse_misspelt(call, kwargs, own, others())
            return function(*args, **kwargs)

        return checked

    return decorate


def _refuse_misspelt(call: str, given: dict[str, Any], own: Collection[str], others: Collection[str]) -> None:
    for name in given:
        if name in own or name in others:
            continue
        near = difflib.get_close_matches(name, {*own, *others}, 1, cutoff=0.75)
        if near:
            raise UsageError(f"{call} has no argument {name!r}; did you mean {near[0]!r}?")
