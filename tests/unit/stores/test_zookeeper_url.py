"""Stores opened by zk:// URLs and options, and the errors for invalid ones, which never repeat the password."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from aiokcc.errors import UsageError
from aiokcc.stores import open_store
from aiokcc.stores.zookeeper import Acl, ZooKeeperStore
from tests.certificates import Authority


def parse(url: str, **options: object) -> ZooKeeperStore:
    store = open_store(url, **options)
    assert isinstance(store, ZooKeeperStore)
    return store


@pytest.mark.parametrize(
    ("url", "servers", "root"),
    [
        ("zk://h", ["h:2181"], "/aiokcc/default"),
        ("zk://h/", ["h:2181"], "/aiokcc/default"),
        ("zk://h:1/a", ["h:1"], "/a"),
        ("zk://h:1/a/", ["h:1"], "/a"),
        ("zk://h1:1,h2,10.0.0.1:3/a/b", ["h1:1", "h2:2181", "10.0.0.1:3"], "/a/b"),
        ("zk://h:1,h:1/a", ["h:1"], "/a"),
        ("zk://[::1]:2181,[fe80::1%eth0]/a", ["[::1]:2181", "[fe80::1%eth0]:2181"], "/a"),
        ("zk://user:pass@h1:1,h2:2/a", ["h1:1", "h2:2"], "/a"),
    ],
)
def test_a_url_names_servers_and_a_root(url: str, servers: list[str], root: str) -> None:
    store = parse(url)
    assert [str(server) for server in store.servers] == servers
    assert store.root == root
    assert store.url == f"zk://{','.join(servers)}{root}"
    assert parse(store.url).url == store.url
    assert store.describe("x/y") == f"{root}/x/y"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://h/a", "there is no store for"),
        ("zk://h:x/a", "what stands behind the ':' is not a port"),
        ("zk://h:/a", "'' is not a port"),
        ("zk://h:0/a", "'0' is not a port"),
        ("zk://h:65536/a", "'65536' is not a port"),
        ("zk://h:1,,k:2/a", "a host is missing"),
        ("zk://h:1,/a", "a host is missing"),
        ("zk://::1/a", "is not a host and port"),
        ("zk://[::1/a", "is not a host and port"),
        ("zk://h 1/a", "is not a host and port"),
        ("zk://h/a?timeout=3", "there is no option 'timeout'"),
        ("zk://h/a#b", "contains a '#'"),
        ("zk://h/a//b", "root"),
        ("zk://h/a/../b", "root"),
        ("zk://user@h/a", "user and a password"),
        ("zk://user:@h/a", "user and a password"),
        ("zk://:hunter2@h/a", "user and a password"),
        ("zk://user:hunter2@/a", "a host is missing"),
        ("zk://user:hunter2@h:x/a", "not a port"),
        ("zk://user:hunter2@x@h:x/a", "not a port"),
        ("zk://user:hunter2@h/a?x", "options"),
    ],
)
def test_a_wrong_url_is_explained_without_the_password(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        parse(url)
    assert "hunter2" not in str(caught.value)
    assert "root" in str(caught.value) or "zk://127.0.0.1:2181" in str(caught.value)


def test_the_password_is_kept_and_never_shown() -> None:
    for store in (parse("zk://al%40ice:hunter%2F2@h/a"), parse("zk://h/a", auth=("al@ice", "hunter/2"))):
        assert store._ensemble.auth == ("al@ice", "hunter/2")
        for text in (store.url, repr(store), str(store), repr(store._ensemble), store.describe("x")):
            assert "hunter" not in text


@pytest.mark.parametrize("auth", ["user", ("user",), ("", "x"), ("user", ""), ("us:er", "x"), (b"u", b"p")])
def test_credentials_must_be_two_strings(auth: object) -> None:
    with pytest.raises(UsageError, match="auth"):
        parse("zk://h/a", auth=auth)


def test_credentials_given_twice_are_refused() -> None:
    with pytest.raises(UsageError, match="leave one of them out"):
        parse("zk://user:hunter2@h/a", auth=("user", "hunter2"))


def test_access_lists_are_checked() -> None:
    auth = ("user", "password")
    parse("zk://h/a", acl="open")
    parse("zk://h/a", acl="creator", auth=auth)
    parse("zk://h/a", acl=Acl("world", "anyone", Acl.READ))
    parse("zk://h/a", acl=[Acl.CREATOR, Acl("world", "anyone", Acl.READ)], auth=auth)
    for acl in ("closed", [], ["open"]):
        with pytest.raises(UsageError, match="acl"):
            parse("zk://h/a", acl=acl)
    with pytest.raises(UsageError, match="auth="):
        parse("zk://h/a", acl="creator")
    with pytest.raises(UsageError, match="perms"):
        Acl("world", "anyone", 0)


def test_tls_must_be_a_context() -> None:
    parse("zk://h/a", ssl=ssl.create_default_context())
    with pytest.raises(UsageError, match="SSLContext"):
        parse("zk://h/a", ssl=True)


def test_a_store_without_servers_is_refused() -> None:
    with pytest.raises(UsageError, match="no server"):
        ZooKeeperStore([], "/a")


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_a_timeout_must_be_a_positive_number(timeout: float) -> None:
    with pytest.raises(UsageError, match="timeout"):
        parse("zk://h/a").session(timeout=timeout)
    if timeout != float("inf"):
        with pytest.raises(UsageError, match="connect_timeout"):
            parse("zk://h/a").session(connect_timeout=timeout)


def test_a_tls_url_has_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    mine = authority.issue("me")
    monkeypatch.setenv("AUTH", "al:hunter2")
    store = parse(f"zks://h1,h2:3/a?ca={authority.file}&cert={mine.cert}&key={mine.key}&auth=env:AUTH&acl=readable")
    assert store.url == "zks://h1:2281,h2:3/a"
    assert store._ensemble.auth == ("al", "hunter2")
    assert store._ensemble.ssl is not None
    same = parse("zks://h1,h2:3/a", ca=str(authority.file), cert=str(mine.both), auth="al:hunter2", acl="readable")
    assert (same.url, same._ensemble.auth, same._acl) == (store.url, store._ensemble.auth, store._acl)
    assert parse("zks://h?acl=open").root == "/aiokcc/default"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("zks://h/a?cret=x", "there is no option 'cret'; did you mean cert?"),
        ("zks://h/a?ca=/none.pem", "ca: the file /none.pem cannot be read: No such file"),
        ("zks://h/a?ca=x&ca=y", "the option ca is given twice"),
        ("zks://h/a?ca=", "the option ca is empty"),
        ("zks://h/a?ca", "not a list of options"),
        ("zk://h/a?ca=x", "the option ca is for TLS; write zks://"),
        ("zk://h/a?auth=al:hunter2", "auth=env:NAME or auth=file:PATH"),
        ("zks://h/a?key_password=hunter2", "key_password=env:NAME"),
        ("zk://h/a?auth=env:NONE", "auth: the environment variable NONE is not set"),
        ("zk://al:hunter2@h/a?auth=env:X", "and the option auth as well"),
        ("zk://h/a?acl=creator", "needs one: give the store auth"),
        ("zk://h/a?acl=closed", "acl='closed' is not known"),
    ],
)
def test_wrong_options_are_explained(url: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(url)
    assert says in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_an_option_in_the_url_and_as_an_argument_is_refused() -> None:
    with pytest.raises(UsageError, match="the URL has the option acl, and acl is given as well"):
        parse("zk://h/a?acl=open", acl="open")
    with pytest.raises(UsageError, match="the URL does not begin with zks://"):
        parse("zk://h/a", ca="x")
    with pytest.raises(UsageError, match="ssl, which says the same, is given as well"):
        parse("zks://h/a", ca="x", ssl=ssl.create_default_context())
