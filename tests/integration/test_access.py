"""Credentials on real services: who may use a group's nodes, why a broker refuses us, and no secret in what we show."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

import aiokcc
from aiokcc import local
from aiokcc.errors import KafkaError, KafkaRefusedError, NoAuthError
from aiokcc.stores import Session, open_store
from aiokcc.stores.zookeeper import Acl, ZooKeeperStore, wire
from aiokcc.stores.zookeeper.pending import PendingRequest
from aiokcc.stores.zookeeper.session import ZooKeeperSession
from tests.integration.cli.commands import AIOKCC, environment, run

SECRET = "hunter2-marked"
START = 1_767_225_600_000
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="alice" password="{SECRET}" user_alice="{SECRET}";'
)
SASL = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": "alice"}


@pytest.fixture
async def sasl_kafka() -> AsyncIterator[local.Kafka]:
    """A broker whose listener asks for a user and a password; the listener keeps its name."""
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": JAAS,
    }
    async with local.kafka(settings=settings) as running:
        yield running


def with_credentials(url: str, user: str = "ann") -> str:
    return url.replace("zk://", f"zk://{user}:{SECRET}@")


async def access_lists(session: Session, path: str = "") -> dict[str, tuple[Acl, ...]]:
    """The access list of the node and of all below it."""
    assert isinstance(session, ZooKeeperSession)
    future = asyncio.get_running_loop().create_future()
    session._submit(
        PendingRequest(future, wire.acl_request(wire.encode_path(session._root, path)), wire.decode_acl, path)
    )
    found = {path: await future}
    for name in await session.children(path):
        found |= await access_lists(session, f"{path}/{name}" if path else name)
    return found


class TestAccessLists:
    async def test_with_credentials_all_nodes_are_the_creators_alone(self, zk_root: str) -> None:
        mine = with_credentials(zk_root)
        settings: dict[str, Any] = {"topics": {"t": 2}, "period": 1000, "start": 0, "assignment": "managed"}
        async with (
            open_store(mine).session() as session,
            aiokcc.connect(mine, member="a", join_window=0.1, **settings),
            aiokcc.connect(mine, member="b", join_window=0.1, **settings),
        ):
            for words in (("isolate", "b"), ("period", "2s"), ("hold",), ("rejoin", "b"), ("isolate", "b")):
                ended = await run(words[0], mine, *words[1:])
                assert ended.code == 0, ended.err
                assert SECRET not in ended.out + ended.err
            await session.delete("period", (await session.get("period")).version)
            ended = await run("period", mine, "1s")  # makes it anew
            assert ended.code == 0, ended.err
            lists = await access_lists(session)
            assert {"isolated/b", "period", "run", "coordinator", "owners", "cuts/0"} <= lists.keys()
            for path, rules in lists.items():
                assert [(rule.scheme, rule.perms) for rule in rules] == [("digest", Acl.ALL)], path
                assert rules[0].id.startswith("ann:"), path
            async with open_store(zk_root).session() as stranger:
                for call in (stranger.get("run"), stranger.set("period", b"off", 0), stranger.children("")):
                    with pytest.raises(NoAuthError):
                        await call

    async def test_the_command_line_inherits_the_groups_list(self, zk_root: str) -> None:
        """The group's founder chose its list; the command line knows nothing of that, and has to go by it all the same."""
        mine = with_credentials(zk_root)
        settings: dict[str, Any] = {"topics": {"t": 1}, "period": 1000, "start": 0, "assignment": "managed"}
        async with (
            open_store(mine).session() as session,
            aiokcc.connect(mine, member="a", acl="readable", **settings),
            aiokcc.connect(mine, member="b", **settings),
        ):
            ended = await run("isolate", mine, "a")
            assert ended.code == 0, ended.err
            for path, rules in (await access_lists(session)).items():
                assert {(rule.scheme, rule.perms) for rule in rules} == {("digest", Acl.ALL), ("world", Acl.READ)}, path
            assert (await run("status", zk_root)).code == 0, "readable by all"
            assert (await run("hold", zk_root)).code == 1

    async def test_another_users_list_is_not_copied_without_its_digests(self, zk_root: str) -> None:
        """Whom the list does not make an administrator, the server shows it with the digests hidden: useless for a new node."""
        shared = [Acl.CREATOR, Acl("world", "anyone", Acl.READ | Acl.CREATE)]
        async with (
            open_store(with_credentials(zk_root), acl=shared).session() as ann,
            open_store(with_credentials(zk_root, "bob")).session() as bob,
        ):
            await ann.ensure("")
            await ann.create("run")
            await bob.create("bobs")
            assert (await bob.get("bobs")).data == b""
            await bob.set("bobs", b"x", 0)

    def test_what_is_asked_for_counts(self) -> None:
        for acl, rules in (
            (None, (Acl.CREATOR,)),
            ("open", (Acl.OPEN,)),
            ("readable", (Acl.CREATOR, Acl("world", "anyone", Acl.READ))),
        ):
            store = open_store("zk://u:p@h/x", acl=acl)
            assert isinstance(store, ZooKeeperStore)
            assert store._acl == wire.encode_acl(rules)
        store = open_store("zk://h/x")
        assert isinstance(store, ZooKeeperStore)
        assert store._acl == wire.encode_acl((Acl.OPEN,))


