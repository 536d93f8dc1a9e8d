"""All errors that aiokcc raises on purpose, in one tree.

::

    AiokccError
    ├── UsageError (also a ValueError)      an error of the caller: the message says what would be right
    │   ├── GroupMismatchError              this member's settings are not those of the running group
    │   ├── MemberExistsError               another live process has this member's id
    │   ├── NoGroupError                    there is no group under the root
    │   ├── PartitionError                  a partition outside the agreed set, or opened twice
    │   └── PipelineMismatchError           a Spark pipeline was started before with another definition
    ├── CoordinationError                   a problem outside this process
    │   ├── CorruptNodeError                the content of a node cannot be read
    │   │   └── OtherFormatError            an older or newer version of aiokcc founded the group
    │   ├── MissingNodeError                a node of the protocol was deleted while the group ran
    │   ├── KafkaError                      the broker does not answer, or the log has changed
    │   │   └── KafkaRefusedError           the broker refuses us: credentials, or security_protocol
    │   ├── PartitionOwnedError             another member holds the partition's lock
    │   ├── PositionLostError               another member ran the partition meanwhile: seek to ``offset`` and go on
    │   ├── SparkJobError                   a job failed too often; the limit has not passed its periods
    │   ├── FencedError                     a later driver of the same pipeline has begun
    │   ├── PipelineBusyError               a driver of the pipeline, or another restatement, is at work
    │   ├── LocalServiceError               a service of `aiokcc.local` cannot start, or has ended
    │   └── StoreError
    │       ├── StoreUnreachableError       no server answered in time
    │       ├── SessionLostError            the session is over; what was decided in it cannot be written
    │       ├── OutcomeUnknownError         a write may or may not have been applied
    │       ├── NoNodeError  NodeExistsError  BadVersionError  NotEmptyError  EphemeralParentError
    │       └── NoAuthError  TooLargeError
    ├── RecordError                         one record cannot be processed: topic, partition, offset
    │   ├── PoisonTimestampError            its timestamp is missing, negative, or absurdly far ahead
    │   └── HandlerError                    the handler raised; the cause is chained
    ├── PartitionRevoked                    the partition was revoked: this member starts no further record on it
    └── RunEnded                            the replay has reached its end: nothing more will open

Facts are attributes (``path``, ``version``, ``member`` …), so that a program need not read the message.
"""

from __future__ import annotations

__all__ = [
    "AiokccError",
    "BadVersionError",
    "CoordinationError",
    "CorruptNodeError",
    "EphemeralParentError",
    "FencedError",
    "GroupMismatchError",
    "HandlerError",
    "KafkaError",
    "KafkaRefusedError",
    "LocalServiceError",
    "MemberExistsError",
    "MissingNodeError",
    "NoAuthError",
    "NoGroupError",
    "NoNodeError",
    "NodeExistsError",
    "NotEmptyError",
    "OtherFormatError",
    "OutcomeUnknownError",
    "PartitionError",
    "PartitionOwnedError",
    "PartitionRevoked",
    "PipelineBusyError",
    "PipelineMismatchError",
    "PoisonTimestampError",
    "PositionLostError",
    "RecordError",
    "RunEnded",
    "SessionLostError",
    "SparkJobError",
    "StoreError",
    "StoreUnreachableError",
    "TooLargeError",
    "UsageError",
]


class AiokccError(Exception):
    """The root of all errors of aiokcc."""


class UsageError(AiokccError, ValueError):
    """The caller passed an invalid argument. Nothing was changed."""


class GroupMismatchError(UsageError):
    """This member brings other settings than the group that is running under the same root."""


class NoGroupError(UsageError):
    """There is no group under the root. A member founds one when it connects."""


class MemberExistsError(UsageError):
    """Another process that is alive takes part under the same member id."""

    def __init__(self, member: str, other: str, where: str) -> None:
        super().__init__(
            f"the member id {member!r} is in use in the group under {where}, by {other}, which is alive; "
            f"stop that process, or give this one another id"
        )
        self.member, self.other = member, other


class PartitionError(UsageError):
    """The partition is not in the agreed set, or this member has opened it already."""


class PipelineMismatchError(UsageError):
    """A pipeline of this name was started before with other topics, another period or another sink."""


class CoordinationError(AiokccError):
    """A problem outside this process."""


class CorruptNodeError(CoordinationError):
    """A node's content cannot be read. It never moves the limit."""

    def __init__(self, path: str, content: bytes, expected: str) -> None:
        shown = repr(content[:60])[1:] + (f" … ({len(content)} bytes)" if len(content) > 60 else "")
        super().__init__(f"{path} holds {shown}; expected {expected}")
        self.path, self.content, self.expected = path, content, expected


class OtherFormatError(CorruptNodeError):
    """The group was founded by a version of aiokcc whose nodes have another format."""

    def __init__(self, path: str, content: bytes, found: int, ours: int) -> None:
        super().__init__(path, content, f"format {ours}")
        older = "an older" if found < ours else "a newer"
        message = f"{path} was written by {older} version of aiokcc: its format is {found}, and this version has {ours}"
        self.args = (f"{message}; let all members run the same version, or use another root",)
        self.found, self.ours = found, ours


