"""The settings on which a group agrees, and the fence."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokcc.core.partitions import parse_topics
from aiokcc.core.periods import MAX_LIMIT, MAX_PERIOD, MAX_TIMESTAMP
from aiokcc.core.run import FORMAT, MAX_LOOKAHEAD, Generation, Run, Settings, check_member, encode_member
from aiokcc.errors import CorruptNodeError, GroupMismatchError, OtherFormatError, UsageError
from tests.unit.naming import brief

AGREED = parse_topics({"orders": 2})
SETTINGS = Settings.check(topics={"orders": 2}, period="1m", start="2026-01-01T00:00Z", end="2026-02-01T00:00Z")
RUN = Run(SETTINGS)


def test_settings_as_people_write_them() -> None:
    checked = Settings.check(
        topics={"orders": 2}, period="1m", start=0, end="2026-02-01T00:00Z", lookahead=2, caught_up="1h", ahead=0
    )
    assert checked == Settings(AGREED, 60_000, 0, 1_769_904_000_000, 2, 3_600_000, 0)
    assert Settings.check(topics={"orders": 2}, period=1) == Settings(AGREED, 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"start": 10, "end": 10}, "end 10 does not lie after start 10"),
        ({"start": "2026-01-02T00:00Z", "end": "2026-01-01T00:00Z"}, "the run would be empty"),
        ({"start": "soon"}, "start 'soon' cannot be read"),
        ({"end": -1}, "end -1 is negative"),
        ({"lookahead": -1}, "lookahead -1 is not a number of periods from 0 to 1000"),
        ({"lookahead": True}, "lookahead True is not"),
        ({"lookahead": 1.0}, "lookahead 1.0 is not"),
        ({"lookahead": MAX_LOOKAHEAD + 1}, "lookahead 1001 is not"),
        ({"caught_up": "stop"}, 'or "follow", or "release"'),
        ({"caught_up": None}, 'or "follow", or "release"'),
        ({"caught_up": 0}, "caught_up 0 is too short"),
        ({"ahead": "-1h"}, "ahead '-1h' cannot be read"),
        ({"period": 0}, "period 0 is too short"),
        ({"period": None}, "period None cannot be read"),
        ({"topics": {}}, "topics is {}"),
    ],
    ids=brief,
)
def test_invalid_settings_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings.check(**{"topics": {"orders": 2}, "period": "1m", **wrong})  # type: ignore[arg-type]
    assert message in str(caught.value)


times = st.none() | st.integers(0, MAX_TIMESTAMP)
policies = st.sampled_from(["follow", "release"]) | st.integers(1, MAX_PERIOD)


@given(
    times, times, st.integers(1, MAX_PERIOD), st.integers(0, 1000), policies, st.integers(0, MAX_LIMIT), st.booleans()
)
def test_a_run_can_be_read_back(
    start: int | None, end: int | None, period: int, lookahead: int, policy: object, ahead: int, ended: bool
) -> None:
    if start is not None and end is not None and end <= start:
        start, end = (end, start) if start != end else (start, None)
    checked = Settings.check(topics={"orders": 2}, period=period, lookahead=lookahead, caught_up=policy, ahead=ahead)
    run = Run(
        replace(checked, start=start, end=end), ended
    )  # any time, also one that a user would have to write as text
    assert Run.decode("/run", run.encode(), AGREED) == run


def test_a_run_that_has_ended_says_so() -> None:
    over = RUN.end()
    assert Run.decode("/run", over.encode(), AGREED).ended
    assert over.settings == RUN.settings


def changed(**facts: object) -> bytes:
    """The run's node with other facts; None takes the fact out."""
    raw = {**json.loads(RUN.encode()), **facts}
    return json.dumps({name: value for name, value in raw.items() if value is not ...}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"3",
        b"NaN",
        b"\xff\xfe",
        RUN.encode()[:-1],
        RUN.encode() + b"x",
        b"[" * 1_000_000,
        b'{"version": ' + b"9" * 5000 + b"}",
        b"\x00" * 1_000_000,
        RUN.encode()[:-1] + b', "period": 5}',  # said twice
        changed(version="2"),
        changed(version=True),
        changed(version=...),
        changed(state="paused"),
        changed(state=[]),
        changed(start="soon"),
        changed(start=-1),
        changed(start=2**63),
        changed(start=[]),
        changed(end=0),
        changed(period=0),
        changed(period=1.5),
        changed(period=None),
        changed(period=...),
        changed(lookahead=None),
        changed(lookahead=10**9),
        changed(caught_up={}),
        changed(ahead=-1),
    ],
    ids=brief,
)
def test_an_invalid_run_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptNodeError, match="^/g/run holds .*expected JSON with version, start, end"):
        Run.decode("/g/run", data, AGREED)


