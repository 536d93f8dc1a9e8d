"""The messages between the processes of a host come out as they went in, through JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aiokcc.errors import BadVersionError, CoordinationError, PartitionOwnedError, SessionLostError
from aiokcc.runtime.host.channel import decode_error, encode_error
from aiokcc.runtime.host.session import (
    decode_change,
    decode_node,
    decode_op,
    encode_change,
    encode_node,
    encode_op,
)
from aiokcc.stores.port import Change, Check, Children, Create, Created, Delete, Node, Op, Set

EVERY_BYTE = bytes(range(256))
NODE = Node("a/b", EVERY_BYTE, 3, 2**63 - 1, 1_700_000_000_000, 1_700_000_000_001)


def sent(data: Any) -> Any:
    return json.loads(json.dumps(data))


@pytest.mark.parametrize(
    "op",
    [
        Check("a", 3),
        Set("a", EVERY_BYTE, -1),
        Create("a", EVERY_BYTE),
        Create("a", ephemeral=True),
        Create("leader/c-", b"1", ephemeral=True, sequential=True),
        Delete("a", 0),
    ],
)
def test_an_operation(op: Op) -> None:
    assert decode_op(sent(encode_op(op))) == op


@pytest.mark.parametrize(
    "change",
    [
        Change("a/b", NODE),
        Change("a/b", None),
        Change("a", Children("a", ("b", "c"))),
        Created("a", name="b"),
        Created("a", name=None),
    ],
)
def test_a_change(change: Change) -> None:
    assert decode_change(sent(encode_change(change))) == change


def test_a_node() -> None:
    assert decode_node(sent(encode_node(NODE))) == NODE
    assert decode_node(sent(encode_node(None))) is None


def test_an_error_keeps_its_class_its_text_and_its_facts() -> None:
    for error in (SessionLostError("over"), BadVersionError("a/b", 2), PartitionOwnedError("t.0", "m-1", 5.0)):
        told = decode_error(sent(encode_error(error)))
        assert (type(told), str(told), vars(told)) == (type(error), str(error), vars(error))
    foreign = decode_error(sent(encode_error(RuntimeError("broken"))))
    assert (type(foreign), str(foreign)) == (CoordinationError, "RuntimeError: broken")
