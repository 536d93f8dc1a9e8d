"""``aiokcc status`` derives a health, a view and a JSON object from a status; no store is read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from aiokcc.cli.render import write_line, write_status
from aiokcc.cli.verbs.status import as_json
from aiokcc.core.formatting import short_names
from aiokcc.core.leader import BlockerState
from aiokcc.runtime.health import HealthKind, assess
from aiokcc.runtime.status import Blocking, GroupState, MemberStatus, PartitionCondition, PartitionStatus, Status
from aiokcc.views.model import StatusView
from aiokcc.views.status_view import build_view

NOW = 1_767_300_000.0
T = 1_767_225_900_000
URL = "zk://127.0.0.1:2181/replay"

MOVING = Status(
    where=URL,
    state=GroupState.RUNNING,
    limit=T,
    floor=T,
    closed=T - 60_000,
    period=60_000,
    agreed_period=60_000,
    start=T - 300_000,
    end=T + 700_000,
    lookahead=0,
    generation=2,
    leader="alpha-1a",
    epoch=2,
    members=(
        MemberStatus("alpha-1a", "host-1", 11, 1_767_299_900_000, 1, True),
        MemberStatus("beta-2b", "host-2", 22, 1_767_299_990_000, 1, False),
    ),
    partitions=(
        PartitionStatus("orders.0", "alpha-1a", PartitionCondition.WAITING, T + 1, 55),
        PartitionStatus("payments.0", "beta-2b", PartitionCondition.RUNNING, T - 60_000, 9),
    ),
    blocking=(Blocking("payments.0", "beta-2b", BlockerState.RUNNING, "beta-2b"),),
    waiting_seconds=0.1,
    periods_closed=4,
    problems=(),
)


def view_of(status: Status, **options: object) -> StatusView:
    return build_view(status, assess(status, stuck_after=30, now=NOW), now=NOW, **options)  # type: ignore[arg-type]


class TestHealth:
    def assessed(self, **changes: object) -> tuple[HealthKind, bool, str]:
        health = assess(replace(MOVING, **changes), stuck_after=30, now=NOW)  # type: ignore[arg-type]
        return health.kind, health.stuck, health.text

    def test_a_limit_that_moved_a_moment_ago_moves(self) -> None:
        assert self.assessed() == (HealthKind.MOVING, False, "The limit moves; it last did 0.1s ago.")

    def test_partitions_of_the_leader_are_not_slow_because_they_run(self) -> None:
        """The leader's report comes from the cut, and says nothing but that its partitions run."""
        partitions = (PartitionStatus("orders.0", "alpha-1a", PartitionCondition.RUNNING, None, 7),)
        blocking = (Blocking("orders.0", "alpha-1a", BlockerState.RUNNING, None),)
        assert self.assessed(partitions=partitions, blocking=blocking)[0] is HealthKind.MOVING
        later = self.assessed(partitions=partitions, blocking=blocking, waiting_seconds=1.0)
        assert later[0] is HealthKind.BLOCKED

    def test_one_slow_partition_is_named_with_its_member_and_for_how_long(self) -> None:
        kind, stuck, text = self.assessed(waiting_seconds=12.4)
        assert (kind, stuck) == (HealthKind.BLOCKED, False)
        assert text == "Blocked for 12s by payments.0 on beta, which still has records before the limit."

    def test_a_blocked_group_is_stuck_after_a_while(self) -> None:
        assert self.assessed(waiting_seconds=30.0)[:2] == (HealthKind.BLOCKED, True)

    def test_an_unowned_partition_is_named_at_once_with_its_last_owner(self) -> None:
        blocking = (Blocking("orders.0", None, BlockerState.UNOWNED, "alpha-1a"), *MOVING.blocking)
        kind, _, text = self.assessed(blocking=blocking)
        assert (kind, text) == (HealthKind.BLOCKED, "Blocked for 0.1s: orders.0 is unowned (last run by alpha).")

    def test_a_partition_that_had_no_owner_yet(self) -> None:
        assert (
            "nobody has run it yet"
            in self.assessed(blocking=(Blocking("orders.0", None, BlockerState.UNOWNED, None),))[2]
        )

    def test_many_slow_partitions_are_counted(self) -> None:
        blocking = tuple(Blocking(f"orders.{n}", "alpha-1a", BlockerState.RUNNING, None) for n in range(1000))
        assert (
            self.assessed(blocking=blocking, waiting_seconds=61)[2] == "Blocked for 1m1s by 1,000 partitions on alpha."
        )

    def test_no_members(self) -> None:
        kind, stuck, text = self.assessed(members=(), leader=None, epoch=None, waiting_seconds=180)
        assert (kind, stuck) == (HealthKind.NO_MEMBERS, True)
        assert text.startswith("The group has no members. The limit has stood for 3m;")

    def test_all_idle_is_not_stuck(self) -> None:
        partitions = (
            PartitionStatus("orders.0", "alpha-1a", PartitionCondition.IDLE),
            PartitionStatus("payments.0", None, PartitionCondition.FINISHED),
        )
        kind, stuck, _ = self.assessed(partitions=partitions, blocking=(), waiting_seconds=9999)
        assert (kind, stuck) == (HealthKind.IDLE, False)

    def test_records_of_the_future_wait_for_the_clock(self) -> None:
        partitions = (
            PartitionStatus("orders.0", "alpha-1a", PartitionCondition.WAITING, int(NOW * 1000) + 86_400_000),
        )
        kind, stuck, text = self.assessed(partitions=partitions, blocking=(), waiting_seconds=9999)
        assert (kind, stuck) == (HealthKind.CLOCK, False)
        assert "2026-01-02T20:40:00Z" in text

    def test_a_leader_that_does_nothing(self) -> None:
        partitions = (PartitionStatus("orders.0", "alpha-1a", PartitionCondition.WAITING, T + 1),)
        kind, stuck, text = self.assessed(partitions=partitions, blocking=(), waiting_seconds=40)
        assert (kind, stuck) == (HealthKind.STALLED, True)
        assert "the leader, alpha, has not moved the limit" in text

    @pytest.mark.parametrize(
        ("state", "kind"), [("held", HealthKind.HELD), ("released", HealthKind.RELEASED), ("ended", HealthKind.ENDED)]
    )
    def test_a_group_that_is_held_released_or_ended_is_not_stuck(self, state: str, kind: HealthKind) -> None:
        assert self.assessed(state=GroupState(state), waiting_seconds=9999)[:2] == (kind, False)

    def test_a_group_with_an_unreadable_node_is_stuck_at_once(self) -> None:
        kind, stuck, text = self.assessed(state=GroupState.UNREADABLE, problems=("/replay/period holds 'x'",))
        assert (kind, stuck) == (HealthKind.UNREADABLE, True)
        assert "/replay/period holds 'x'" in text


