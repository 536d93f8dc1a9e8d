"""The names of the nodes, relative to the group's root.

=============================  =====================  ==================================================================
node                           kind                   content
=============================  =====================  ==================================================================
``coordinator``                persistent             the limit
``period``                     persistent             the operator's request
``generation``                 persistent             the one fence: ``3 worker-1 took office``
``run``                        persistent             what the group agreed on, as JSON
``topic-partitions``           persistent             ``orders:0,1,2;payments:0,1;``
``progress/<member>``          ephemeral              the member's report
``leader/c-<mark>-<number>``   ephemeral, sequential  candidates; the leader's tells its epoch
``ids/<member>``               ephemeral              registration
``owners/<topic>/<number>``    ephemeral              the lock of a partition
``offsets/<topic>/<number>``   persistent             the committed offset, where offsets are kept in the store
``cuts/<slot>``                persistent             a ring of the last cuts
``assignments/<topic>``        persistent             who is to run what, in a managed group: ``worker-1:0,1;worker-2:2;``
``state/<topic>``              persistent             where the topic's assignment stands: toStart, toClose
``isolated/<member>``          persistent             an operator has set this member apart
=============================  =====================  ==================================================================
"""

from __future__ import annotations

from typing import Final

from aiokcc.core.partitions import Partition

__all__ = [
    "ASSIGNMENTS",
    "COORDINATOR",
    "CUTS",
    "GENERATION",
    "IDS",
    "ISOLATED",
    "LEADER",
    "OFFSETS",
    "OWNERS",
    "PERIOD",
    "PROGRESS",
    "RUN",
    "STATE",
    "TOPIC_PARTITIONS",
    "assignment",
    "cut",
    "isolated",
    "member",
    "offset",
    "owner",
    "progress",
    "state",
]

COORDINATOR: Final = "coordinator"
PERIOD: Final = "period"
GENERATION: Final = "generation"
RUN: Final = "run"
TOPIC_PARTITIONS: Final = "topic-partitions"
PROGRESS: Final = "progress"
LEADER: Final = "leader"
IDS: Final = "ids"
OWNERS: Final = "owners"
OFFSETS: Final = "offsets"
CUTS: Final = "cuts"
ASSIGNMENTS: Final = "assignments"
STATE: Final = "state"
ISOLATED: Final = "isolated"


def progress(name: str) -> str:
    """The report of one incarnation of a member."""
    return f"{PROGRESS}/{name}"


def member(name: str) -> str:
    """The registration of one incarnation of a member."""
    return f"{IDS}/{name}"


def owner(partition: Partition) -> str:
    """The lock of a partition."""
    return f"{OWNERS}/{partition.topic}/{partition.number}"


def offset(partition: Partition) -> str:
    """The committed offset of a partition."""
    return f"{OFFSETS}/{partition.topic}/{partition.number}"


def cut(number: int, size: int) -> str:
    """The slot of the ring that holds the cut with this number."""
    return f"{CUTS}/{number % size}"


def assignment(topic: str) -> str:
    """Who is to run what of a topic."""
    return f"{ASSIGNMENTS}/{topic}"


def state(topic: str) -> str:
    """Where a topic's assignment stands."""
    return f"{STATE}/{topic}"


def isolated(name: str) -> str:
    """Says that a member, whichever incarnation, is to be given nothing."""
    return f"{ISOLATED}/{name}"
