"""The checker of histories: a right history passes, and each broken rule is found and named."""

from __future__ import annotations

import pytest

from tests.history import Event, History, ViolationError

LOGS = {"orders.0": [1, 12, 23], "orders.1": [5, 15]}


def right() -> list[Event]:
    return [
        Event(0, "limit", data="10"),
        Event(1, "start", "a", "orders.0", 1, 0),
        Event(2, "done", "a", "orders.0", 1, 0),
        Event(3, "start", "b", "orders.1", 5, 0),
        Event(4, "done", "b", "orders.1", 5, 0),
        Event(5, "cut", data="1 0 10 1\na orders:0; 1;\nb orders:1; 1;"),
        Event(5, "limit", data="20"),
        Event(6, "start", "a", "orders.0", 12, 1),
        Event(7, "done", "a", "orders.0", 12, 1),
        Event(8, "start", "b", "orders.1", 15, 1),
        Event(9, "done", "b", "orders.1", 15, 1),
        Event(10, "cut", data="2 10 20 1\na orders:0; 2;\nb orders:1; 2!;"),
        Event(10, "limit", data="30"),
        Event(11, "start", "a", "orders.0", 23, 2),
        Event(12, "done", "a", "orders.0", 23, 2),
    ]


def test_a_right_history_passes() -> None:
    History(events=right()).check(LOGS)


def test_a_history_survives_the_file_and_a_torn_last_line() -> None:
    events = right()
    first, second = History(events=events[::2]).dump(), History(events=events[1::2]).dump()
    loaded = History.load(first, second + '{"time": 99, "ev')
    assert sorted(loaded.events, key=str) == sorted(events, key=str)
    loaded.check(LOGS)


@pytest.mark.parametrize(
    ("rule", "place", "event"),
    [
        ("alignment", 5, Event(4.5, "start", "a", "orders.0", 12, 1)),
        ("monotony", 13, Event(10, "limit", data="25")),
        ("cuts: 2", 11, Event(10, "cut", data="2 11 20 1\na orders:0; 2;\nb orders:1; 2!;")),
        (
            "cuts: 20 cuts orders.0 at 1, not at 2",
            11,
            Event(10, "cut", data="2 10 20 1\na orders:0; 1;\nb orders:1; 2;"),
        ),
        ("says nothing of", 11, Event(10, "cut", data="2 10 20 1\na orders:0; 2;")),
        ("redelivery", 13, Event(11.5, "start", "a", "orders.0", 12, 1)),
        ("one owner", 14, Event(11.5, "start", "b", "orders.0", 23, 2)),
    ],
)
def test_a_history_with_a_forbidden_event_is_refused(rule: str, place: int, event: Event) -> None:
    events = right()
    if event.event == "cut":
        events[place] = event
    else:
        events.insert(place, event)
    with pytest.raises(ViolationError, match=rule):
        History(events=events).check(LOGS)


@pytest.mark.parametrize(("rule", "missing"), [("completeness", 4), ("at least once", 14), ("barrier", 4)])
def test_a_history_that_lacks_an_event_is_refused(rule: str, missing: int) -> None:
    events = right()
    del events[missing]
    with pytest.raises(ViolationError, match=rule):
        History(events=events).check(LOGS)


def test_an_observer_that_is_late_is_forgiven_up_to_the_slack() -> None:
    events = [Event(e.time + 1.5 if e.event == "limit" and e.time == 10 else e.time, *list(_rest(e))) for e in right()]  # type: ignore[arg-type]
    with pytest.raises(ViolationError, match="alignment"):
        History(events=events).check(LOGS)
    History(events=events).check(LOGS, slack=1.0)


def _rest(event: Event) -> tuple[str, str, str, int, int, str]:
    return event.event, event.member, event.partition, event.ts, event.offset, event.data
