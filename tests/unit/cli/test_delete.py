"""``aiokcc delete`` on the memory store."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

import aiokcc
from aiokcc.cli.verbs import delete
from aiokcc.errors import SessionLostError
from aiokcc.stores.memory import MemoryStore


@pytest.mark.parametrize("is_lost", [False, True])
async def test_what_was_deleted_is_told_also_if_the_store_goes_away_then(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore(f"cli-delete-{is_lost}", "/replay")
    async with aiokcc.connect(store, topics={"orders": 1}, start=0, period="1m"):
        pass
    async with store.session() as session:
        await session.create("notes", b"")

    async def lost(*_: Any) -> Any:
        raise SessionLostError("lost")

    monkeypatch.setattr(delete, "open_existing", lambda _: store)
    if is_lost:
        monkeypatch.setattr(delete, "list_children", lost)
    assert await delete._run(argparse.Namespace(timeout=5.0)) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Deleted /replay: ")
    assert ("stays below it: notes." in shown) is not is_lost
    async with store.session() as session:
        assert await session.children("") == ("notes",)
