"""A real Kafka on loopback: one broker, or a cluster.

A single broker is one KRaft node that is broker and controller. A cluster has a controller of its own beside its brokers. So
any broker may be killed, even all of them, and the controller still elects leaders and shrinks the sets of in-sync replicas.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, overload

from aiokcc.errors import LocalServiceError, UsageError

from ._jars import JarSet, fetch, ignore_progress
from ._java import find_java
from ._kafka_cluster import KafkaCluster
from ._kafka_node import KafkaNode, configure, format_directories, replication, with_logging
from ._process import Process, free_ports, gather_or_cancel, make_directory, supervise
from ._service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from ._process import SupervisorClient

VERSION: Final = "4.2.0"
MINIMUM_JAVA: Final = 17

# kafka_2.13, its runtime dependencies, and log4j-slf4j-impl: without a binding for slf4j the broker logs no errors.
JARS: Final = JarSet(
    f"kafka-{VERSION}",
    (
        "at.yawk.lz4:lz4-java:1.10.1",
        "com.dynatrace.hash4j:hash4j:0.22.0",
        "com.fasterxml.jackson.core:jackson-annotations:2.19.2",
        "com.fasterxml.jackson.core:jackson-core:2.19.2",
        "com.fasterxml.jackson.core:jackson-databind:2.19.2",
        "com.fasterxml.jackson.dataformat:jackson-dataformat-csv:2.19.2",
        "com.fasterxml.jackson.dataformat:jackson-dataformat-yaml:2.19.2",
        "com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.19.2",
        "com.github.ben-manes.caffeine:caffeine:3.2.0",
        "com.github.luben:zstd-jni:1.5.6-10",
        "com.google.re2j:re2j:1.8",
        "com.typesafe.scala-logging:scala-logging_2.13:3.9.6",
        "com.yammer.metrics:metrics-core:2.2.0",
        "commons-beanutils:commons-beanutils:1.11.0",
        "commons-collections:commons-collections:3.2.2",
        "commons-digester:commons-digester:2.1",
        "commons-logging:commons-logging:1.3.5",
        "commons-validator:commons-validator:1.10.1",
        "net.sf.jopt-simple:jopt-simple:5.0.4",
        "net.sourceforge.argparse4j:argparse4j:0.7.0",
        f"org.apache.kafka:kafka-clients:{VERSION}",
        f"org.apache.kafka:kafka-coordinator-common:{VERSION}",
        f"org.apache.kafka:kafka-group-coordinator-api:{VERSION}",
        f"org.apache.kafka:kafka-group-coordinator:{VERSION}",
        f"org.apache.kafka:kafka-metadata:{VERSION}",
        f"org.apache.kafka:kafka-raft:{VERSION}",
        f"org.apache.kafka:kafka-server-common:{VERSION}",
        f"org.apache.kafka:kafka-server:{VERSION}",
        f"org.apache.kafka:kafka-share-coordinator:{VERSION}",
        f"org.apache.kafka:kafka-storage-api:{VERSION}",
        f"org.apache.kafka:kafka-storage:{VERSION}",
        f"org.apache.kafka:kafka-tools-api:{VERSION}",
        f"org.apache.kafka:kafka-transaction-coordinator:{VERSION}",
        f"org.apache.kafka:kafka_2.13:{VERSION}",
        "org.apache.logging.log4j:log4j-api:2.25.3",
        "org.apache.logging.log4j:log4j-core:2.25.3",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.3",
        "org.bitbucket.b_c:jose4j:0.9.6",
        "org.hdrhistogram:HdrHistogram:2.2.2",
        "org.jspecify:jspecify:1.0.0",
        "org.pcollections:pcollections:4.0.2",
        "org.scala-lang:scala-library:2.13.17",
        "org.scala-lang:scala-reflect:2.13.17",
        "org.slf4j:slf4j-api:1.7.36",
        "org.xerial.snappy:snappy-java:1.1.10.7",
        "org.yaml:snakeyaml:2.4",
    ),
    megabytes=44,
)

# Only the first compiler (C1), which starts sooner. Three starts each, in turn, on two busy cores: ready after 2.9 to 3.7 s
# with 2.6 to 3.1 s of CPU (both compilers: 4.1 to 5.0 s with 4.3 to 4.9 s).
_JAVA_OPTIONS: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_READY: Final = r"\] Kafka Server started"
_CONTROLLER: Final = 100  # the id of a cluster's controller; the brokers have smaller ones


class Kafka(Service):
    """A running Kafka broker. It keeps its port and its data when it is restarted."""

    def __init__(self, process: Process, port: int, deadline: float, number: int) -> None:
        super().__init__(process, port, deadline)
        self.id: Final = number
        """The broker's id (``node.id``): 1 for a single broker; the brokers of a cluster count from 1."""

    @property
    def bootstrap(self) -> str:
        """``127.0.0.1:PORT``, for the ``bootstrap_servers`` of a client."""
        return f"{self.host}:{self.port}"


