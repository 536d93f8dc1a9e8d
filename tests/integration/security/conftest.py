"""One secure broker and one secure ZooKeeper for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import _for_the_session
from tests.secure import SecureKafka, SecureZooKeeper, secure_kafka, secure_zookeeper


@pytest.fixture(scope="session")
def tls_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    yield from _for_the_session(secure_kafka(tmp_path_factory.mktemp("kafka")))


@pytest.fixture(scope="session")
def tls_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureZooKeeper]:
    yield from _for_the_session(secure_zookeeper(tmp_path_factory.mktemp("zookeeper")))


@pytest.fixture
def zk_auth(monkeypatch: pytest.MonkeyPatch) -> str:
    """Put user and password into a variable, and return where they are found."""
    monkeypatch.setenv("TEST_ZK_AUTH", "ann:hunter2-marked")
    return "env:TEST_ZK_AUTH"