class MissingNodeError(CoordinationError):
    """A node of the protocol was deleted while the group was running."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} was deleted while the group was running; restart the group under a new root")
        self.path = path


class PartitionOwnedError(CoordinationError):
    """Another member holds the lock of a partition."""

    def __init__(self, partition: str, owner: str, waited: float) -> None:
        super().__init__(
            f"{partition} is held by {owner} and was not released within {waited:g} s; "
            f"stop that member, or give this one other partitions"
        )
        self.partition, self.owner = partition, owner


class PositionLostError(CoordinationError):
    """Another member ran the partition while this one had lost its lock, and closed periods of it.

    ``offset`` is the first offset that no closed period holds; None if that member gave no offsets. Seek there, and go on in
    the same gate. It is raised once, before any record starts.
    """

    def __init__(self, partition: str, offset: int | None) -> None:
        where = (
            "the last cut holds no offset for it, so go on from the offset that was committed last"
            if offset is None
            else f"go on at offset {int(offset)}"
        )
        super().__init__(
            f"{partition} was run by another member while this one had lost its lock, and periods have closed since; {where}"
        )
        self.partition, self.offset = partition, offset


class SparkJobError(CoordinationError):
    """A Spark job failed too often. ``start`` and ``end`` bound its periods, which the limit has not passed."""

    def __init__(self, message: str, pipeline: str, start: int, end: int) -> None:
        super().__init__(message)
        self.pipeline, self.start, self.end = pipeline, start, end


class FencedError(CoordinationError):
    """Another driver of the same pipeline has begun since. This one must not publish any more."""


class PipelineBusyError(CoordinationError):
    """A driver of the pipeline, or another restatement, is still at work after the wait. Nothing was changed."""

    def __init__(self, pipeline: str, what: str, waited: float) -> None:
        super().__init__(
            f"the pipeline {pipeline!r} {what or 'is busy'}, also after {waited:g} s; stop that one, or wait for its end. "
            f"Nothing was changed"
        )
        self.pipeline = pipeline


class LocalServiceError(CoordinationError):
    """A service of `aiokcc.local` cannot be started, or has ended. ``log`` is the end of its log, if it has one."""

    def __init__(self, problem: str, log: str = "") -> None:
        super().__init__(f"{problem}\n--- the end of its log ---\n{log}" if log else problem)
        self.log = log


class StoreError(CoordinationError):
    """The store answered with an error, or not at all."""


class StoreUnreachableError(StoreError):
    """No server of the store answered in time."""


class SessionLostError(StoreError):
    """The session has expired, was closed, or may have expired by our own clock."""


class OutcomeUnknownError(StoreError):
    """The connection broke before the answer, and what the store holds now does not tell whether the write was applied."""


class NodeError(StoreError):
    """An operation on one node failed."""

    reason = "failed"

    def __init__(self, path: str, index: int | None = None) -> None:
        where = f" (operation {index} of the transaction)" if index is not None else ""
        super().__init__(f"{path}: {self.reason}{where}")
        self.path, self.index = path, index


class NoNodeError(NodeError):
    """The node does not exist, or the parent of a node to create does not."""

    reason = "there is no such node"


class NodeExistsError(NodeError):
    """The node to create is there already."""

    reason = "the node exists already"


class BadVersionError(NodeError):
    """The node has been written since it was read."""

    reason = "the node has another version than the one expected"


class NotEmptyError(NodeError):
    """The node to delete has children."""

    reason = "the node has children"


class EphemeralParentError(NodeError):
    """The parent of the node to create is ephemeral, and those cannot have children."""

    reason = "its parent is an ephemeral node, which cannot have children"


class NoAuthError(NodeError):
    """The store's access list denies the operation."""

    reason = "no permission; give the store the credentials that the node's access list names"


class TooLargeError(NodeError):
    """The request is larger than the store takes (about 1 MB for a whole transaction)."""

    reason = "the request is larger than the store takes"


class KafkaError(CoordinationError):
    """The broker does not answer, refuses us, or its log is no longer what the run started on."""


class KafkaRefusedError(KafkaError):
    """A broker is there, but refuses us: a wrong password, or a listener for another ``security_protocol``."""


class RecordError(AiokccError):
    """One record cannot be processed. The limit has not passed it."""

    def __init__(self, message: str, topic: str, partition: int, offset: int) -> None:
        super().__init__(f"{topic}.{partition} at offset {offset}: {message}")
        self.topic, self.partition, self.offset = topic, partition, offset


class PoisonTimestampError(RecordError):
    """The record's timestamp is missing, negative, or absurdly far ahead."""


class HandlerError(RecordError):
    """The handler raised while it had this record; what it raised is the cause. Or it has returned a generator for it."""


class PartitionRevoked(AiokccError):  # noqa: N818 - not a fault: what a partition's task ends with
    """The partition was revoked from this member, or is not assigned to it. No further record starts here.

    The leader assigns it to another member once it is released, if one can take it.
    """


class RunEnded(AiokccError):  # noqa: N818 - not a fault: what a loop over a bounded run ends with
    """The run has reached its end. ``async with group.gate(...)`` swallows it, so that a consuming loop ends."""
