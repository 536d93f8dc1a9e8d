"""The staircase: samples of statuses, and how they are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aiokcc.dashboard.history import MOST_SAMPLES, WORST, History, Sample, Staircase
from aiokcc.runtime.status import GroupState, PartitionCondition, PartitionStatus
from tests.unit.dashboard.statuses import MINUTE, START, status_of


class TestStaircase:
    def test_a_waiting_partition_has_reached_the_limit_and_a_running_one_the_last_boundary(self) -> None:
        sample = Staircase().sample(status_of({"a.0": "waiting", "a.1": "running", "a.2": "idle"}), at=7)
        assert sample is not None
        assert sample.partitions == {"a.0": START + MINUTE, "a.1": START, "a.2": START + MINUTE}
        assert sample.topics == {}

    def test_the_first_period_of_a_run_from_the_earliest_records(self) -> None:
        """Nothing has closed yet, and nobody has said where the run starts; it does not start in 1970."""
        status = status_of({"a.0": "running", "a.1": "waiting"}, start=None, closed=0)
        sample = Staircase().sample(status, at=1)
        assert sample is not None
        assert sample.partitions == {"a.0": START, "a.1": START + MINUTE}

    @pytest.mark.parametrize("number", [2, 1000])
    def test_a_partition_of_which_nothing_is_known_has_no_line(self, number: int) -> None:
        status = status_of(
            {f"a.{n}": "running" for n in range(number)}, start=None, closed=None, period=None, agreed_period=None
        )
        sample = Staircase().sample(status, at=1)
        assert sample is not None
        assert (sample.limit, sample.partitions, sample.topics) == (START + MINUTE, {}, {})

    def test_a_partition_does_not_go_back_when_a_later_report_says_less(self) -> None:
        stairs = Staircase()
        status = status_of({"a.0": "running"})
        told = replace(
            status, partitions=(PartitionStatus("a.0", "one-1", PartitionCondition.RUNNING, START + 30_000),)
        )
        first, second = stairs.sample(told, at=1), stairs.sample(status, at=2)
        assert first is not None
        assert second is not None
        assert first.partitions == second.partitions == {"a.0": START + 30_000}

    def test_another_run_under_the_same_root_begins_anew(self) -> None:
        stairs = Staircase()
        stairs.sample(status_of({"a.0": "waiting"}, limit=START + 10 * MINUTE), at=1)
        again = stairs.sample(status_of({"a.0": "running"}, limit=START + 2 * MINUTE), at=2)
        assert again is not None
        assert again.partitions == {"a.0": START + MINUTE}

    def test_a_thousand_partitions_are_bands_of_topics_and_the_worst_by_name(self) -> None:
        states = (
            {f"a.{n}": "waiting" for n in range(600)} | {f"b.{n}": "waiting" for n in range(399)} | {"b.399": "running"}
        )
        sample = Staircase().sample(status_of(states), at=1)
        assert sample is not None
        assert sample.partitions == {"b.399": START}
        assert sample.topics == {"a": (START + MINUTE, START + MINUTE), "b": (START, START + MINUTE)}

    def test_only_some_of_many_late_partitions_have_lines(self) -> None:
        sample = Staircase().sample(status_of({f"a.{n}": "running" for n in range(1000)}), at=1)
        assert sample is not None
        assert len(sample.partitions) == WORST

    def test_there_is_no_sample_without_a_limit(self) -> None:
        released = status_of({"a.0": "waiting"}, state=GroupState.RELEASED)
        assert Staircase().sample(replace(released, limit=None), at=1) is None

    def test_a_run_that_has_ended_is_at_its_last_boundary(self) -> None:
        ended = replace(status_of({"a.0": "unowned"}), state=GroupState.ENDED, limit=None, closed=START + 5 * MINUTE)
        sample = Staircase().sample(ended, at=1)
        assert sample is not None
        assert (sample.limit, sample.partitions) == (START + 5 * MINUTE, {"a.0": START + 5 * MINUTE})


class TestHistory:
    def test_it_is_bounded_however_often_samples_come(self) -> None:
        history = History(seconds=3600)
        for at in range(0, 3 * 3_600_000, 500):
            history.add(Sample(at, at, {}, {}))
        assert len(history) <= MOST_SAMPLES + 1
        kept = history.since(0)
        assert kept[-1].at == 3 * 3_600_000 - 500
        assert kept[0].at >= 2 * 3_600_000 - 500

    def test_a_page_gets_only_what_it_has_not_seen(self) -> None:
        history = History(seconds=60)
        for at in (1000, 2000, 3000):
            history.add(Sample(at, at, {}, {}))
        assert [sample.at for sample in history.since(2000)] == [3000]
