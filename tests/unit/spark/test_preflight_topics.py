"""A driver whose topic was deleted in Kafka. Without Spark and without Kafka."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aiokcc.core.limit import Limit
from aiokcc.core.partitions import Partition
from aiokcc.errors import KafkaError, PartitionRevoked
from aiokcc.runtime.signal import Signal
from aiokcc.spark.preflight import explain_kafka_error

ONE, TWO = Partition("one", 0), Partition("two", 0)
ERROR = KafkaError("no answer within 10 s")


class Cluster:
    """Gives its answers in order, and repeats the last one."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    async def present(self, topics: Any) -> frozenset[Partition]:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return frozenset(answer)


async def look(cluster: Any, *, is_followed: bool = True, needed: Any = ()) -> None:
    member = SimpleNamespace(moved=Signal())
    participant: Any = SimpleNamespace(
        tracks={ONE: None, TWO: None}, limit=Limit((0,)), check=lambda: None, member=member
    )
    await explain_kafka_error(ERROR, cluster, participant, set(needed), "p", is_followed, again=0.001)


async def test_if_no_topic_is_gone_or_kafka_cannot_be_asked_nothing_is_raised() -> None:
    await look(Cluster([ONE, TWO]))
    await look(Cluster(KafkaError("away")))


@pytest.mark.parametrize("how", [{"is_followed": False}, {"needed": ["two"]}], ids=str)
async def test_a_deleted_topic_with_records_of_the_pipeline_is_an_error(how: dict[str, Any]) -> None:
    with pytest.raises(
        KafkaError, match="two was deleted under the pipeline 'p'.*give the pipeline another name"
    ) as told:
        await look(Cluster([ONE]), **how)
    assert told.value.__cause__ is ERROR


async def test_it_waits_until_the_leader_removes_a_deleted_topic_from_the_set(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TimeoutError):  # time is the event: it waits until somebody ends it
        await asyncio.wait_for(look(Cluster([ONE])), 0.2)
    assert caplog.messages == ["two was deleted; the leader takes it out of the set"]


async def test_waiting_ends_when_a_deleted_topic_exists_again() -> None:
    """A broker that has just started may not know all of its topics. Then the leader does not remove the topic from the set."""
    with pytest.raises(PartitionRevoked, match="two is there again"):
        await look(Cluster([ONE], [ONE], [ONE, TWO]))
