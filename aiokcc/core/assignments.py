"""Who runs which partitions of a topic, and what is on its way: the contents of ``assignments/<topic>`` and ``state/<topic>``.

An assignment is a line of members with their partition numbers; a partition that stands nowhere is nobody's::

    worker-1:0,1,2;worker-2:3;

A state is three lines: the topic's state in :mod:`~aiokcc.core.rebalance`, the partitions that were assigned to members that do
not hold their locks yet, and the partitions that members must release before they can be assigned to others::

    Closing
    toStart worker-3:4;
    toClose worker-1:2;

The two nodes of a topic are only ever written together, in the transaction that moves the generation on; only that the last
partition has started is written to the state alone.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from aiokcc.core.partitions import MAX_NUMBER, Partition
from aiokcc.errors import CorruptNodeError

__all__ = ["TopicAssignment", "TopicState", "decode_assignment", "decode_state", "encode_assignment"]

_SHARES: Final = re.compile(r"(?:[A-Za-z0-9._-]{1,100}:[0-9]{1,10}(?:,[0-9]{1,10})*;)*")
_ASSIGNMENT_FORM: Final = "members and their partition numbers like worker-1:0,1,2;worker-2:3;"
_STATE_FORM: Final = "three lines: Initial, Starting, Stable or Closing; 'toStart worker-1:0,1;'; 'toClose worker-2:3;'"


class TopicState(enum.Enum):
    """Where a topic stands."""

    INITIAL = "Initial"
    """Nobody has been given anything. Ends when the join window closes: Starting."""
    STARTING = "Starting"
    """Some partitions have been given to members that do not hold them yet. Ends when they do: Stable."""
    STABLE = "Stable"
    """Everything that was given is held. Ends with a rebalance: Closing where partitions move, Starting where they are free."""
    CLOSING = "Closing"
    """Some partitions were taken from members that still hold them. Ends when they have let go: Starting."""


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """One topic of the group. Partitions are numbers, members are names."""

    assignment: Mapping[int, str] = field(default_factory=dict)
    to_start: Mapping[int, str] = field(default_factory=dict)
    """Given and not held yet, as far as is known; part of the assignment."""
    to_close: Mapping[int, str] = field(default_factory=dict)
    """Taken away and perhaps still held; not part of the assignment."""

    @property
    def state(self) -> TopicState:
        """Where it stands."""
        if self.to_close:
            return TopicState.CLOSING
        if self.to_start:
            return TopicState.STARTING
        return TopicState.STABLE if self.assignment else TopicState.INITIAL

    def encode_state(self) -> bytes:
        """The content of ``state/<topic>``."""
        start, close = _encode(self.to_start), _encode(self.to_close)
        return f"{self.state.value}\ntoStart {start}\ntoClose {close}".encode()

    @classmethod
    def decode(cls, assignment_path: str, assignment: bytes, state_path: str, state: bytes) -> TopicAssignment:
        """A topic from its two nodes; CorruptNodeError for the one that holds something else.

        Somebody may have edited one of them by hand. Then the assignment counts: whatever the state says of partitions that the
        assignment has elsewhere is left out. The locks keep apart what must be kept apart.
        """
        given = decode_assignment(assignment_path, assignment)
        _, to_start, to_close = decode_state(state_path, state)
        return cls(
            given,
            {number: member for number, member in to_start.items() if given.get(number) == member},
            {number: member for number, member in to_close.items() if number not in given},
        )


def encode_assignment(assignment: Mapping[int, str]) -> bytes:
    """The content of ``assignments/<topic>``, sorted, so that equal assignments are equal bytes."""
    return _encode(assignment).encode()


def decode_assignment(path: str, data: bytes) -> dict[int, str]:
    """What the node holds; CorruptNodeError if it is something else."""
    try:
        return _decode(data.decode("ascii"))
    except ValueError:
        raise CorruptNodeError(path, data, _ASSIGNMENT_FORM) from None


def decode_state(path: str, data: bytes) -> tuple[TopicState, dict[int, str], dict[int, str]]:
    """What the node holds: the state, what is to start, what is to close; CorruptNodeError if it is something else."""
    try:
        word, start, close = data.decode("ascii").split("\n")
        if not start.startswith("toStart ") or not close.startswith("toClose "):
            raise ValueError(data)
        state = TopicState(word)
        to_start, to_close = _decode(start[8:]), _decode(close[8:])
        known = TopicState.CLOSING if to_close else TopicState.STARTING if to_start else None
        if (known or state) is not state or (known is None and state in {TopicState.CLOSING, TopicState.STARTING}):
            raise ValueError(data)
        if to_start.keys() & to_close.keys():
            raise ValueError(data)
    except ValueError:
        raise CorruptNodeError(path, data, _STATE_FORM) from None
    return state, to_start, to_close


def by_partition(topic: str, assignment: Mapping[int, str]) -> dict[Partition, str]:
    """The assignment of a topic by partition."""
    return {Partition(topic, number): member for number, member in assignment.items()}


def _encode(assignment: Mapping[int, str]) -> str:
    by_member: dict[str, list[int]] = {}
    for number, member in sorted(assignment.items()):
        by_member.setdefault(member, []).append(number)
    return "".join(f"{member}:{','.join(map(str, numbers))};" for member, numbers in sorted(by_member.items()))


def _decode(text: str) -> dict[int, str]:
    if not _SHARES.fullmatch(text):
        raise ValueError(text)
    result: dict[int, str] = {}
    members: set[str] = set()
    for part in text.split(";")[:-1]:
        member, _, numbers = part.partition(":")
        if member in members:
            raise ValueError(member)
        members.add(member)
        for number in map(int, numbers.split(",")):
            if number in result or number > MAX_NUMBER:
                raise ValueError(number)
            result[number] = member
    return result
