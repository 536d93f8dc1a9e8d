"""One error out of the groups in which task groups wrap them."""

from __future__ import annotations

import asyncio

import pytest

from aiokcc.errors import SessionLostError, UsageError
from aiokcc.exception_groups import leaves, main_error, unwrapped

LOST, WRONG, CANCELLED = SessionLostError("lost"), UsageError("wrong"), asyncio.CancelledError()
NESTED = BaseExceptionGroup("", [BaseExceptionGroup("", [CANCELLED, LOST]), WRONG])


def test_all_errors_in_order() -> None:
    assert leaves(NESTED) == [CANCELLED, LOST, WRONG]
    assert leaves(WRONG) == [WRONG]


def test_the_main_error_is_the_first_that_is_preferred() -> None:
    assert main_error(NESTED) is CANCELLED
    assert main_error(NESTED, lambda error: isinstance(error, UsageError)) is WRONG
    assert main_error(NESTED, lambda error: isinstance(error, KeyError)) is CANCELLED
    assert main_error(LOST, lambda error: isinstance(error, UsageError)) is LOST


async def test_a_task_group_that_raises_the_error_itself() -> None:
    async def fail() -> None:
        raise LOST

    with pytest.raises(SessionLostError) as raised:
        async with unwrapped() as outer:

            async def nested() -> None:
                async with unwrapped() as inner:
                    inner.start_soon(fail)

            outer.start_soon(nested)
            await asyncio.Event().wait()
    assert raised.value is LOST


async def test_a_cancellation_beside_an_error_does_not_hide_it() -> None:
    with pytest.raises(UsageError):
        async with unwrapped():
            raise BaseExceptionGroup("", [CANCELLED, WRONG])