@overload
def kafka(
    *,
    brokers: None = None,
    port: int | None = None,
    data_dir: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    heap: str | None = None,
    deadline: float = 90,
    progress: Callable[[str], None] | None = None,
) -> AbstractAsyncContextManager[Kafka]: ...


@overload
def kafka(
    *,
    brokers: int,
    port: int | None = None,
    data_dir: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    heap: str | None = None,
    deadline: float = 90,
    progress: Callable[[str], None] | None = None,
) -> AbstractAsyncContextManager[KafkaCluster]: ...


@overload
def kafka(
    *,
    brokers: int | None,
    port: int | None = None,
    data_dir: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    heap: str | None = None,
    deadline: float = 90,
    progress: Callable[[str], None] | None = None,
) -> AbstractAsyncContextManager[Kafka | KafkaCluster]: ...


def kafka(
    *,
    brokers: int | None = None,
    port: int | None = None,
    data_dir: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    heap: str | None = None,
    deadline: float = 90,
    progress: Callable[[str], None] | None = None,
) -> AbstractAsyncContextManager[Kafka | KafkaCluster]:
    """Start a real Kafka on 127.0.0.1. It ends when the context ends, or when this process ends for any reason.

    Its jars are fetched once from Maven Central (44 MB) and kept in the user's cache; after that a broker starts in about
    three seconds. It is for tests, demos and trials: unless `settings` say otherwise, topics are not created automatically,
    records of any timestamp are kept, and no password protects it.

    Without `brokers` the context gives a single broker, `Kafka`. With `brokers` it gives a `KafkaCluster`, whose brokers can be
    killed, started again, frozen and thawed one by one; three start in about six seconds on two cores. The default number of
    replicas is three, or the number of brokers if that is less. A write with ``acks="all"`` needs all of them but one in sync.

    Args:
        brokers: the number of brokers of a cluster; by default a single broker that needs no controller beside it.
        port: the port for clients; the other brokers of a cluster use the next ports. By default free ports.
        data_dir: the directory of data and logs, which is kept; by default a temporary one that is removed at the end.
        settings: broker settings that are added to the default ones or replace them, such as ``{"num.partitions": 3}``.
        heap: the maximum size of each Java heap; by default 512m for a single broker, 256m in a cluster.
        deadline: seconds that a broker may take to start; fetching jars does not count.
        progress: a function that is called with lines of text while jars are fetched.

    Raises:
        LocalServiceError: there is no Java, the jars cannot be fetched, or a broker did not start; in the last case the
            message has the end of its log.
        UsageError: an argument is invalid, or `data_dir` has the data of another number of brokers.
    """
    if brokers is None:
        return _run_one(port, data_dir, settings or {}, heap or "512m", deadline, progress)
    return _run_cluster(brokers, port, data_dir, settings or {}, heap or "256m", deadline, progress)


@contextlib.asynccontextmanager
async def _run_one(
    port: int | None,
    data_dir: str | Path | None,
    settings: Mapping[str, object],
    heap: str,
    deadline: float,
    progress: Callable[[str], None] | None,
) -> AsyncIterator[Kafka]:
    def plan(home: Path) -> list[KafkaNode]:
        if (home / "controller").exists():
            raise UsageError(f"{home} has the data of a cluster: it cannot be used for a single broker")
        broker_port, controller_port = free_ports(2)
        return [KafkaNode("kafka", 1, home, port=port or broker_port, controller_port=controller_port)]

    _check_port(port, 1)
    async with _run(plan, port, data_dir, {**replication(1), **settings}, heap, deadline, progress) as (broker,):
        assert isinstance(broker, Kafka)
        yield broker


