"""The errors say why no broker lets a store on Kafka connect: aiokafka itself raises only that it could not bootstrap."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from aiokafka.errors import GroupAuthorizationFailedError

import aiokcc
from aiokcc.credentials.kafka_refusal import describe_denial
from aiokcc.errors import StoreUnreachableError
from aiokcc.stores.kafka import KafkaStore

SASL = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "ann",
    "sasl_plain_password": "x-marked-x",
}


@pytest.fixture
async def closing() -> AsyncIterator[str]:
    """The address of a server that closes each connection, as a broker does whose listener speaks another protocol."""

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"


async def open_session(store: KafkaStore) -> None:
    async with store.session(connect_timeout=0.5):
        pass


async def list_roots(store: KafkaStore) -> None:
    await store.list_roots(0.5)


@pytest.mark.parametrize("use", [open_session, list_roots])
async def test_a_listener_of_another_kind_is_told(closing: str, use: object) -> None:
    store = aiokcc.open_store(f"kafka://{closing}/x", **SASL)
    assert callable(use)
    with pytest.raises(StoreUnreachableError, match="security_protocol=SASL_PLAINTEXT right") as caught:
        await use(store)
    assert str(caught.value).startswith(
        f"no Kafka broker of {closing} answered within 0.5 s: {closing} closed the connection"
    )


@pytest.mark.parametrize("use", [open_session, list_roots])
async def test_nobody_there_is_told(use: object) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
    assert callable(use)
    with pytest.raises(
        StoreUnreachableError, match=f"no Kafka broker of {where} answered within 0.5 s: no broker there$"
    ):
        await use(aiokcc.open_store(f"kafka://{where}/x"))


@pytest.mark.parametrize("said", ["my group", "Unable to get coordinator id for my group"])
def test_the_group_whose_acl_is_missing_is_named(said: str) -> None:
    denial = describe_denial(GroupAuthorizationFailedError(said))
    assert denial == "it needs an ACL with Read on the group 'my group'"


def test_passwords_stay_out_of_the_log_of_aiokafka() -> None:
    """The store alone brings in the filter, without anything that reads Kafka."""
    program = "import logging, aiokcc.stores.kafka.client; print(logging.getLogger('aiokafka.conn').filters)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "_HideCredentials" in ended.stdout
