"""The processes of a local Kafka: their roles, their configuration, and their identity on disk."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ._java import LOGGING
from ._process import Process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._process import SupervisorClient

_ANY_TIME: Final = 2**63 - 1

_SETTINGS: Final[Mapping[str, object]] = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # One coordinator for all groups and one for all transactions: in a cluster a test knows which broker it is.
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    # A leader changes only when a broker fails. By default the preferred leader would get it back within five minutes.
    "auto.leader.rebalance.enable": "false",
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
    # For this long after a crash the controller considers the old broker alive: no other broker leads its partitions, and the
    # restarted broker is refused.
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 100,
    # Sizes for a small machine
    "num.network.threads": 2,
    "num.io.threads": 4,
    "background.threads": 2,
    "log.cleaner.dedupe.buffer.size": 8 * 2**20,
}


@dataclass(frozen=True, slots=True)
class KafkaNode:
    """One process of a cluster. It is a broker if it has a port for clients, and a controller if it has a port for brokers."""

    name: str
    id: int
    directory: Path
    port: int | None
    controller_port: int | None


def replication(replicas: int) -> dict[str, object]:
    in_sync = max(replicas - 1, 1)
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


def configure(nodes: list[KafkaNode], settings: Mapping[str, object]) -> dict[int, Path]:
    """Write each node's configuration; return the files by the nodes' ids."""
    (controller,) = (node.controller_port for node in nodes if node.controller_port is not None)
    configs = {}
    for node in nodes:
        roles, listeners = [], {}
        if node.port is not None:
            roles.append("broker")
            listeners["PLAINTEXT"] = f"PLAINTEXT://127.0.0.1:{node.port}"
        if node.controller_port is not None:
            roles.append("controller")
            listeners["CONTROLLER"] = f"CONTROLLER://127.0.0.1:{node.controller_port}"
        given = {
            **_SETTINGS,
            "process.roles": ",".join(roles),
            "node.id": node.id,
            "listeners": ",".join(listeners.values()),
            "advertised.listeners": listeners.get("PLAINTEXT", listeners.get("CONTROLLER")),
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "log.dirs": (node.directory / "data").as_posix(),
            **settings,
        }
        node.directory.mkdir(exist_ok=True)
        configs[node.id] = node.directory / "server.properties"
        configs[node.id].write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        (node.directory / "log4j2.properties").write_text(LOGGING)
    return configs


async def format_directories(
    supervisor: SupervisorClient, jvm: list[str], nodes: list[KafkaNode], configs: dict[int, Path], deadline: float
) -> None:
    """Format the empty data directories, all with the same cluster id; Kafka does not start without one.

    Kafka's tool formats the controller's directory, the first. A broker's directory needs only the file of its identity,
    which is written here: the tool would take another second of CPU for each.
    """
    first, *brokers = nodes
    identity = first.directory / "data" / "meta.properties"
    if not identity.exists():
        # With '=', because a cluster id may begin with a dash.
        command = [*with_logging(jvm, first), "kafka.tools.StorageTool", "format", "--standalone"]
        command += [f"--cluster-id={_kafka_uuid()}", f"--config={configs[first.id]}"]
        await Process(supervisor, "kafka-format", command, first.directory / "format.log").run(deadline)
    lines = identity.read_text().splitlines()
    (cluster,) = (line for line in lines if line.startswith("cluster.id="))
    for node in brokers:
        data = node.directory / "data"
        if not (data / "meta.properties").exists():
            data.mkdir(exist_ok=True)
            own = ["version=1", cluster, f"node.id={node.id}", f"directory.id={_kafka_uuid()}"]
            (data / "meta.properties").write_text("\n".join(own) + "\n")


def _kafka_uuid() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def with_logging(jvm: list[str], node: KafkaNode) -> list[str]:
    return [*jvm[:1], f"-Dlog4j2.configurationFile={node.directory / 'log4j2.properties'}", *jvm[1:]]