@contextlib.asynccontextmanager
async def _run_cluster(
    brokers: int,
    port: int | None,
    data_dir: str | Path | None,
    settings: Mapping[str, object],
    heap: str,
    deadline: float,
    progress: Callable[[str], None] | None,
) -> AsyncIterator[KafkaCluster]:
    def plan(home: Path) -> list[KafkaNode]:
        _check_directory(home, brokers)
        controller_port, *ports = free_ports(1 + brokers)
        ports = ports if port is None else list(range(port, port + brokers))
        nodes = [
            KafkaNode("kafka-controller", _CONTROLLER, home / "controller", port=None, controller_port=controller_port)
        ]
        for number, broker_port in enumerate(ports, start=1):
            nodes.append(
                KafkaNode(f"kafka-{number}", number, home / f"broker-{number}", broker_port, controller_port=None)
            )
        return nodes

    if not 1 <= brokers < _CONTROLLER:
        raise UsageError(f"brokers must be between 1 and {_CONTROLLER - 1}, not {brokers}")
    _check_port(port, brokers)
    settings = {**replication(min(brokers, 3)), **settings}
    async with _run(plan, port, data_dir, settings, heap, deadline, progress) as (controller, *services):
        yield KafkaCluster([broker for broker in services if isinstance(broker, Kafka)], controller)


@contextlib.asynccontextmanager
async def _run(
    plan: Callable[[Path], list[KafkaNode]],
    port: int | None,
    data_dir: str | Path | None,
    settings: Mapping[str, object],
    heap: str,
    deadline: float,
    progress: Callable[[str], None] | None,
) -> AsyncIterator[list[Service]]:
    """Start the nodes that `plan` returns for the directory of data; it is called again if a port was taken meanwhile."""
    java = await asyncio.to_thread(find_java, MINIMUM_JAVA)
    jars = await fetch(JARS, java, progress or ignore_progress)
    jvm = [java, f"-Xmx{heap}", *_JAVA_OPTIONS, "-cp", os.pathsep.join(map(str, jars))]
    home, remove = make_directory("kafka", data_dir)
    async with supervise(remove) as supervisor:
        attempts = 1 if port is not None else 5
        while True:
            attempts -= 1
            nodes = plan(home)
            configs = configure(nodes, settings)
            await format_directories(supervisor, jvm, nodes, configs, deadline)
            services = [_service(supervisor, jvm, node, configs[node.id], deadline) for node in nodes]
            try:
                await gather_or_cancel(*(service.start() for service in services))
                break
            except LocalServiceError as error:
                # Another process took a port after we had found it free: try others.
                if attempts <= 0 or "Address already in use" not in error.log:
                    raise
                await asyncio.gather(*(service.kill() for service in services))
        yield services


def _check_port(port: int | None, brokers: int) -> None:
    last = 65_536 - brokers
    if port is not None and not 0 < port <= last:
        raise UsageError(f"port must be between 1 and {last}, not {port}")


def _check_directory(home: Path, brokers: int) -> None:
    """Raise UsageError if the directory has the data of a single broker or of more brokers."""
    held = "a single broker" if (home / "data").exists() else ""
    if (home / f"broker-{brokers + 1}").exists():
        held = f"{sum(1 for _ in home.glob('broker-*'))} brokers"
    if held:
        raise UsageError(f"{home} has the data of {held}: it cannot be used for a cluster of {brokers}")


def _service(supervisor: SupervisorClient, jvm: list[str], node: KafkaNode, config: Path, deadline: float) -> Service:
    command = [*with_logging(jvm, node), "kafka.Kafka", str(config)]
    process = Process(supervisor, node.name, command, node.directory / "kafka.log", _READY)
    if node.port is not None:
        return Kafka(process, node.port, deadline, node.id)
    assert node.controller_port is not None
    return Service(process, node.controller_port, deadline)
