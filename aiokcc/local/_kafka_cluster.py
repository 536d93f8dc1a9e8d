"""A running Kafka cluster: its brokers, and the state of a partition among them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiokcc.errors import LocalServiceError

from ._kafka_metadata import ask_replicas

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ._kafka import Kafka
    from ._service import Service

_ASK_AGAIN: Final = 0.05
"""The pause before the brokers are asked again: Kafka does not notify its clients of such changes."""
_REQUEST_TIMEOUT: Final = 2.0


@dataclass(frozen=True, slots=True)
class Replicas:
    """The brokers of one partition, according to the cluster's metadata."""

    leader: Kafka | None
    """The broker that leads the partition; None while no replica may lead it."""
    all: tuple[Kafka, ...]
    """The brokers that have a replica, the preferred leader first."""
    in_sync: tuple[Kafka, ...]
    """The brokers whose replicas are in sync (ISR)."""


class KafkaCluster:
    """A running Kafka cluster: `brokers` and a `controller`, each of which can be killed, started again, frozen and thawed.

    `leader`, `replicas` and `wait_in_sync` ask the brokers every 50 ms, because Kafka does not notify its clients of such
    changes, until all brokers that serve give the expected answer. They can be called on any event loop.
    """

    def __init__(self, brokers: Sequence[Kafka], controller: Service) -> None:
        self.brokers: Final = tuple(brokers)
        self.controller: Final = controller

    @property
    def bootstrap(self) -> str:
        """All brokers as ``127.0.0.1:PORT,127.0.0.1:PORT``, for the ``bootstrap_servers`` of a client."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    async def leader(self, topic: str, partition: int = 0, *, deadline: float = 30) -> Kafka:
        """Return the broker that leads a partition. After its leader was killed, wait for the next one.

        The leader of ``__consumer_offsets`` is the coordinator of all groups. The leader of ``__transaction_state`` is the
        coordinator of all transactions. A frozen broker leads until the controller notices it.

        Raises LocalServiceError if no broker that serves leads the partition within `deadline` seconds.
        """
        replicas = await self._wait_for(
            topic,
            partition,
            "no leader that serves",
            lambda now: now.leader is not None and now.leader.serving,
            deadline,
        )
        assert replicas.leader is not None
        return replicas.leader

    async def replicas(self, topic: str, partition: int = 0, *, deadline: float = 30) -> Replicas:
        """Return the leader and the replicas of a partition.

        For about two seconds after a broker was killed or frozen, the answer may be the one from before.

        Raises LocalServiceError if there is no such partition, or a broker does not answer, within `deadline` seconds.
        """
        return await self._wait_for(topic, partition, "no replicas", lambda _: True, deadline)

    async def wait_in_sync(
        self, topic: str, partition: int = 0, *, count: int | None = None, deadline: float = 30
    ) -> Replicas:
        """Wait until `count` replicas of a partition are in sync, not more and not fewer; by default all. Return its replicas.

        Raises LocalServiceError if another number is in sync after `deadline` seconds.
        """
        missing = "a replica that is not in sync" if count is None else f"not {count} replicas in sync"
        return await self._wait_for(
            topic,
            partition,
            missing,
            lambda now: len(now.in_sync) == (len(now.all) if count is None else count),
            deadline,
        )

    async def _wait_for(
        self, topic: str, partition: int, otherwise: str, reached: Callable[[Replicas], bool], deadline: float
    ) -> Replicas:
        answer = "no broker answers"
        try:
            async with asyncio.timeout(deadline):
                while True:
                    now = await self._ask(topic, partition)
                    if isinstance(now, Replicas):
                        if reached(now):
                            return now
                        in_sync = [broker.id for broker in now.in_sync]
                        answer = f"leader {now.leader.id if now.leader else None}, in sync {in_sync}"
                    else:
                        answer = now
                    await asyncio.sleep(_ASK_AGAIN)
        except TimeoutError:
            raise LocalServiceError(
                f"partition {partition} of {topic} still has {otherwise} after {deadline:g} s: {answer}"
            ) from None

    async def _ask(self, topic: str, partition: int) -> Replicas | str:
        """Ask all brokers that serve. Return the partition's replicas if they agree, or else why the replicas are not known.

        A broker that was frozen has old metadata for a moment, and so has a broker that learns of a change after the others.
        """
        asked = [broker for broker in self.brokers if broker.serving and not broker.frozen]
        if not asked:
            return "no broker serves"
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT):
                questions = [ask_replicas(broker.host, broker.port, topic, partition) for broker in asked]
                answers = set(await asyncio.gather(*questions))
        except (OSError, EOFError, TimeoutError) as error:
            return f"a broker does not answer ({error!r})"
        if len(answers) > 1:
            return "the brokers do not agree"
        (answer,) = answers
        if answer is None:
            return "there is no such partition"
        brokers = {broker.id: broker for broker in self.brokers}
        in_sync = tuple(brokers[number] for number in sorted(answer.in_sync))
        return Replicas(brokers.get(answer.leader), tuple(brokers[number] for number in answer.all), in_sync)
