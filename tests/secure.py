"""A broker and a ZooKeeper that speak TLS and ask who is there, for the tests of security.

The broker has three listeners: one without security, for the test itself, who may do everything; one for SASL_SSL with
SCRAM-SHA-512; and one that asks for a client's certificate. Nobody else may do anything but what an ACL allows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokcc import local
from aiokcc.local._process import free_ports
from tests.certificates import Authority, Certificate

PASSWORD = "hunter2-marked"
USER = "replayer"


@dataclass(frozen=True)
class SecureKafka:
    """The broker, and the addresses of its listeners."""

    broker: local.Kafka
    authority: Authority
    sasl: str
    mtls: str

    @property
    def bootstrap(self) -> str:
        """The listener without security, on which everything is allowed."""
        return self.broker.bootstrap

    def properties(self, **changes: str) -> dict[str, str]:
        """Return the client properties for SASL_SSL, with ``_`` for each dot in the names of changes."""
        given = {
            "bootstrap.servers": self.sasl,
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.file),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{USER}" password="{PASSWORD}";',
        }
        return {**given, **{name.replace("_", "."): value for name, value in changes.items()}}

    def mutual(self, certificate: Certificate | None) -> dict[str, str]:
        """Return the client properties for TLS with a client's certificate."""
        given = {
            "bootstrap.servers": self.mtls,
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.file),
        }
        own = (
            {} if certificate is None else {"ssl.keystore.location": str(certificate.both), "ssl.keystore.type": "PEM"}
        )
        return {**given, **own}


def write_properties(path: Path, properties: dict[str, str]) -> str:
    path.write_text("# for Java and for aiokcc\n" + "".join(f"{name}={value}\n" for name, value in properties.items()))
    return str(path)


@asynccontextmanager
async def secure_kafka(directory: Path, *, expired: bool = False) -> AsyncIterator[SecureKafka]:
    """Start the broker. It has the user, who is allowed nothing yet."""
    authority = Authority(directory, "kafka-ca")
    server = authority.issue("broker", expired=expired)
    plain, sasl, mtls, controller = free_ports(4)
    named = {"PLAINTEXT": plain, "SCRAM": sasl, "MUTUAL": mtls}
    clients = ",".join(f"{name}://127.0.0.1:{port}" for name, port in named.items())
    stores = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": server.both,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.file,
    }
    settings: dict[str, object] = {
        "listeners": f"{clients},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": clients,
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SCRAM:SASL_SSL,MUTUAL:SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.scram.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        **{f"listener.name.scram.{name}": value for name, value in stores.items()},
        **{f"listener.name.mutual.{name}": value for name, value in stores.items()},
        "listener.name.mutual.ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    async with local.kafka(port=plain, settings=settings) as broker:
        running = SecureKafka(broker, authority, f"127.0.0.1:{sasl}", f"127.0.0.1:{mtls}")
        _add_user(running.bootstrap)
        yield running


def _admin(bootstrap: str) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap})


def _add_user(bootstrap: str) -> None:
    from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    asked = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    admin = _admin(bootstrap)  # it must live until the answer is there
    for future in admin.alter_user_scram_credentials([asked]).values():
        future.result(20)


def allow(bootstrap: str, principal: str, rules: Iterable[tuple[str, str, str]]) -> None:
    """Allow a principal what the rules say: the kind of resource, the beginning of its name, and the operation."""
    from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

    bindings = [
        AclBinding(
            ResourceType[kind],
            name,
            ResourcePatternType.PREFIXED,
            f"User:{principal}",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for kind, name, operation in rules
    ]
    admin = _admin(bootstrap)
    for future in admin.create_acls(bindings).values():
        future.result(20)


@dataclass(frozen=True)
class SecureZooKeeper:
    """The server, and the address of its TLS port."""

    server: local.ZooKeeper
    authority: Authority
    client: Certificate
    address: str

    def url(self, root: str, **options: str) -> str:
        """Return the URL for TLS with all options. An option that is empty is left out."""
        own = {"ca": str(self.authority.file), "cert": str(self.client.cert), "key": str(self.client.key)}
        query = "&".join(f"{name}={value}" for name, value in {**own, **options}.items() if value)
        return f"zks://{self.address}/{root}?{query}"


@asynccontextmanager
async def secure_zookeeper(directory: Path, *, expired: bool = False) -> AsyncIterator[SecureZooKeeper]:
    """Start a server with a TLS port that asks for a client's certificate."""
    authority = Authority(directory, "zookeeper-ca")
    server, client = authority.issue("zookeeper", expired=expired), authority.issue("zookeeper-client")
    (port,) = free_ports(1)
    settings = {
        "secureClientPort": port,
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": server.both,
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": authority.file,
        "ssl.trustStore.type": "PEM",
    }
    async with local.zookeeper(settings=settings) as running:
        yield SecureZooKeeper(running, authority, client, f"127.0.0.1:{port}")