class TestStatusView:
    def test_the_blocking_partition_comes_first(self) -> None:
        text = write_status(view_of(replace(MOVING, waiting_seconds=72)))
        first, second, _, title, heads, row, *_ = text.splitlines()
        assert first == URL
        assert second.startswith("Blocked for 1m12s by payments.0 on beta")
        assert title == "Blocking"
        assert heads.split() == ["PARTITION", "MEMBER", "FOR", "WHY"]
        assert row.split(maxsplit=4)[:4] == ["*", "payments.0", "beta", "1m12s"]

    def test_the_facts(self) -> None:
        facts = dict(view_of(MOVING).facts)
        assert facts["limit"] == "2026-01-01T00:05:00Z   1767225900000   30.0% of the run"
        assert facts["period"] == "1m"
        assert facts["period"] == "1m"
        assert facts["leader"] == "alpha   epoch 2"
        assert facts["closed"] == "4 periods, the last at 2026-01-01T00:04:00Z"

    @pytest.mark.parametrize("number", [0, 1])
    def test_before_the_first_period_has_closed_there_is_no_last_one(self, number: int) -> None:
        """The cut of the first limit has the boundary 0."""
        view = view_of(replace(MOVING, closed=0, periods_closed=number))
        assert dict(view.facts)["closed"] == "no period yet"
        assert "1970" not in write_status(view)

    def test_a_partition_at_the_gate_is_called_waiting_not_blocked(self) -> None:
        text = write_status(view_of(MOVING))
        assert "orders.0    alpha   waiting  2026-01-01T00:05:00.001Z" in text

    def test_two_sessions_of_one_member_keep_their_full_names(self) -> None:
        assert short_names(["alpha-1a", "alpha-2b", "beta-3c"]) == {
            "alpha-1a": "alpha-1a",
            "alpha-2b": "alpha-2b",
            "beta-3c": "beta",
        }

    def test_many_partitions_are_summed_up_by_topic(self) -> None:
        many = tuple(
            PartitionStatus(
                f"{topic}.{n}",
                "alpha-1a",
                PartitionCondition.WAITING if n else PartitionCondition.RUNNING,
                T + n if n else None,
            )
            for topic in ("a.b", "c")
            for n in range(512)
        )
        blocking = tuple(
            Blocking(p.partition, "alpha-1a", BlockerState.RUNNING, None) for p in many if p.state == "running"
        )
        status = replace(MOVING, partitions=many, blocking=blocking, waiting_seconds=5)
        lines = write_status(view_of(status)).splitlines()
        assert len(lines) < 30
        assert next(line.split() for line in lines if line.startswith("  a.b"))[:4] == ["a.b", "512", "1", "511"]
        assert any(line.startswith("* a.b.0") for line in lines)
        assert len(write_status(view_of(status, everything=True)).splitlines()) > 1024

    def test_of_many_blocking_partitions_ten_are_listed(self) -> None:
        blocking = tuple(Blocking(f"orders.{n}", "alpha-1a", BlockerState.RUNNING, None) for n in range(300))
        table = view_of(replace(MOVING, blocking=blocking, waiting_seconds=5)).blocking
        assert table is not None
        assert (len(table.rows), table.note) == (10, "and 290 more")

    def test_a_hold_shows_the_command_that_ends_it(self) -> None:
        view = view_of(replace(MOVING, state=GroupState.HELD, period=None), resume="aiokcc period 1m")
        assert "resume with: aiokcc period 1m" in write_status(view)

    def test_a_line_for_a_log(self) -> None:
        assert write_line(view_of(MOVING)) == "2026-01-01T00:05:00Z  The limit moves; it last did 0.1s ago."


