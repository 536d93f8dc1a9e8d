"""A real ZooKeeper with TLS, digests and access lists; each way in which it refuses us is an error that says so."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import aiokcc
from aiokcc.errors import NoAuthError, StoreUnreachableError
from aiokcc.stores import open_store
from tests.certificates import Authority
from tests.integration.cli.commands import line_with, run, started
from tests.kafka_topics import fresh_name
from tests.secure import PASSWORD, SecureZooKeeper, secure_zookeeper

pytestmark = pytest.mark.service


async def refusal(url: str) -> str:
    with pytest.raises(StoreUnreachableError) as caught:
        async with open_store(url).session(timeout=4, connect_timeout=1.5):
            pass
    return str(caught.value)


async def test_every_verb_works_over_tls_with_digest_and_access_list(
    tls_zookeeper: SecureZooKeeper, zk_auth: str
) -> None:
    url = tls_zookeeper.url(fresh_name("verbs"), auth=zk_auth, acl="creator")
    settings = {"topics": {"t": 2}, "period": "1m", "start": 0, "assignment": "managed", "join_window": 0.1}
    async with aiokcc.connect(url, member="a", **settings), aiokcc.connect(url, member="b", **settings):  # type: ignore[arg-type]
        for words in (
            ["status"],
            ["status", "--json"],
            ["members"],
            ["period", "2m"],
            ["hold"],
            ["isolate", "b"],
            ["rejoin", "b"],
            ["offsets", "show"],
            ["offsets", "export"],
            ["config"],
            ["list"],
            ["describe"],
            ["prune", "--keep-ended", "7d", "--dry-run"],
            ["release", "--yes"],
        ):
            ended = await run("--log-level", "debug", *words, url)
            assert ended.code == 0, (words, ended.err)
            assert PASSWORD not in ended.out + ended.err
        alive = await run("delete", "--yes", url)
        assert alive.code == 1, alive.err
        async with started("dashboard", url, "--listen", "127.0.0.1:0") as serving:
            address = (await line_with(serving, "http://")).split()[0]
            async with httpx.AsyncClient() as client:
                shown = await client.get(f"{address}/healthz")
            assert (shown.status_code, shown.json()["verdict"]) == (200, "released")
            assert PASSWORD not in shown.text
    deleted = await run("delete", "--yes", url)
    assert deleted.code == 0, deleted.err
    gone = await run("status", url)
    assert gone.code == 1
    assert "there is no group" in gone.err


async def test_a_stranger_is_not_allowed_and_is_told_so(tls_zookeeper: SecureZooKeeper, zk_auth: str) -> None:
    root = fresh_name("mine")
    other = tls_zookeeper.authority.issue("other-client")
    as_other = {"cert": str(other.cert), "key": str(other.key)}
    mine = tls_zookeeper.url(root, auth=zk_auth)
    async with aiokcc.connect(mine, topics={"t": 1}, period="1m", start=0):
        async with open_store(tls_zookeeper.url(root, **as_other)).session() as stranger:
            with pytest.raises(NoAuthError):
                await stranger.children("")
    ended = await run("status", tls_zookeeper.url(root, **as_other))
    assert ended.code == 1
    assert "auth=env:NAME" in ended.err
    wrong = await run("status", tls_zookeeper.url(root, auth="env:WRONG", **as_other), WRONG="ann:wrong-password")
    assert wrong.code == 1
    assert "wrong-password" not in wrong.err
    assert "auth=env:NAME" in wrong.err


async def test_each_reason_is_told(tls_zookeeper: SecureZooKeeper, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other-ca")
    assert "no trusted CA has signed" in await refusal(tls_zookeeper.url("x", ca=str(other.file)))
    none = await refusal(tls_zookeeper.url("x", cert="", key=""))
    assert "asks for one and none is given" in none or "asks for a client's certificate" in none
    strange = other.issue("stranger")
    assert "refuses our certificate" in await refusal(
        tls_zookeeper.url("x", cert=str(strange.cert), key=str(strange.key))
    )
    old = tls_zookeeper.authority.issue("old", expired=True)
    assert "refuses our certificate" in await refusal(tls_zookeeper.url("x", cert=str(old.cert), key=str(old.key)))
    assert "expects TLS on this port (zks://)" in await refusal(f"zk://{tls_zookeeper.address}/x")
    plain = tls_zookeeper.url("x").replace(tls_zookeeper.address, tls_zookeeper.server.connection)
    assert "does not speak TLS on this port" in await refusal(plain)


async def test_an_expired_certificate_of_the_server_is_told(tmp_path: Path) -> None:
    async with secure_zookeeper(tmp_path, expired=True) as old:
        assert "has a certificate that has expired" in await refusal(old.url("x"))


async def test_a_certificate_for_another_address_is_told(tls_zookeeper: SecureZooKeeper) -> None:
    by_name = tls_zookeeper.url("x").replace("127.0.0.1", "127.0.0.2")
    message = await refusal(by_name)
    assert "for another name" in message or "Connection refused" in message  # it listens on 127.0.0.1 alone


async def test_an_encrypted_key_opens_with_its_password(
    tls_zookeeper: SecureZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_PASSWORD", "open-sesame")
    mine = tls_zookeeper.authority.issue("encrypted", password="open-sesame")
    files = {"cert": str(mine.cert), "key": str(mine.key)}
    url = tls_zookeeper.url(fresh_name("encrypted"), key_password="env:KEY_PASSWORD", **files)
    async with open_store(url).session() as session:
        await session.ensure("a")
    for password, reason in (("", "none is given"), ("env:WRONG", "not the right one")):
        monkeypatch.setenv("WRONG", "shut")
        with pytest.raises(aiokcc.UsageError, match=reason):
            open_store(tls_zookeeper.url("x", key_password=password, **files))


async def test_the_certificate_alone_is_an_identity(tls_zookeeper: SecureZooKeeper) -> None:
    root = fresh_name("certified")
    async with open_store(tls_zookeeper.url(root, acl="creator")).session() as session:
        await session.ensure("")
    other = tls_zookeeper.authority.issue("another")
    async with open_store(tls_zookeeper.url(root, cert=str(other.cert), key=str(other.key))).session() as stranger:
        with pytest.raises(NoAuthError):
            await stranger.children("")
