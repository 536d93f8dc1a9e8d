"""The assignment of one topic: the contents of ``assignments/<topic>`` and ``state/<topic>``.

An assignment lists members with their partition numbers. A partition that is not listed is unassigned::

    worker-1:0,1,2;worker-2:3;

A state has three lines: the :class:`TopicState`, the assigned partitions that members do not hold yet, and the partitions that
members must release before they can be assigned to others::

    Closing
    toStart worker-3:4;
    toClose worker-1:2;

Both nodes of a topic are written together, in the transaction that writes the next generation. There is one exception: when the
last partition has started, only the state is written.
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

_LISTED: Final = re.compile(r"(?:[A-Za-z0-9._-]{1,100}:[0-9]{1,10}(?:,[0-9]{1,10})*;)*")
_ASSIGNMENT_FORM: Final = "members and their partition numbers like worker-1:0,1,2;worker-2:3;"
_STATE_FORM: Final = "three lines: Initial, Starting, Stable or Closing; 'toStart worker-1:0,1;'; 'toClose worker-2:3;'"


class TopicState(enum.StrEnum):
    """The state of one topic's assignment."""

    INITIAL = "Initial"
    """Nothing is assigned, at first or because nobody could take what was released. Ends when a member can: Starting."""
    STARTING = "Starting"
    """Some partitions are assigned to members that do not hold them yet. Ends when all are held: Stable."""
    STABLE = "Stable"
    """Members hold all that is assigned. Ends with a rebalance: Closing if owned partitions move, otherwise Starting."""
    CLOSING = "Closing"
    """Some partitions were revoked from members that still hold them. Ends when these are released: Starting; or, where nobody
    can take them, Stable, or Initial if nothing else is assigned."""


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """The assignment of one topic: partition numbers to names of members."""

    assignment: Mapping[int, str] = field(default_factory=dict)
    to_start: Mapping[int, str] = field(default_factory=dict)
    """Assigned partitions that are not known to be held yet; a part of the assignment."""
    to_close: Mapping[int, str] = field(default_factory=dict)
    """Revoked partitions that may still be held; not a part of the assignment."""

    @property
    def state(self) -> TopicState:
        """The state that follows from the three mappings."""
        if self.to_close:
            return TopicState.CLOSING
        if self.to_start:
            return TopicState.STARTING
        return TopicState.STABLE if self.assignment else TopicState.INITIAL

    def encode_state(self) -> bytes:
        """Returns the content of ``state/<topic>``."""
        start, close = _encode(self.to_start), _encode(self.to_close)
        return f"{self.state.value}\ntoStart {start}\ntoClose {close}".encode()

    @classmethod
    def decode(cls, assignment_path: str, assignment: bytes, state_path: str, state: bytes) -> TopicAssignment:
        """Returns the topic that the two nodes hold. Raises CorruptNodeError if one of them cannot be read.

        Where the nodes contradict each other, because somebody has edited one by hand, the assignment counts: entries of the
        state that do not agree with it are ignored. This is safe, because only the holder of a lock runs a partition.
        """
        assigned = decode_assignment(assignment_path, assignment)
        _, to_start, to_close = decode_state(state_path, state)
        return cls(
            assigned,
            {number: member for number, member in to_start.items() if assigned.get(number) == member},
            {number: member for number, member in to_close.items() if number not in assigned},
        )


def encode_assignment(assignment: Mapping[int, str]) -> bytes:
    """Returns the content of ``assignments/<topic>``. It is sorted, so that equal assignments are equal bytes."""
    return _encode(assignment).encode()


def decode_assignment(path: str, data: bytes) -> dict[int, str]:
    """Returns the member of each partition number. Raises CorruptNodeError if the node cannot be read."""
    try:
        return _decode(data.decode("ascii"))
    except ValueError:
        raise CorruptNodeError(path, data, _ASSIGNMENT_FORM) from None


def decode_state(path: str, data: bytes) -> tuple[TopicState, dict[int, str], dict[int, str]]:
    """Returns the state, the partitions to start and those to close. Raises CorruptNodeError if the node cannot be read."""
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
    """Returns the assignment of a topic with its partitions as keys."""
    return {Partition(topic, number): member for number, member in assignment.items()}


def _encode(assignment: Mapping[int, str]) -> str:
    by_member: dict[str, list[int]] = {}
    for number, member in sorted(assignment.items()):
        by_member.setdefault(member, []).append(number)
    return "".join(f"{member}:{','.join(map(str, numbers))};" for member, numbers in sorted(by_member.items()))


def _decode(text: str) -> dict[int, str]:
    if not _LISTED.fullmatch(text):
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
