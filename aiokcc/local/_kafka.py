"""A real Kafka broker on loopback: one KRaft node that is broker and controller."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiokcc.errors import LocalServiceError, UsageError

from ._jars import JarSet, fetch, ignore_progress
from ._java import LOGGING, find_java
from ._process import Process, free_ports, make_directory, supervise
from ._service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

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
_ANY_TIME: Final = 2**63 - 1

_SETTINGS: Final[Mapping[str, object]] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # Replication for a single node
    "default.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    # A mistyped topic is an error. Records with old timestamps are kept, and every timestamp is accepted.
    "auto.create.topics.enable": "false",
    "log.retention.ms": -1,
    "log.message.timestamp.before.max.ms": _ANY_TIME,
    "log.message.timestamp.after.max.ms": _ANY_TIME,
    # A rebalance does not wait for more members, and periodic work runs often enough for a test to observe it.
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1,
    "log.cleaner.backoff.ms": 200,
    "log.retention.check.interval.ms": 1000,
    "log.initial.task.delay.ms": 1000,
    "log.segment.delete.delay.ms": 1000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    # After a crash the restarted controller still considers the old broker alive for this long and refuses the new one.
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 100,
    # Sizes for a small machine
    "num.network.threads": 2,
    "num.io.threads": 4,
    "background.threads": 2,
    "log.cleaner.dedupe.buffer.size": 8 * 2**20,
}


class Kafka(Service):
    """A running Kafka broker. It keeps its port and its data when it is restarted."""

    @property
    def bootstrap(self) -> str:
        """``127.0.0.1:PORT``, for the ``bootstrap_servers`` of a client."""
        return f"{self.host}:{self.port}"


@contextlib.asynccontextmanager
async def kafka(
    *,
    port: int | None = None,
    data_dir: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    heap: str = "512m",
    deadline: float = 90,
    progress: Callable[[str], None] | None = None,
) -> AsyncIterator[Kafka]:
    """Start a real Kafka broker on 127.0.0.1. It ends when the context ends, or when this process ends for any reason.

    Its jars are fetched once from Maven Central (44 MB) and kept in the user's cache; after that a start takes about three
    seconds. It is for tests, demos and trials: unless `settings` say otherwise, topics are not created automatically, records
    of any timestamp are kept, and no password protects it.

    Args:
        port: the port for clients; by default a free port.
        data_dir: the directory of data and logs, which is kept; by default a temporary one that is removed at the end.
        settings: broker settings that are added to the default ones or replace them, such as ``{"num.partitions": 3}``.
        heap: the maximum size of the Java heap.
        deadline: seconds that the broker may take to start; fetching jars does not count.
        progress: a function that is called with lines of text while jars are fetched.

    Raises:
        LocalServiceError: there is no Java, the jars cannot be fetched, or the broker did not start; in the last case the
            message has the end of its log.
    """
    if port is not None and not 0 < port < 65_536:
        raise UsageError(f"port must be between 1 and 65535, not {port}")
    java = await asyncio.to_thread(find_java, MINIMUM_JAVA)
    jars = await fetch(JARS, java, progress or ignore_progress)
    jvm = [java, f"-Xmx{heap}", *_JAVA_OPTIONS, "-cp", os.pathsep.join(map(str, jars))]
    home, remove = make_directory("kafka", data_dir)
    async with supervise(remove) as supervisor:
        attempts = 1 if port is not None else 5
        while True:
            attempts -= 1
            broker_port, controller_port = free_ports(2)
            broker_port = port or broker_port
            config = _configure(home, broker_port, controller_port, settings or {})
            if not (home / "data" / "meta.properties").exists():
                await _format(supervisor, jvm, home, config, deadline)
            command = [*_logging(jvm, home), "kafka.Kafka", str(config)]
            broker = Kafka(Process(supervisor, "kafka", command, home / "kafka.log", _READY), broker_port, deadline)
            try:
                await broker.start()
                break
            except LocalServiceError as error:
                # Another process took a port after we had found it free: try others.
                if attempts <= 0 or "Address already in use" not in error.log:
                    raise
        yield broker


def _configure(home: Path, port: int, controller_port: int, settings: Mapping[str, object]) -> Path:
    config = home / "server.properties"
    given = {
        **_SETTINGS,
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
        "log.dirs": (home / "data").as_posix(),
        **settings,
    }
    config.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    (home / "log4j2.properties").write_text(LOGGING)
    return config


async def _format(supervisor: SupervisorClient, jvm: list[str], home: Path, config: Path, deadline: float) -> None:
    """Format an empty data directory with a new cluster id; Kafka does not start without one."""
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # With '=', because a cluster id may begin with a dash.
    command = [*_logging(jvm, home), "kafka.tools.StorageTool", "format", "--standalone"]
    command += [f"--cluster-id={cluster}", f"--config={config}"]
    await Process(supervisor, "kafka-format", command, home / "format.log").run(deadline)


def _logging(jvm: list[str], home: Path) -> list[str]:
    return [*jvm[:1], f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}", *jvm[1:]]
