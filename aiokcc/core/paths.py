"""The paths of the nodes, relative to the group's root.

=============================  =====================  ==================================================================
node                           kind                   content
=============================  =====================  ==================================================================
``coordinator``                persistent             the limit
``limits/<version>:<limit>:…`` persistent             the last limits, by their names: what members are told of
``period``                     persistent             the operator's request
``generation``                 persistent             the fence: ``3 worker-1 took office``
``run``                        persistent             the agreed settings of the run, as JSON
``topic-partitions``           persistent             ``orders:0,1,2;payments:0,1;``
``progress/<member session>``  ephemeral              the report of the member in this session
``leader/c-<mark>-<number>``   ephemeral, sequential  candidates; the leader's holds its epoch
``ids/<member session>``       ephemeral              registration
``owners/<topic>/<number>``    ephemeral              the lock of a partition: the member session that holds it
``offsets/<topic>/<number>``   persistent             the committed offset, if offsets are kept in the store
``cuts/<slot>``                persistent             a ring of the last cuts
``assignments/<topic>``        persistent             the assignment, in a managed group: ``worker-1:0,1;worker-2:2;``
``state/<topic>``              persistent             the state of the assignment: toStart, toClose
``isolated/<member>``          persistent             an operator has isolated this member, in all its sessions
``pipelines/<name>/…``         persistent             the checkpoint of a Spark pipeline
``pipelines/<name>/restating`` ephemeral              a restatement of the pipeline is at work
=============================  =====================  ==================================================================
"""

from __future__ import annotations

import re
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
    "LIMITS",
    "OFFSETS",
    "OWNERS",
    "PERIOD",
    "PIPELINES",
    "PROGRESS",
    "RUN",
    "STATE",
    "TOPIC_PARTITIONS",
    "assignment",
    "cut",
    "is_session_of",
    "isolated",
    "limit",
    "member",
    "offset",
    "owner",
    "progress",
    "restating",
    "state",
]

COORDINATOR: Final = "coordinator"
PERIOD: Final = "period"
GENERATION: Final = "generation"
RUN: Final = "run"
TOPIC_PARTITIONS: Final = "topic-partitions"
PROGRESS: Final = "progress"
LEADER: Final = "leader"
LIMITS: Final = "limits"
IDS: Final = "ids"
OWNERS: Final = "owners"
OFFSETS: Final = "offsets"
CUTS: Final = "cuts"
ASSIGNMENTS: Final = "assignments"
STATE: Final = "state"
ISOLATED: Final = "isolated"
PIPELINES: Final = "pipelines"
_SESSION: Final = re.compile(r"--?[0-9a-f]+")


def progress(name: str) -> str:
    """Returns the path of the report of one member session of a member."""
    return f"{PROGRESS}/{name}"


def limit(name: str) -> str:
    """Returns the path of the announcement of a limit."""
    return f"{LIMITS}/{name}"


def member(name: str) -> str:
    """Returns the path of the registration of one member session of a member."""
    return f"{IDS}/{name}"


def is_session_of(name: str, member: str) -> bool:
    """Returns whether this is the name of a member session of a member: ``MEMBER-SESSION``, the session in hexadecimal."""
    return name.startswith(member) and _SESSION.fullmatch(name, len(member)) is not None


def owner(partition: Partition) -> str:
    """Returns the path of the lock of a partition."""
    return f"{OWNERS}/{partition.topic}/{partition.number}"


def offset(partition: Partition) -> str:
    """Returns the path of the committed offset of a partition."""
    return f"{OFFSETS}/{partition.topic}/{partition.number}"


def cut(number: int, size: int) -> str:
    """Returns the path of the slot in the ring of cuts that holds the cut with this number."""
    return f"{CUTS}/{number % size}"


def assignment(topic: str) -> str:
    """Returns the path of the assignment of a topic."""
    return f"{ASSIGNMENTS}/{topic}"


def state(topic: str) -> str:
    """Returns the path of the state of a topic's assignment."""
    return f"{STATE}/{topic}"


def isolated(name: str) -> str:
    """Returns the path of the node that isolates a member, in all its member sessions."""
    return f"{ISOLATED}/{name}"


def restating(pipeline: str) -> str:
    """Returns the path of the node that exists while a pipeline is restated."""
    return f"{PIPELINES}/{pipeline}/restating"
