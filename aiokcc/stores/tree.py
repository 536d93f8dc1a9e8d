"""A tree of nodes with ZooKeeper's semantics, without sessions, waiting or clock. The memory and the Kafka store hold one.

These are the rules of a ZooKeeper server:

* A node's data version starts at 0 and counts its writes; a node that is created again starts at 0 again.
* A node counts all creations of children, sequential or not, and the count is the number of the next sequential child. It
  never decreases, so a number is not given twice while the parent exists. A failed transaction does not change it.
* If several errors apply, the order is: no node, then the version, then (for a deletion) the children.
* In a transaction each operation sees the effects of those before it. If one fails, all are undone.

Invariant: every node but ``/`` has its parent in the tree and is among the parent's children; an ephemeral node has no
children and is listed under its owner.

Paths are absolute here. An error has only its kind and the operation's position; the session adds the relative path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from aiokcc.errors import BadVersionError, EphemeralParentError, NodeError, NodeExistsError, NoNodeError, NotEmptyError
from aiokcc.stores.port import ANY_VERSION, Check, Create, Delete, Op, Set

__all__ = ["Key", "Tree", "TreeError", "TreeOp", "ZNode", "split_path", "tree_op"]

Key: TypeAlias = tuple[str, bool]
"""The key of a watch: a path, and True for the names of its children or False for the node itself."""


class TreeError(Exception):
    """An operation cannot be applied; the tree is unchanged. The session catches it and raises ``kind``."""

    def __init__(self, kind: type[NodeError], index: int = 0) -> None:
        self.kind, self.index = kind, index


@dataclass(slots=True)
class ZNode:
    """One node. ``next_sequence`` is the number of the next sequential child."""

    data: bytes
    owner: int
    created: int
    modified: int
    version: int = 0
    next_sequence: int = 0
    children: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class TreeOp:
    """One operation on an absolute path. ``verb`` is check, set, create or delete."""

    verb: str
    path: str
    data: bytes = b""
    version: int = ANY_VERSION
    owner: int = 0
    sequential: bool = False


def tree_op(op: Op, path: str, session: int) -> TreeOp:
    """Return the operation of a session, on an absolute path."""
    match op:
        case Check():
            return TreeOp("check", path, version=op.version)
        case Set():
            return TreeOp("set", path, op.data, op.version)
        case Create():
            return TreeOp("create", path, op.data, owner=session if op.ephemeral else 0, sequential=op.sequential)
        case Delete():
            return TreeOp("delete", path, version=op.version)


def split_path(path: str) -> tuple[str, str]:
    """Return the parent's path and the name in it."""
    parent, _, name = path.rpartition("/")
    return parent or "/", name


class Tree:
    """The nodes by path, and the ephemeral nodes of each session."""

    def __init__(self) -> None:
        self.nodes: dict[str, ZNode] = {"/": ZNode(b"", 0, 0, 0)}
        self._owned: dict[int, dict[str, None]] = {}

    @classmethod
    def restore(cls, nodes: dict[str, ZNode]) -> Tree:
        """Return a tree of these nodes, whose parents come before their children. Raises ValueError for any other order."""
        tree = cls()
        for path, node in nodes.items():
            parent_path, name = split_path(path)
            if path == "/":
                tree.nodes[path] = node
            elif (parent := tree.nodes.get(parent_path)) is None:
                raise ValueError(f"{path} has no parent")
            else:
                tree._link(path, node, parent, name)
        return tree

    def apply(self, ops: Iterable[TreeOp], now: int) -> tuple[list[int | str | None], dict[Key, None]]:
        """Apply all operations; return their results and the keys of the watches to notify, in order.

        Raises TreeError, and applies none, if one of them fails.
        """
        undo: list[Callable[[], None]] = []
        changed: dict[Key, None] = {}
        results: list[int | str | None] = []
        for index, op in enumerate(ops):
            try:
                results.append(self._apply_one(op, now, undo, changed))
            except TreeError as error:
                for step in reversed(undo):
                    step()
                raise TreeError(error.kind, index) from None
        return results, changed

    def delete_owned(self, owner: int, now: int) -> dict[Key, None]:
        """Delete all ephemeral nodes of a session; return the keys of the watches to notify."""
        return self.apply([TreeOp("delete", path) for path in self._owned.get(owner, ())], now)[1]

    def _apply_one(
        self, op: TreeOp, now: int, undo: list[Callable[[], None]], changed: dict[Key, None]
    ) -> int | str | None:
        if op.verb == "create":
            return self._create(op, now, undo, changed)
        node = self.nodes.get(op.path)
        if node is None:
            raise TreeError(NoNodeError)
        if op.version not in (ANY_VERSION, node.version):
            raise TreeError(BadVersionError)
        if op.verb == "check":
            return None
        if op.verb == "set":
            return self._set(op, node, now, undo, changed)
        self._delete(op, node, undo, changed)
        return None

    def _create(self, op: TreeOp, now: int, undo: list[Callable[[], None]], changed: dict[Key, None]) -> str:
        path, (parent_path, name) = op.path, split_path(op.path)
        parent = self.nodes.get(parent_path)
        if parent is None:
            raise TreeError(NoNodeError)
        if op.sequential:
            number = f"{parent.next_sequence:010d}"
            path, name = path + number, name + number
        if path in self.nodes:
            raise TreeError(NodeExistsError)
        if parent.owner:
            raise TreeError(EphemeralParentError)

        def undo_step() -> None:
            parent.next_sequence -= 1
            self._unlink(path, parent, name, op.owner)

        parent.next_sequence += 1
        self._link(path, ZNode(op.data, op.owner, now, now), parent, name)
        undo.append(undo_step)
        changed.update(dict.fromkeys(((path, False), (path, True), (parent_path, True))))
        return path

    def _set(self, op: TreeOp, node: ZNode, now: int, undo: list[Callable[[], None]], changed: dict[Key, None]) -> int:
        before = node.data, node.modified, node.version

        def undo_step() -> None:
            node.data, node.modified, node.version = before

        node.data, node.modified, node.version = op.data, now, node.version + 1
        undo.append(undo_step)
        changed[op.path, False] = None
        return node.version

    def _delete(self, op: TreeOp, node: ZNode, undo: list[Callable[[], None]], changed: dict[Key, None]) -> None:
        if node.children:
            raise TreeError(NotEmptyError)
        parent_path, name = split_path(op.path)
        parent = self.nodes[parent_path]
        self._unlink(op.path, parent, name, node.owner)
        undo.append(lambda: self._link(op.path, node, parent, name))
        changed.update(dict.fromkeys(((op.path, False), (op.path, True), (parent_path, True))))

    def _link(self, path: str, node: ZNode, parent: ZNode, name: str) -> None:
        self.nodes[path] = node
        parent.children.add(name)
        if node.owner:
            self._owned.setdefault(node.owner, {})[path] = None

    def _unlink(self, path: str, parent: ZNode, name: str, owner: int) -> None:
        del self.nodes[path]
        parent.children.discard(name)
        if owner:
            owned = self._owned[owner]
            del owned[path]
            if not owned:
                del self._owned[owner]