class TestRefusedByTheBroker:
    async def refused(self, bootstrap: str, **settings: Any) -> KafkaError:
        with pytest.raises(KafkaError) as caught:
            async with aiokcc.replay(
                "t", bootstrap_servers=bootstrap, store="memory://refused", period="1m", **settings
            ):
                pass
        assert SECRET not in f"{caught.value} {caught.value!r}"
        return caught.value

    async def test_sasl_where_none_is_asked_for(self, kafka: local.Kafka) -> None:
        error = await self.refused(kafka.bootstrap, **SASL, sasl_plain_password=SECRET)
        assert isinstance(error, KafkaRefusedError)
        assert "does not ask for SASL there, but security_protocol is SASL_PLAINTEXT" in str(error)
        assert "security_protocol=PLAINTEXT" in str(error)

    @pytest.mark.timeout(120)
    async def test_each_reason_is_told(self, sasl_kafka: local.Kafka) -> None:
        wrong = await self.refused(sasl_kafka.bootstrap, **SASL, sasl_plain_password="wrong")
        assert (
            "refuses the credentials of 'alice' by PLAIN: Authentication failed: Invalid username or password"
            in str(wrong)
        )
        scram = {**SASL, "sasl_mechanism": "SCRAM-SHA-256"}
        mechanism = await self.refused(sasl_kafka.bootstrap, **scram, sasl_plain_password=SECRET)
        assert "does not accept sasl_mechanism=SCRAM-SHA-256" in str(mechanism)
        none = await self.refused(sasl_kafka.bootstrap)
        assert "its listener may need SASL_PLAINTEXT and credentials" in str(none)
        for error in (wrong, mechanism, none):
            assert isinstance(error, KafkaRefusedError)
        words = ["replay", "json:loads", "--topic", "t", "--period", "1m", "--store", "memory://m"]
        words += ["--bootstrap-servers", sasl_kafka.bootstrap, "--consumer", "sasl_plain_password=wrong"]
        words += [word for name, value in SASL.items() for word in ("--consumer", f"{name}={value}")]
        ended = await run(*words)
        assert ended.code == 1
        assert "Invalid username or password" in ended.err
        assert "Is Kafka running there?" not in ended.err

    async def test_nobody_there_is_still_told(self) -> None:
        error = await self.refused("127.0.0.1:1", connect_timeout=2)
        assert "no broker there" in str(error)
        assert not isinstance(error, KafkaRefusedError)


HANDLERS = """
import pathlib

def look(record):
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if b"aiokcc.cli.worker" in words or str(pathlib.Path.cwd()).encode() in words:
            print("process", words)
    if record.offset == 1:
        raise LookupError("no such customer")
"""


@pytest.mark.timeout(180)
async def test_no_secret_comes_out_of_a_whole_run(
    sasl_kafka: local.Kafka, zk_root: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    client: dict[str, Any] = {"bootstrap_servers": sasl_kafka.bootstrap, **SASL, "sasl_plain_password": SECRET}
    admin = AIOKafkaAdminClient(**client)
    await admin.start()
    await admin.create_topics([NewTopic("t", 2, 1)])
    await admin.close()
    producer = AIOKafkaProducer(**client)
    await producer.start()
    for offset in range(2):
        for number in range(2):
            await producer.send_and_wait("t", b"", partition=number, timestamp_ms=START + offset)
    await producer.stop()
    (tmp_path / "handlers.py").write_text(HANDLERS)
    store = with_credentials(zk_root)
    words = ["replay", "handlers:look", "--topic", "t", "--period", "1m", "--processes", "2", "--verbose"]
    words += ["--bootstrap-servers", sasl_kafka.bootstrap, "--group-id", "g"]
    words += [word for name, value in SASL.items() for word in ("--consumer", f"{name}={value}")]
    for more, variables in (
        (["--consumer", f"sasl_plain_password={SECRET}", "--store", store], {}),
        (["--consumer", "sasl_plain_password=env:PW"], {"PW": SECRET, "AIOKCC_STORE": store}),
    ):
        process = await asyncio.create_subprocess_exec(
            AIOKCC,
            *words,
            *more,
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(**variables),
        )
        out, err = await process.communicate()
        assert process.returncode == 1
        assert b"aiokcc.cli.worker" in out, "the handler has seen the processes"
        assert b"no such customer" in err
        assert b"sasl_plain_password=" in err, "the command to go on with"
        assert SECRET.encode() not in out + err
    replay = aiokcc.replay("t", store=store, start=START, end="now", period="2m", assignment="fixed", **client)
    with pytest.raises(aiokcc.GroupMismatchError) as caught:
        async with replay:
            pass
    async with open_store(store).session() as session:
        nodes = [await session.get(path) for path in await access_lists(session)]
    assert nodes
    assert SECRET not in f"{nodes} {replay!r} {caught.value!r} {caplog.text}"
