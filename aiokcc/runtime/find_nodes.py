"""Reads many nodes side by side: together they take one round trip."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from aiokcc.exception_groups import unwrapped
from aiokcc.stores.port import Node, Session

__all__ = ["find_nodes"]

K = TypeVar("K", bound=Hashable)


async def find_nodes(session: Session, wanted: Mapping[K, str]) -> dict[K, Node | None]:
    """Returns the nodes at these paths, in their order; None for one that does not exist.

    Raises the first error. If several reads fail, they usually have one cause: the session is lost, or has no permission.
    """
    result: dict[K, Node | None] = {}

    async def one(key: K, path: str) -> None:
        result[key] = await session.find(path)

    async with unwrapped() as tasks:
        for key, path in wanted.items():
            tasks.start_soon(one, key, path)
    return {key: result[key] for key in wanted}