@pytest.mark.parametrize(("version", "said"), [(FORMAT - 1, "an older version"), (FORMAT + 1, "a newer version")])
def test_a_run_of_another_format_is_refused_and_the_error_says_what_to_do(version: int, said: str) -> None:
    with pytest.raises(
        OtherFormatError, match=f"^/g/run was written by {said} of aiokcc: its format is {version}"
    ) as e:
        Run.decode("/g/run", json.dumps({"version": version, "whatever": "it holds"}).encode(), AGREED)
    assert "let all members run the same version, or use another root" in str(e.value)
    assert (e.value.found, e.value.ours) == (version, FORMAT)


@given(
    st.binary(max_size=30)
    | st.builds(lambda n, b: RUN.encode()[:n] + b + RUN.encode()[n + 1 :], st.integers(0, 160), st.binary(max_size=2))
)
def test_any_bytes_are_a_stable_run_or_corrupt(data: bytes) -> None:
    try:
        run = Run.decode("/run", data, AGREED)
    except CorruptNodeError:
        return
    assert Run.decode("/run", run.encode(), AGREED) == run


def test_a_member_with_the_groups_settings_may_join() -> None:
    RUN.require(Settings.check(topics={"orders": [0, 1]}, period=60_000, start=SETTINGS.start, end=SETTINGS.end), "/g")


@pytest.mark.parametrize(
    ("mine", "message"),
    [
        (replace(SETTINGS, period=5000), "period is 1m there and 5s here"),
        (replace(SETTINGS, start=None), "start is 2026-01-01T00:00:00Z there and None here"),
        (replace(SETTINGS, end=SETTINGS.start), "end is 2026-02-01T00:00:00Z there and 2026-01-01T00:00:00Z here"),
        (replace(SETTINGS, lookahead=2), "lookahead is 0 there and 2 here"),
        (replace(SETTINGS, caught_up=60_000), "caught_up is follow there and 1m here"),
        (replace(SETTINGS, partitions=parse_topics({"o": 1})), "partitions is orders:0,1; there and o:0; here"),
    ],
    ids=brief,
)
def test_a_member_with_other_settings_gets_an_error_that_names_both(mine: Settings, message: str) -> None:
    with pytest.raises(GroupMismatchError, match="^the group under /g runs with other settings: ") as caught:
        RUN.require(mine, "/g")
    assert message in str(caught.value)
    assert "use another root" in str(caught.value)


def test_a_mismatch_of_thousands_of_partitions_is_still_a_message() -> None:
    with pytest.raises(GroupMismatchError) as caught:
        RUN.require(replace(SETTINGS, partitions=parse_topics({"orders": 50_000})), "/g")
    assert len(str(caught.value)) < 1000


@given(st.integers(0, 10**18), st.from_regex(r"\A[A-Za-z0-9._-]{1,20}\Z"), st.text(max_size=30))
def test_a_generation_can_be_read_back(number: int, leader: str, reason: str) -> None:
    generation = Generation(number, leader, reason)
    assert Generation.decode("/generation", generation.encode()) == generation


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"3",
        b"3 w",
        b"x w reason",
        b"-3 w reason",
        b"3  reason",
        b"9" * 20 + b" w reason",
        b"9" * 5000 + b" w r",
        "٣ w r".encode(),
        b"\xff w r",
        b"\x00" * 1_000_000,
        b" " * 1_000_000,
    ],
    ids=brief,
)
def test_an_invalid_generation_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptNodeError, match="^/g/generation holds .*expected 'number leader reason'"):
        Generation.decode("/g/generation", data)


@given(st.binary(max_size=30))
def test_any_bytes_are_a_stable_generation_or_corrupt(data: bytes) -> None:
    try:
        generation = Generation.decode("/g", data)
    except CorruptNodeError:
        return
    assert Generation.decode("/g", generation.encode()) == generation


def test_member_names() -> None:
    assert check_member("worker-1.eu_west") == "worker-1.eu_west"


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a%b", "ä", "a\n", ".", "..", "a" * 101, None, 7], ids=brief)
def test_a_name_that_would_break_a_node_is_refused(name: object) -> None:
    with pytest.raises(UsageError, match="is not a usable name; expected letters, digits"):
        check_member(name)


def test_nodes_for_people_are_json() -> None:
    assert json.loads(encode_member(id="w-1", host="h")) == {"version": 1, "id": "w-1", "host": "h"}