def test_json_is_one_object_with_stable_names() -> None:
    shown = json.loads(json.dumps(as_json(replace(MOVING, waiting_seconds=31), stuck_after=30, now=NOW)))
    assert shown["format"] == 1
    assert (shown["verdict"], shown["stuck"]) == ("blocked", True)
    assert (shown["limit"], shown["limit_time"]) == (T, "2026-01-01T00:05:00Z")
    assert shown["blocking"] == [
        {
            "partition": "payments.0",
            "member": "beta-2b",
            "state": "running",
            "last_member": "beta-2b",
            "process": None,
        }
    ]
    assert set(shown) == {
        *("format", "verdict", "stuck", "why", "limit_time", "where", "state", "limit", "floor", "closed", "period"),
        *(
            "agreed_period",
            "source",
            "offsets_done",
            "offsets_total",
            "start",
            "end",
            "lookahead",
            "generation",
            "leader",
            "epoch",
            "members",
            "partitions",
            "blocking",
        ),
        *("waiting_seconds", "periods_closed", "problems", "group", "standstill", "held_period", "pipelines"),
    }


class TestTheRun:
    def facts(self, **changes: object) -> dict[str, str]:
        return dict(view_of(replace(MOVING, **changes)).facts)  # type: ignore[arg-type]

    def test_a_changed_period_is_shown_with_the_one_the_run_began_with(self) -> None:
        assert self.facts(period=300_000)["period"] == "5m   changed; the run began with 1m"

    def test_a_hold_shows_the_period_before_it_or_that_it_is_not_known(self) -> None:
        held = {"state": GroupState.HELD, "period": None}
        assert self.facts(**held, held_period=120_000)["period"] == "2m before the hold"
        assert "not recorded before the hold; the run began with 1m" in self.facts(**held)["period"]

    def test_the_view_fits_80_columns(self) -> None:
        many = {"offsets_done": 1_234_567_890, "offsets_total": 12_345_678_900}
        now = {"start": None, "end": None, "source": "kafka start=committed end=now time=record"}
        held = {"state": "held", "period": None, "agreed_period": 366 * 86_400_000 - 1}
        for changes in (many, {**many, **now}, held, {"period": 90_061_001, "agreed_period": 90_061_002}):
            shown = write_status(view_of(replace(MOVING, **changes)))  # type: ignore[arg-type]
            assert [line for line in shown.splitlines() if len(line) > 80] == []

    def test_without_times_the_share_is_computed_from_offsets(self) -> None:
        known = {"start": None, "end": None, "source": "kafka start=committed end=now time=record"}
        facts = self.facts(**known, offsets_done=5, offsets_total=2000)
        assert facts["limit"].endswith("   0.2% of the run")
        assert facts["run"] == "from the committed offsets to where the topics ended when it began"
        assert facts["offsets"] == "5 of 2,000 are processed"

    def test_a_run_that_follows_has_no_share(self) -> None:
        facts = self.facts(start=None, end=None, source="kafka start=earliest end=none time=record")
        assert "run" not in facts
        assert "of the run" not in facts["limit"]
