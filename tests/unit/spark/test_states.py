"""The states that are published with batches, without Spark: which are kept, and drivers that die between any two steps."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from aiokcc.core.partitions import Partition
from aiokcc.errors import PipelineMismatchError
from aiokcc.spark.batch import Batch, Slice
from aiokcc.spark.sinks.data_file import DataFile
from aiokcc.spark.sinks.delta_states import HOME as DELTA_HOME
from aiokcc.spark.sinks.delta_states import DeltaStates
from aiokcc.spark.sinks.log import HOME, Log
from aiokcc.spark.sinks.states import PublishedState, States
from aiokcc.spark.tables import batches
from tests.unit.spark.test_sinks_log import Killed, Watched

HOUR = 3_600_000
SCHEMA = json.dumps({"type": "struct", "fields": []})


def batch_of(number: int, *, empty: bool = False) -> Batch:
    ranges = {} if empty else {Partition("orders", 0): (10 * number, 10 * number + 10)}
    return Batch("p", number, (Slice(number * HOUR, (number + 1) * HOUR, ranges),))


def state(number: int, *paths: str) -> PublishedState:
    return PublishedState(number, (number + 1) * HOUR, tuple(DataFile(path, 1, 1, "") for path in paths))


def test_the_last_states_are_kept_and_the_one_before_them_is_dropped() -> None:
    states = States(SCHEMA)
    for number in range(4):
        states = states.added(state(number, f"a{number}", f"b{number}"), 2)
    assert [kept.batch for kept in states.kept] == [2, 3]
    assert states.dropped == ("a1", "b1")
    assert states.carried().dropped == ()
    assert states.added(state(5), 4).dropped == ()


def test_a_batch_starts_from_the_state_of_the_batch_before_it_also_if_it_is_repeated() -> None:
    states = States(SCHEMA).added(state(3), 2).added(state(7), 2)
    assert [None if (found := states.before(n)) is None else found.batch for n in (2, 3, 4, 7, 8, 20)] == [
        None,
        None,
        3,
        3,
        7,
        7,
    ]


def test_states_are_read_as_they_were_written() -> None:
    states = States(SCHEMA).added(state(3, "a"), 2).added(PublishedState(4, 5 * HOUR, (), "here"), 2)
    assert States.from_json(json.loads(json.dumps(states.to_json()))) == states


def publish(log: Log, number: int) -> None:
    """Publish a batch with one state file, or the third one, which has no records, without."""
    batch = batch_of(number, empty=number == 2)
    if log.is_published(batch):
        return
    if batch.is_empty:
        log.publish(batch, {})
        return
    place = log.make_stage(batch)
    data = f"state after {number}".encode()
    (place / "state.parquet").write_bytes(data)
    log.sync_stage(place)
    path = f"{place.relative_to(log.home).as_posix()}/state.parquet"
    file = DataFile(path, 1, len(data), hashlib.sha256(data).hexdigest())
    before = log.states or States(SCHEMA)
    log.publish(batch, {}, SCHEMA, before.added(PublishedState(number, (number + 1) * HOUR, (file,)), 2))


def test_a_driver_that_dies_before_any_operation_leaves_the_states_of_its_batches(tmp_path: Path) -> None:
    def run(root: Path, disk: Watched, attempt: int) -> Log:
        log = Log(root, disk)
        log.begin("p", attempt)
        for number in range(5):
            publish(log, number)
        return log

    whole = Watched()
    run(tmp_path / "whole", whole, 1)
    for at in range(len(whole.operations)):
        root = tmp_path / str(at)
        with pytest.raises(Killed):
            run(root, Watched(at), 1)
        log = run(root, Watched(), 2)
        assert log.states is not None
        assert [(kept.batch, kept.end) for kept in log.states.kept] == [(3, 4 * HOUR), (4, 5 * HOUR)]
        for kept in log.states.kept:
            assert (root / HOME / kept.files[0].path).read_bytes() == f"state after {kept.batch}".encode()
        assert len([*root.rglob("state.parquet")]) == 2, f"left-overs of a driver that died before operation {at}"
        by_batch = [manifest.states.last.batch for manifest in batches(root) if manifest.states is not None]
        assert by_batch == [0, 1, 1, 3, 4], "a batch without records leaves the state as it is"


def test_a_state_beside_a_delta_table_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        PipelineMismatchError, match=f"{tmp_path} was published with a state, and .*{DELTA_HOME} does not"
    ):
        DeltaStates(tmp_path, "0" * 8).read(7)
