"""Unit tests of the runtime and of the Kafka layer run on virtual time; the others on asyncio's own loop."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.unit.world import World
from tests.virtual import VirtualLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]] | None:
    """Gives the tests of the runtime and of the Kafka layer a loop on virtual time; see tests/conftest.py for the others."""
    return {"virtual": VirtualLoop} if item.path.parent.name in {"runtime", "kafka"} else None


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Give an empty store on virtual time, with the methods that tests use."""
    world = World(f"world-{uuid.uuid4().hex}")
    monkeypatch.setattr("aiokcc.runtime.gate.boottime", world.time)
    yield world
    world.check()
