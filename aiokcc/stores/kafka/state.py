"""The whole state at a mark, as bytes: the same bytes for every client that has applied the same records. Pure.

A snapshot is these bytes, packed. What is read here was written by others, so content that is not valid raises ValueError.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from aiokcc.stores.tree import Tree, ZNode

__all__ = ["MAX_SIZE", "LogSession", "decode", "encode", "pack", "unpack"]

MAX_SIZE: Final = 256 * 2**20
"""A state that is larger cannot be unpacked."""

_HEAD: Final = struct.Struct(">8sQ8sIII")
_SESSION: Final = struct.Struct(">QI16sQQQ")
_NODE: Final = struct.Struct(">IIQqqII")


@dataclass(slots=True)
class LogSession:
    """A live session, as the log tells it."""

    id: int
    timeout: int
    """Milliseconds."""
    nonce: bytes
    next_seq: int
    last: int
    """The offset of its last record that counted."""
    position: int
    """It has applied all records before this offset, by its own last record."""


def encode(
    genesis: bytes, root: bytes, position: int, chain: bytes, sessions: Iterable[LogSession], tree: Tree
) -> bytes:
    """Return the bytes of a state."""
    live = sorted(sessions, key=lambda session: session.id)
    parts = [_HEAD.pack(genesis, position, chain, len(root), len(live), len(tree.nodes)), root]
    parts += [_SESSION.pack(s.id, s.timeout, s.nonce, s.next_seq, s.last, s.position) for s in live]
    for path, node in sorted(tree.nodes.items()):
        name = path.encode()
        parts.append(
            _NODE.pack(
                len(name), len(node.data), node.owner, node.created, node.modified, node.version, node.next_sequence
            )
        )
        parts += (name, node.data)
    return b"".join(parts)


def decode(content: bytes) -> tuple[bytes, bytes, int, bytes, list[LogSession], Tree]:
    """Return genesis, root, position, chain, sessions and tree. Raises ValueError if the bytes are not a state."""
    try:
        genesis, position, chain, length, live, count = _HEAD.unpack_from(content)
        at = _HEAD.size + length
        root = content[_HEAD.size : at]
        sessions = [LogSession(*_SESSION.unpack_from(content, at + _SESSION.size * number)) for number in range(live)]
        at += _SESSION.size * live
        nodes: dict[str, ZNode] = {}
        for _ in range(count):
            length, size, owner, created, modified, version, following = _NODE.unpack_from(content, at)
            at += _NODE.size
            name, data = content[at : at + length], content[at + length : at + length + size]
            at += length + size
            nodes[name.decode()] = ZNode(data, owner, created, modified, version, following)
    except struct.error as error:
        raise ValueError(f"not a state: {error}") from None
    if at != len(content):
        raise ValueError("not a state: wrong length")
    return genesis, root, position, chain, sessions, Tree.restore(nodes)


def pack(content: bytes) -> bytes:
    """Return a state, compressed."""
    return zlib.compress(content, 1)


def unpack(data: bytes) -> bytes:
    """Return the state that was compressed. Raises ValueError if it cannot be unpacked."""
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(data, MAX_SIZE)
    except zlib.error as error:
        raise ValueError(f"not a packed state: {error}") from None
    if not unpacking.eof:
        raise ValueError("not a packed state: it is cut off, or too large")
    return content
