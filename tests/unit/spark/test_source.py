"""The use of Spark's Kafka source, as far as it needs no Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from aiokcc.spark.source import _newer_reader


def test_two_pipelines_that_share_a_session_leave_its_setting_as_it_was() -> None:
    name, before = "spark.sql.sources.useV1SourceList", "avro,kafka,parquet"
    settings = {name: before}
    spark: Any = SimpleNamespace(conf=SimpleNamespace(get=settings.__getitem__, set=settings.__setitem__))
    inside, first_has_left = threading.Event(), threading.Event()

    def second() -> None:
        with _newer_reader(spark):
            inside.set()
            first_has_left.wait(10)

    other = threading.Thread(target=second)
    with _newer_reader(spark):
        assert settings[name] == "avro,parquet"
        other.start()
        inside.wait(0.1)  # it must not come in; if it does, it takes the changed setting for the session's own
    first_has_left.set()
    other.join(10)
    assert inside.is_set()
    assert settings[name] == before
