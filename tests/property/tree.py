"""A versioned tree of nodes with sessions, and nothing else: plain dictionaries, no clock, no tasks.

Transactions are atomic and conditional, as in the store; ephemeral nodes are deleted with their session. That writes are sent
and arrive at different times is up to the model that uses the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Check", "Create", "Delete", "Node", "Op", "Refused", "Set", "Tree"]


@dataclass(frozen=True, slots=True)
class Node:
    """The content of a node."""

    data: bytes
    version: int = 0
    session: int | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Check that the node has this version."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Set:
    """Write the node, at this version if one is given."""

    path: str
    data: bytes
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Create:
    """Create the node; it belongs to a session if one is given."""

    path: str
    data: bytes = b""
    session: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the node."""

    path: str


Op: TypeAlias = Check | Set | Create | Delete


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """The transaction was not applied."""


class Tree:
    """The nodes, by path."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.sessions: set[int] = set()
        self._last_session = 0

    def connect(self) -> int:
        """Open a new session."""
        self._last_session += 1
        self.sessions.add(self._last_session)
        return self._last_session

    def expire(self, session: int) -> None:
        """End the session, and delete its nodes."""
        self.sessions.discard(session)
        self.nodes = {path: node for path, node in self.nodes.items() if node.session != session}

    def get(self, path: str) -> Node | None:
        """Return the node; None if it does not exist."""
        return self.nodes.get(path)

    def read(self, path: str) -> Node:
        """Return the node, which must exist."""
        return self.nodes[path]

    def under(self, directory: str) -> list[str]:
        """Return the names of the nodes in a directory."""
        return sorted(path.removeprefix(f"{directory}/") for path in self.nodes if path.startswith(f"{directory}/"))

    def commit(self, ops: Iterable[Op], witness: Callable[[dict[str, Node], dict[str, Node]], None]) -> None:
        """Apply all operations, or raise Refused. The witness gets the nodes before and after."""
        after = dict(self.nodes)
        for op in ops:
            node = after.get(op.path)
            if isinstance(op, Create):
                if node is not None or (op.session is not None and op.session not in self.sessions):
                    raise Refused(op.path)
                after[op.path] = Node(op.data, 0, op.session)
                continue
            if node is None:
                raise Refused(op.path)
            if isinstance(op, Delete):
                del after[op.path]
                continue
            if op.version is not None and op.version != node.version:
                raise Refused(op.path)
            if isinstance(op, Set):
                after[op.path] = Node(op.data, node.version + 1, node.session)
        witness(self.nodes, after)
        self.nodes = after
