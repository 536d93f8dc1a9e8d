"""What every store refuses before it sends anything, in one place, so that all refuse the same.

Paths follow ZooKeeper's rules also where the tree is in memory: what works in a test must work in production. Sizes are
counted over the whole request, because that is what a server's buffer limits: a transaction of two halves is as large as
one write of both, and a server that gets too much hangs up without an answer, which looks like a broken network.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from aiokcc.errors import TooLargeError, UsageError
from aiokcc.stores.port import ANY_VERSION, Check, Create, Delete, Op, Set

__all__ = ["DEFAULT_ROOT", "MAX_REQUEST", "check_data", "check_op", "check_path", "check_root", "check_size"]

DEFAULT_ROOT: Final = "/aiokcc/default"
MAX_REQUEST: Final = 1_000_000
"""Bytes of names and data in one request. The server's own limit is 1,048,575 with all that the protocol adds."""

_MAX_VERSION: Final = 2**31 - 1
# Unions written where they are used would be built anew for every operation.
_OPS: Final = (Check, Set, Create, Delete)
_WITH_DATA: Final = (Create, Set)
_WITH_VERSION: Final = (Check, Set, Delete)
# The last range is what UTF-16 writes as two surrogates, which the server refuses one by one: emoji among others.
_FORBIDDEN: Final = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")


@functools.lru_cache(maxsize=4096)
def _fault(path: str) -> str | None:
    """What is wrong with a relative path, or None."""
    if path == "":
        return None
    if path.startswith("/"):
        return "it begins with '/'; paths are relative to the store's root, as in 'owners/orders/3'"
    for name in path.split("/"):
        if name == "":
            return "it has an empty name between or after its slashes"
        if name in (".", ".."):
            return f"it contains the name {name!r}, which ZooKeeper refuses"
    if found := _FORBIDDEN.search(path):
        return f"it contains the character {found.group()!a}, which ZooKeeper refuses in names"
    return None


def check_path(path: str) -> str:
    """The path itself if it is a valid relative path; otherwise UsageError."""
    if not isinstance(path, str):
        raise UsageError(f"a path is a string such as 'owners/orders/3', not {path!r}")
    if (fault := _fault(path)) is not None:
        raise UsageError(f"{path!a} is not a valid path: {fault}")
    return path


def check_root(root: str) -> str:
    """An absolute root without a slash at its end; the default one for ``""`` and ``"/"``; otherwise UsageError."""
    if not isinstance(root, str):
        raise UsageError(f"a root is a string such as '/replay', not {root!r}")
    if root in ("", "/"):
        return DEFAULT_ROOT
    if not root.startswith("/"):
        raise UsageError(f"the root {root!a} does not begin with '/'; write '/{root}'")
    if (fault := _fault(root.removesuffix("/")[1:])) is not None:
        raise UsageError(f"{root!a} is not a valid root: {fault}")
    return root.removesuffix("/")


def check_data(data: bytes) -> bytes:
    """The data itself if it is bytes; otherwise UsageError."""
    if not isinstance(data, bytes):
        raise UsageError(f"a node holds bytes, not {type(data).__name__}; encode it first")
    return data


def check_op(op: Op) -> Op:
    """The operation itself if its path, data and version can be meant; otherwise UsageError."""
    if not isinstance(op, _OPS):
        raise UsageError(f"a transaction is made of Check, Set, Create and Delete, not of {op!r}")
    check_path(op.path)
    if isinstance(op, _WITH_DATA):
        check_data(op.data)
    if isinstance(op, _WITH_VERSION):
        version = op.version
        if not isinstance(version, int) or isinstance(version, bool) or not ANY_VERSION <= version <= _MAX_VERSION:
            raise UsageError(f"{op.path}: a version is a number from 0 on, or ANY_VERSION, not {version!r}")
    elif op.sequential and not op.path:
        raise UsageError("a sequential node needs a name in front of its number, as in 'leader/c-'")
    return op


def check_size(root: str, *ops: Op) -> None:
    """TooLargeError, with the operation that went over the limit, if one request cannot carry these operations."""
    size = 0
    for index, op in enumerate(ops):
        # Three bytes are the longest that a character allowed in names takes; to encode every path would cost more.
        size += 3 * len(root) + 1 + (len(op.path) if op.path.isascii() else 3 * len(op.path))
        if isinstance(op, _WITH_DATA):
            size += len(op.data)
        if size > MAX_REQUEST:
            raise TooLargeError(op.path, index if len(ops) > 1 else None)
