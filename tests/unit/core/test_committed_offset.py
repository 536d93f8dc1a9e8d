"""The text of a committed offset, and the runs for which it counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokcc.core.committed_offset import MAX_OFFSET, CommittedOffset, batched, check_offset
from aiokcc.errors import CorruptNodeError, UsageError

NUMBERS = st.integers(0, 10**19 - 1)
COMMITS = st.builds(
    CommittedOffset,
    st.integers(0, MAX_OFFSET),
    st.none() | NUMBERS,
    st.none() | NUMBERS,
    st.none() | NUMBERS,
    st.none() | st.from_regex(r"[A-Za-z0-9._@-]{2,100}", fullmatch=True),
)


def test_a_person_can_read_it() -> None:
    commit = CommittedOffset(55, 1767225600000, 3, 1767225661234, "worker-1-1a2b")
    assert commit.encode() == b"55 run=1767225600000 generation=3 at=1767225661234 by=worker-1-1a2b"
    assert commit.metadata == "aiokcc run=1767225600000 generation=3 at=1767225661234 by=worker-1-1a2b"
    assert CommittedOffset(7, by="operator").encode() == b"7 run=- generation=- at=- by=operator"


@given(COMMITS)
def test_it_comes_back_as_it_was(commit: CommittedOffset) -> None:
    assert CommittedOffset.decode("offsets/orders/0", commit.encode()) == commit
    assert CommittedOffset.from_kafka(commit.offset, commit.metadata) == commit


def test_a_number_alone_is_an_offset() -> None:
    assert (
        CommittedOffset.decode("offsets/orders/0", b"55")
        == CommittedOffset.decode("offsets/orders/0", b"55\n")
        == CommittedOffset(55)
    )


@pytest.mark.parametrize(
    "data", [b"", b"-1", b"x", b"1.5", b"55 by=me", b"55 run=1", b"9223372036854775808", b"\xff", b"1 run=- by=-"]
)
def test_content_that_cannot_be_read_is_an_error_that_says_what_is_expected(data: bytes) -> None:
    with pytest.raises(CorruptNodeError, match="offsets/orders/0 holds .*; expected an offset"):
        CommittedOffset.decode("offsets/orders/0", data)


@pytest.mark.parametrize(
    "metadata", ["", "mine", "aiokcc", "aiokcc run 1767225600000", "kcc run=1 generation=1 at=1 by=x"]
)
def test_of_what_other_programs_have_committed_only_the_offset_is_known(metadata: str) -> None:
    assert CommittedOffset.from_kafka(9, metadata) == CommittedOffset(9)


def test_to_a_run_only_its_own_commits_count() -> None:
    assert CommittedOffset(9, 1767225600000, 3).counts_for(1767225600000)
    assert not CommittedOffset(9, 1767225600000, 3).counts_for(1767225600001)
    assert not CommittedOffset(9).counts_for(0)


@pytest.mark.parametrize("value", [-1, 2**63, 1.0, "1", True, None])
def test_an_invalid_offset_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="expected a whole number from 0 up"):
        check_offset(value)


@given(st.integers(0, 2000), st.integers(1, 10**7), st.integers(1, 1000))
def test_batches_hold_everything_once_and_stay_below_the_limit(count: int, size: int, most: int) -> None:
    batches = list(batched(range(count), size, most))
    assert [item for batch in batches for item in batch] == list(range(count))
    assert all(1 <= len(batch) <= most for batch in batches)
    assert all(len(batch) == 1 or len(batch) * size <= 500_000 for batch in batches)
