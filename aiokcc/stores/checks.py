"""Checks of arguments that every store makes before it sends anything, so that all stores refuse the same.

Paths follow ZooKeeper's rules in the memory store too: what works in a test must work in production. The size limit is for
the whole request, because the server's buffer limits that. A server closes the connection on a larger request without an
answer, which looks like a broken network.
"""

from __future__ import annotations

import functools
import math
import re
from typing import Final

from aiokcc.errors import TooLargeError, UsageError
from aiokcc.stores.port import ANY_VERSION, Check, Create, Delete, Op, Set

__all__ = [
    "DEFAULT_ROOT",
    "MAX_REQUEST",
    "check_data",
    "check_op",
    "check_path",
    "check_root",
    "check_size",
    "check_timeouts",
]

DEFAULT_ROOT: Final = "/aiokcc/default"
MAX_REQUEST: Final = 1_000_000
"""The most bytes of names and data in one request. The server's limit is 1,048,575 including the protocol's overhead."""

_MAX_VERSION: Final = 2**31 - 1
# Constants, because a union in an isinstance() call would be built again for each operation.
_OPS: Final = (Check, Set, Create, Delete)
_WITH_DATA: Final = (Create, Set)
_WITH_VERSION: Final = (Check, Set, Delete)
# The last range (emoji, for example) is encoded in UTF-16 as two surrogates, each of which the server refuses.
_FORBIDDEN: Final = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")


@functools.lru_cache(maxsize=4096)
def _find_problem(path: str) -> str | None:
    """Return what is wrong with a relative path, or None."""
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
    """Return the path. Raises UsageError if it is not a valid relative path."""
    if not isinstance(path, str):
        raise UsageError(f"a path is a string such as 'owners/orders/3', not {path!r}")
    if (problem := _find_problem(path)) is not None:
        raise UsageError(f"{path!a} is not a valid path: {problem}")
    return path


def check_root(root: str) -> str:
    """Return the absolute root without a slash at its end; for ``""`` and ``"/"``, the default root.

    Raises UsageError if it is not a valid root.
    """
    if not isinstance(root, str):
        raise UsageError(f"a root is a string such as '/replay', not {root!r}")
    if root in ("", "/"):
        return DEFAULT_ROOT
    if not root.startswith("/"):
        raise UsageError(f"the root {root!a} does not begin with '/'; write '/{root}'")
    if (problem := _find_problem(root.removesuffix("/")[1:])) is not None:
        raise UsageError(f"{root!a} is not a valid root: {problem}")
    return root.removesuffix("/")


def check_data(data: bytes) -> bytes:
    """Return the data. Raises UsageError if it is not bytes."""
    if not isinstance(data, bytes):
        raise UsageError(f"a node holds bytes, not {type(data).__name__}; encode it first")
    return data


def check_timeouts(timeout: float, connect_timeout: float | None) -> None:
    """Raise UsageError if the timeouts of a session are not positive, or the first one is not finite."""
    if not 0 < timeout < math.inf:
        raise UsageError(f"timeout is {timeout!r}; it must be a positive number of seconds")
    if connect_timeout is not None and not connect_timeout > 0:
        raise UsageError(f"connect_timeout is {connect_timeout!r}; it must be positive, or None to wait for ever")


def check_op(op: Op) -> Op:
    """Return the operation. Raises UsageError if its path, data or version is invalid."""
    kind = type(op)
    if kind is Check or (kind is Set and type(op.data) is bytes):  # type: ignore[union-attr]  # the usual case, faster
        version, path = op.version, op.path  # type: ignore[union-attr]
        valid = type(version) is int and ANY_VERSION <= version <= _MAX_VERSION
        if valid and type(path) is str and _find_problem(path) is None:
            return op
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
    """Raise TooLargeError, with the operation that exceeds the limit, if these operations do not fit in one request."""
    size = 0
    for index, op in enumerate(ops):
        # A character that is allowed in names takes at most three bytes. To encode every path would cost more.
        size += 3 * len(root) + 1 + (len(op.path) if op.path.isascii() else 3 * len(op.path))
        if isinstance(op, _WITH_DATA):
            size += len(op.data)
        if size > MAX_REQUEST:
            raise TooLargeError(op.path, index if len(ops) > 1 else None)
